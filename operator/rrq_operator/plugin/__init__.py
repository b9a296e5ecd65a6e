"""``kubectl rrq``: pools and their queues at the command line, with the rights of whoever calls it.

Each command is a module of its own that holds its options; what it needs beyond them is imported when it runs.
Kubernetes is asked in ``clusters.py``, Redis in ``pool_redis.py`` and ``figures.py``; ``pools.py`` and
``tables.py`` are pure.
"""
