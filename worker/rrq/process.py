"""Runs a worker in a process of its own, with an event loop and a garbage collector tuned for it."""

import gc
from collections.abc import Coroutine
from typing import Any

import uvloop

from rrq.worker import RRQWorker

# Jobs in hand are many small objects that live for milliseconds. At Python's default of 700 they start a collection
# several hundred times a second, and each of these finds nothing.
_GC_THRESHOLD = 20_000


def tune_garbage_collector() -> None:
    """Collect less often, and never look again at objects that exist from the start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 50)


def run_tuned(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end with uvloop, as the only work of this process."""
    tune_garbage_collector()
    uvloop.run(main)


def run_worker(worker: RRQWorker) -> None:
    """Run a worker to its end, as the only work of this process."""
    run_tuned(worker.run())
