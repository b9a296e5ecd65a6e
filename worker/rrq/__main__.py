"""The program ``rrq``, also ``python -m rrq``: checks that its extra is installed, then loads the command line."""

import os
import signal
import sys

if os.getpid() == 1:
    # The kernel drops signals for which process 1 has no handler. With these handlers, a pod that gets a signal while it
    # loads ends at once, because nothing has started yet; the supervisor installs its own later. They are set before the
    # other imports, and do not raise, because Python drops exceptions in some places, such as garbage collection. A burst
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
