"""The commands of ``rrq``: one module per group, and what they share.

A command only reads its arguments, calls the library once and prints; what it prints comes from
``rrq.inspection``, ``rrq.dead_letters`` and ``rrq.overview``.
"""
