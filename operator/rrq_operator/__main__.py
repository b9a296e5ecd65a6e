"""``python -m rrq_operator`` is the same as ``rrq-operator``."""

from rrq_operator.cli import main

main(prog_name="rrq-operator")
