"""One child in the eyes of the supervisor, where the timing matters: real processes, no pod around them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING

import psutil

from rrq.pod.child_process import ChildProcess
from rrq.pod.plan import ChildPlan
from rrq.pod.restarts import End
from waiting import eventually

if TYPE_CHECKING:
    from rrq.pod.channel import Message

PLAN = ChildPlan(channel=-1, settings_path="no_such_module.settings", log_format="json")


async def test_signalling_a_dead_child_does_not_collect_it() -> None:
    child = ChildProcess(0, PLAN, lambda *_: None)
    child.asked = End.RETIRED
    assert not child.has_run_its_jobs(), "it was told to leave, and is not told again"
    assert not child.has_outgrown_memory()
    os.kill(child.pid, signal.SIGKILL)
    await eventually(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, 30, "it lives")
    child.terminate(time.monotonic() + 5)
    child.kill()
    assert os.waitpid(child.pid, os.WNOHANG)[0] == child.pid
    await child.close(-9)
    child.terminate(time.monotonic())  # the id may be somebody else's by now


async def test_a_child_is_closed_although_reading_its_messages_failed() -> None:
    def fail(child: ChildProcess, message: Message) -> None:
        raise BrokenPipeError("nobody reads what is printed")

    child = ChildProcess(0, PLAN, fail)
    _, status = await asyncio.to_thread(os.waitpid, child.pid, 0)
    await child.close(os.waitstatus_to_exitcode(status))
    assert child.failure is not None
    assert "no_such_module" in child.failure
