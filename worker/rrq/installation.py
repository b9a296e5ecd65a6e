"""What of RRQ is installed: how to get a missing extra.

Programs ask here before they import anything that an extra brings, so this module needs the standard library only.
"""

from rrq.version import DISTRIBUTION

__all__ = ["install_command"]


def install_command(extra: str) -> str:
    """Return what a user types to get an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
