"""``kubectl rrq``: pools and their queues at the command line, with the rights of the caller.

``top.py``, ``jobs.py``, ``flow.py`` and ``size.py`` have the commands, which import what they need only when they run.
``pools.py`` talks to Kubernetes, ``pool_redis.py`` and ``figures.py`` to Redis; ``tables.py`` is pure.
"""
