"""The web dashboard: what ``rrq dashboard`` serves.

``access.py`` decides who may do what, ``reading.py`` asks the store, ``views.py`` and its neighbours turn the answers
into JSON,
``feed.py`` looks once a second for all browsers together, ``actions.py`` changes things and leaves a trace of
it, ``server.py`` is the thin shell around them that speaks HTTP. The page itself is in ``static``.
"""
