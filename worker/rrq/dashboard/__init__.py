"""The web dashboard: what ``rrq dashboard`` serves.

``access.py`` decides who may do what, ``reading.py`` asks the store, ``views.py`` and its neighbours turn the answers
into JSON,
``feed.py`` looks once a second for all browsers together, ``actions.py`` changes things and leaves a trace of
it, ``server.py`` is the thin shell around them that speaks HTTP. What one client may take is decided in ``limits.py``,
and ``connections.py`` and ``bodies.py`` hold requests to it. The page itself is in ``static``.
"""
