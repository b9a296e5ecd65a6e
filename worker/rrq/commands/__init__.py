"""The commands of ``rrq``: one module per group, and what they share.

A command only reads its arguments, calls the library once and prints; what it prints comes from
``rrq.inspect.jobs``, ``rrq.inspect.dead_letters`` and ``rrq.inspect.overview``.
"""
