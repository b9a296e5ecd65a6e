"""What a supervisor does when it is process 1 of a container."""

import contextlib
import ctypes
import os

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of processes that a child leaves behind, as process 1 would; Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reborn_pod_uid() -> str:
    """Return the uid of the pod if all its earlier workers are certainly dead, else ''.

    Process 1 is the first process of a restarted container, so nothing of the earlier container is alive. In a pod with
    two worker containers the workers of the other one may be alive, hence the variable.
    """
    is_alone = os.getpid() == 1 and os.environ.get("RRQ_POD_SOLE_WORKER") == "1"
    return os.environ.get("RRQ_POD_UID", "") if is_alone else ""
