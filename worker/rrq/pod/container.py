"""What a supervisor has to know and to do because it may be process 1 of a container."""

import contextlib
import ctypes
import os

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Have processes that a child leaves behind handed to us, as process 1 would; Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reborn_pod_uid() -> str:
    """Return the pod whose earlier workers are dead for certain, or nothing.

    Process 1 of a container is the first after a restart, so that nothing of the container before it lives.
    With two worker containers in a pod the other one would be taken for that, hence the variable.
    """
    is_alone = os.getpid() == 1 and os.environ.get("RRQ_POD_SOLE_WORKER") == "1"
    return os.environ.get("RRQ_POD_UID", "") if is_alone else ""
