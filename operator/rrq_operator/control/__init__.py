"""The loops: read, decide, act."""
