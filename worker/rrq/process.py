"""How a process that only runs a worker is set up, and how it runs one."""

import gc
from collections.abc import Coroutine
from typing import Any

import uvloop

from rrq.worker import RRQWorker

# Jobs in hand are many small objects that live for milliseconds. At Python's default of 700 they set
# off a collection several hundred times a second, each of which finds nothing.
_GC_THRESHOLD = 20_000


def tune_garbage_collector() -> None:
    """Collect less often, and never look again at what was there from the start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 50)


def run_tuned(main: Coroutine[Any, Any, None]) -> None:
    """Run to its end what a process was started for."""
    tune_garbage_collector()
    uvloop.run(main)


def run_worker(worker: RRQWorker) -> None:
    """Run a worker to its end in a process of its own."""
    run_tuned(worker.run())
