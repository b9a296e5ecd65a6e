"""`make chaos`: pods and producers under load while processes, networks, clocks and Redis are made to fail.

Every job is entered into a ledger outside Redis. At the end each acknowledged job must have had its effect, every
attempt that ran again must have a cause among the faults that were really injected, and the times must keep their
bars. The seed is printed first; the same seed draws the same faults.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from chaos_config import full_config, quick_config, short_config
from chaos_environment import ChaosEnvironment
from chaos_report import show, write_documents, write_json
from evidence import MAIN, SENTINEL
from fault_plan import KINDS, draw_plan
from judged_times import BACKLOG_SECONDS_OF_LOAD, build_bars
from verdict import judge

if TYPE_CHECKING:
    from chaos_config import ChaosConfig
    from evidence import Evidence
    from fault_plan import PlannedFault
    from verdict import Report

# A replica is what the part with Sentinel has; a fail-over forgets what only the disk of the old master knows.
DURABLE_PARTS = {"replica": [SENTINEL], "fsync": [MAIN]}
ROOT = Path(__file__).parents[2]
OUTAGE_KINDS = sum(kind.is_outage for kind in KINDS)
WARM_UP_SECONDS, QUICK_WARM_UP_SECONDS = 3.0, 1.0
CALM_PATIENCE_SECONDS = 30.0
PROGRESS_SECONDS = 5.0
STILL_MOVING_SECONDS = 30.0
# Producers that Redis refused for a while need a little longer for the same number of jobs.
PATIENCE_FACTOR = 1.3


def build_plan(config: ChaosConfig) -> list[PlannedFault]:
    size = (config.seconds, config.faults, config.lease_seconds, config.most_outages)
    return draw_plan(config.seed, *size, is_quick=config.is_quick)


async def run(config: ChaosConfig, folder: Path) -> tuple[Evidence, Report]:
    """Run from the first job to the judgement."""
    plan = build_plan(config)
    environment = ChaosEnvironment(config, folder)
    progress: asyncio.Task[None] | None = None
    try:
        for reason in environment.left_out:
            say(f"left out: {reason}")
        await environment.start()
        capacity = await environment.measure_capacity()
        say(
            f"{config.pods + (not config.is_quick)} pods are up and do {capacity:.0f} jobs a second; "
            f"the load is {environment.jobs_per_second:.0f} a second, at most half of that"
        )
        await environment.start_load()
        progress = asyncio.create_task(_tell_progress(environment))
        await asyncio.sleep(QUICK_WARM_UP_SECONDS if config.is_quick else WARM_UP_SECONDS)
        await _wait_for_calm(environment)
        begun_at = time.monotonic()
        for fault in plan:
            await asyncio.sleep(max(0.0, begun_at + fault.at_seconds - time.monotonic()))
            # Where the run itself comes late, so does all behind it: a fault keeps the time that is its own.
            begun_at = max(begun_at, time.monotonic() - fault.at_seconds)
            environment.inject(fault)
        await environment.faults_are_over()
        await _wait_for_load(environment, begun_at)
        await environment.end_load()
        say("no more jobs come in; waiting for the rest to end")
        await _settle(environment)
        await environment.watches_are_over()
        evidence = await environment.gather()
    finally:
        if progress is not None:
            progress.cancel()
        await environment.close()
    durable_parts = frozenset(DURABLE_PARTS.get(config.durability, ()))
    return evidence, judge(evidence, build_bars(config.lease_seconds, config.room, durable_parts))


async def _wait_for_calm(environment: ChaosEnvironment) -> None:
    """Begin with no backlog, which the first faults would be blamed for: everybody has just started."""
    patient_until = time.monotonic() + CALM_PATIENCE_SECONDS
    while time.monotonic() < patient_until:
        backlog = environment.main.samples[-1].backlog if environment.main.samples else None
        if backlog is not None and backlog <= environment.jobs_per_second * BACKLOG_SECONDS_OF_LOAD:
            return
        await asyncio.sleep(0.5)
    say("jobs wait already before the first fault")


async def _wait_for_load(environment: ChaosEnvironment, begun_at: float) -> None:
    config = environment.config
    latest_at = begun_at + config.seconds * (PATIENCE_FACTOR if config.jobs else 1.0)
    while time.monotonic() < latest_at:
        if config.jobs and environment.read_ledgers()[0] >= config.jobs:
            return
        await asyncio.sleep(min(1.0, max(0.0, latest_at - time.monotonic())))


async def _settle(environment: ChaosEnvironment) -> None:
    """Wait until nobody has a job left and every poison is where it belongs, or until nothing moves any more."""
    patient_until = time.monotonic() + environment.config.settle_seconds
    fewest = environment.read_ledgers()[1]
    while time.monotonic() < patient_until:
        is_at_work = any([await part.has_work() for part in environment.parts])
        if not is_at_work and await environment.main.has_buried(environment.poison()):
            return
        await asyncio.sleep(0.5)
        _, open_jobs = environment.read_ledgers()
        if open_jobs < fewest:
            # A backlog that a slow machine works off is late, which is judged elsewhere, and not lost.
            fewest = open_jobs
            patient_until = max(patient_until, time.monotonic() + STILL_MOVING_SECONDS)


async def _tell_progress(environment: ChaosEnvironment) -> None:
    begun_at = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        jobs, open_jobs = environment.read_ledgers()
        backlog = environment.main.samples[-1].backlog if environment.main.samples else None
        say(
            f"{time.monotonic() - begun_at:5.0f} s   {jobs:6} jobs, {open_jobs:4} open, "
            f"{'?' if backlog is None else backlog:>4} waiting   {len(environment.faults):3} of {environment.config.faults} faults"
        )


def say(text: str) -> None:
    print(text, flush=True)


def parse_arguments(arguments: list[str]) -> tuple[ChaosConfig, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--full", action="store_true", help="100,000 jobs, 500 faults, the default lease; writes docs"
    )
    size.add_argument(
        "--quick", action="store_true", help="30 seconds, without the kinds that need root, Sentinel or time"
    )
    parser.add_argument("--seed", type=int, help="draw the same faults as an earlier run")
    parser.add_argument("--seconds", type=float, help="how long the load lasts")
    parser.add_argument("--jobs", type=int, help="how many jobs the load is, instead of how long it lasts")
    parser.add_argument("--faults", type=int, help="how many faults to inject")
    parser.add_argument("--outages", type=int, help="how many of them may take Redis away from everybody")
    parser.add_argument("--lease", type=float, help="worker_lease_seconds")
    parser.add_argument("--room", type=float, help="stretch the bars on times by this factor")
    parser.add_argument(
        "--durability",
        choices=["server", "replica", "fsync"],
        help="what producers wait for, where it can be had",
    )
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument(
        "--docs", type=Path, help="write the report below this folder, not below docs or dist/chaos"
    )
    parser.add_argument("--plan", action="store_true", help="print the faults and do nothing")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.randrange(1_000_000)
    config = (full_config if given.full else quick_config if given.quick else short_config)(seed)
    if given.full and given.faults is not None:
        # As many as there would be in the same share of the whole run, and one of each kind at least.
        config = replace(
            config, most_outages=max(OUTAGE_KINDS, config.most_outages * given.faults // config.faults)
        )
    if given.jobs is not None:
        config = replace(config, jobs=given.jobs, seconds=given.jobs / config.all_jobs_per_second)
    options = {
        "seconds": given.seconds,
        "faults": given.faults,
        "most_outages": given.outages,
        "lease_seconds": given.lease,
        "room": given.room,
        "durability": given.durability or None,
    }
    return replace(config, **{name: value for name, value in options.items() if value is not None}), given


def main() -> int:
    config, given = parse_arguments(sys.argv[1:])
    say(
        f"seed {config.seed}: {config.faults} faults within {config.seconds:.0f} s, lease {config.lease_seconds:g} s"
    )
    if given.plan:
        for fault in build_plan(config):
            say(
                f"{fault.number:4} {fault.at_seconds:8.1f} s  {fault.kind:34} rank {fault.rank:.2f} size {fault.size:.2f}"
            )
        return 0
    folder = Path(tempfile.mkdtemp(prefix="rrq-chaos-"))
    try:
        evidence, report = asyncio.run(run(config, folder))
        say(show(report))
        if given.json is not None:
            write_json(given.json, config, evidence, report)
        # The page of the project tells of a full run only; any other has its own where git does not look.
        documents = given.docs or ROOT / ("docs" if given.full and not given.jobs else "dist/chaos")
        write_documents(documents, config, evidence, report)
        say(f"report, figures and plot are in {documents}")
        if report.violations:
            kept = Path(tempfile.gettempdir()) / f"rrq-chaos-{config.seed}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(folder, kept)
            write_json(kept / "report.json", config, evidence, report)
            say(f"ledgers and logs of the pods are kept in {kept}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
