"""Checks the installation: whether an extra is installed, and whether another distribution shares our files.

Programs ask here before they import anything that an extra brings, so this module needs the standard library only.
"""

import importlib.util
import sys
from typing import Final

from rrq.version import DISTRIBUTION, __version__

__all__ = ["describe_missing_extra", "describe_other_distribution", "install_command", "require_extra"]

_WORKER: Final = ("click", "watchfiles", "rich", "prometheus_client", "psutil", "uvloop")
#: The modules that an extra brings, as far as our programs import them by name.
MODULES: Final = {
    "worker": _WORKER,
    "operator": (*_WORKER, "kopf", "kubernetes", "aiohttp", "yaml"),
    "dashboard": (*_WORKER, "aiohttp"),
}
#: Another project on PyPI, whose package is `rrq` as well: the one that is installed later overwrites the other's files.
_OTHER: Final = "rrq"
_CURE: Final = f"pip uninstall --yes {_OTHER} && pip install --force-reinstall --no-deps {DISTRIBUTION}"


def install_command(extra: str) -> str:
    """Return what a user types to get an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def describe_missing_extra(program: str, extra: str) -> str | None:
    """Return one sentence on what a program lacks and how to get it; None when the extra is installed."""
    missing = [name for name in MODULES[extra] if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return f"{program} needs {', '.join(missing)}, which {verb} not installed. Run: {install_command(extra)}"


def describe_other_distribution() -> str | None:
    """Return one sentence on a distribution `rrq` beside ours and how to remove it; None when there is none."""
    import importlib.metadata  # loads slowly, and the check for missing extras does not need it

    try:
        version = importlib.metadata.version(_OTHER)
    except importlib.metadata.PackageNotFoundError:
        return None
    return (
        f"The distribution {_OTHER} {version}, another project, is installed beside {DISTRIBUTION} and shares file names "
        f"with it. Run: {_CURE}"
    )


def require_extra(program: str, extra: str) -> None:
    """End the program with exit code 1 when its extra is missing or another distribution has overwritten our files."""
    # Already imported, as it holds this module; the other distribution overwrites its __init__.py.
    if getattr(sys.modules["rrq"], "__version__", None) != __version__:
        sys.exit(f"ERROR: Another distribution has overwritten files of {DISTRIBUTION}. Run: {_CURE}")
    if problem := describe_missing_extra(program, extra):
        # The commands that warn of the other distribution need the extra themselves.
        warning = describe_other_distribution()
        sys.exit(f"ERROR: {problem}" + (f"\nWARNING: {warning}" if warning else ""))
