"""Every decision of the operator. Pure: no I/O, clock or random."""
