"""The environment of a program: logs, masking, escaping, CPU allotment, delays, metrics, time zones, installation."""
