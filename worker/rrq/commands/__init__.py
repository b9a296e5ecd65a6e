"""The commands of ``rrq``: one module per group, and what they share.

A command reads its arguments, calls the library and prints. ``options.py`` has the shared options, ``redis_access.py``
the way to Redis, ``output.py`` and ``formatting.py`` the printing, ``lazy_group.py`` the errors.
"""
