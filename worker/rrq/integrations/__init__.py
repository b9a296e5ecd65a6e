"""Tracers that RRQ can report to. Each module has one function, ``enable()``."""
