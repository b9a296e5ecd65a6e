"""The web dashboard: what ``rrq dashboard`` serves.

``server.py`` speaks HTTP. ``policy.py`` and ``access.py`` decide who may do what, ``callers.py`` applies that to requests.
``snapshot.py``, ``reading.py`` and ``job_lists.py`` read from the store; ``views.py``, ``job_views.py``, ``samples.py`` and
``dead_groups.py`` turn it into JSON. ``feed.py`` reads once a second for all browsers, ``streams.py`` sends that to them.
``actions.py`` changes things and writes the audit. ``limits.py`` decides what one client may use; ``connections.py`` and
``bodies.py`` enforce it. The page itself is in ``static``.
"""
