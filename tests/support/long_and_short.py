"""Which process runs which test, so that long tests wait while short ones compute.

Long tests come first and mostly wait; short ones come last and mostly compute. Handed out in that order alone, the
processors are idle first and too few afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]  # it ships no types

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

# With fewer, one process would be left for all that is long.
FEWEST_PROCESSES = 3


class LongAndShort(LoadGroupScheduling):  # type: ignore[misc]  # for the same reason
    """As `--dist loadgroup`, except that one of the processes begins at the end; they meet in the middle."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        processes = self.nodes
        if len(processes) >= FEWEST_PROCESSES and node is processes[-1]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
