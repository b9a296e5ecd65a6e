"""``python -m rrq`` is the same as ``rrq``."""

from rrq.cli import rrq

rrq(prog_name="rrq")
