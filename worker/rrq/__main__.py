"""The program ``rrq``, which is ``python -m rrq`` as well: asks for its extra, then loads the command line."""

import os
import signal
import sys

if os.getpid() == 1:
    # The kernel drops signals that process 1 has no handler for. Until the supervisor has its own, a pod that
    # is told to end while it still loads simply ends; nothing has begun yet. Hence before the other imports.
    # Not by an exception, which would be lost where Python lets none pass, as while it collects garbage. A burst
    # that has not run is not done.
    for _number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(_number, lambda *_: os._exit(os.EX_TEMPFAIL if "--burst" in sys.argv else 0))

from rrq.runtime.installation import require_extra


def main() -> None:
    require_extra("rrq", "worker")
    from rrq.cli import rrq

    rrq(prog_name="rrq")


if __name__ == "__main__":
    main()
