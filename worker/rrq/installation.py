"""What of RRQ is installed: whether the extra of a program is there, and how to get it.

Programs ask here before they import anything that an extra brings, so this module needs the standard library only.
"""

import importlib.util
import sys
from typing import Final

from rrq.version import DISTRIBUTION

__all__ = ["describe_missing", "install_command", "require_extra"]

_WORKER: Final = ("click", "watchfiles", "rich", "prometheus_client", "psutil", "uvloop")
#: The modules that an extra brings, as far as our programs import them by name.
MODULES: Final = {
    "worker": _WORKER,
    "operator": (*_WORKER, "kopf", "kubernetes", "yaml"),
    "dashboard": (*_WORKER, "aiohttp"),
}


def install_command(extra: str) -> str:
    """Return what a user types to get an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def describe_missing(program: str, extra: str) -> str | None:
    """Return one sentence on what a program lacks and how to get it; None when the extra is installed."""
    missing = [name for name in MODULES[extra] if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return f"{program} needs {', '.join(missing)}, which {verb} not installed. Run: {install_command(extra)}"


def require_extra(program: str, extra: str) -> None:
    """End the program with exit code 1 when its extra is not installed."""
    if problem := describe_missing(program, extra):
        sys.exit(f"ERROR: {problem}")
