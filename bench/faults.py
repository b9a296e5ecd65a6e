"""Strike rrq and its peers with the same faults and count what each of them loses.

Arguments in, trials run, results out: ``bench/results/faults.json`` and ``docs/fault-comparison.md``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults_redis import DurableRedis
from faults_report import build_page, build_tables
from faults_roster import CONTENDERS
from faults_trial import FAULTS, JOBS, KILL, Interrupted, Outcome, Trial
from harness import BENCH, BenchError

RESULTS = BENCH / "results" / "faults.json"
PAGE = BENCH.parent / "docs" / "fault-comparison.md"
WATCH_SECONDS = 90.0
# The longest default among the peers is ten minutes of silence, and then a poll or two.
LONG_WATCH_SECONDS = 720.0
TRIES = 3
ROUNDS, LONG_WATCH = "rounds", "long_watch"
PARTS = (ROUNDS, LONG_WATCH)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [contender.name for contender in CONTENDERS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--faults", default=",".join(FAULTS), help="separated by commas")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--watch-seconds", type=float, default=WATCH_SECONDS)
    parser.add_argument("--page", action="store_true", help="write the page anew from the last results")
    parser.add_argument("--write", action="store_true", help="write the files of a partial run too")
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="separated by commas; others stay as they were"
    )
    given = parser.parse_args()
    given.faults = given.faults.split(",")
    unknown = set(given.faults) - set(FAULTS)
    if unknown:
        parser.error(f"unknown fault {', '.join(sorted(unknown))}; known: {', '.join(FAULTS)}")
    given.parts = given.parts.split(",")
    if not set(given.parts) <= set(PARTS):
        parser.error(f"the parts are {' and '.join(PARTS)}")
    return given


def run_trial(trial: Trial, what: str, failures: list[str]) -> dict[str, Any] | None:
    """Return the outcome; a trial that could not be made, for one because the jobs were too quick, is tried again."""
    for _ in range(TRIES):
        try:
            outcome = trial.run()
        except Interrupted:
            return None
        except (BenchError, OSError) as error:
            failures.append(f"{what}: {error}")
            print(f"  {what}: could not be made: {str(error).splitlines()[0]}", flush=True)
        else:
            print(f"  {what}: {describe(outcome)}", flush=True)
            return asdict(outcome)
    return None


def describe(outcome: Outcome) -> str:
    verdict = outcome.verdict
    return (
        f"{verdict['cut']} in hand, {verdict['unfinished']} not finished, "
        f"{verdict['effects_repeated']} effects repeated, {outcome.processes_after} processes at work"
    )


def run_rounds(
    given: argparse.Namespace, failures: list[str], is_over: threading.Event
) -> list[dict[str, Any]]:
    """Run the contenders one after the other; the faults of each side by side, as they mostly wait."""
    outcomes = []
    chosen = [contender for contender in CONTENDERS if not given.only or contender.name in given.only]
    for number in range(1, given.rounds + 1):
        for contender in chosen:
            begun = time.monotonic()
            print(f"{contender.label}, round {number} of {given.rounds}:", flush=True)
            with ThreadPoolExecutor(len(given.faults)) as beside:
                trials = [
                    beside.submit(
                        run_trial, Trial(contender, fault, given.watch_seconds, is_over), fault, failures
                    )
                    for fault in given.faults
                ]
            outcomes += [trial.result() for trial in trials]
            print(f"  took {time.monotonic() - begun:.0f} s", flush=True)
    return [outcome for outcome in outcomes if outcome is not None]


def start_long_watch(
    given: argparse.Namespace, beside: ThreadPoolExecutor, failures: list[str], is_over: threading.Event
) -> list[Future[dict[str, Any] | None]]:
    """Kill one worker process of every contender, and return once there is nothing left but to watch."""
    print("long watch after kill -9: starting", flush=True)
    waiting = []
    for contender in CONTENDERS:
        if given.only and contender.name not in given.only:
            continue
        trial = Trial(contender, KILL, LONG_WATCH_SECONDS, is_over, is_long=True)
        waiting.append(beside.submit(run_trial, trial, f"{contender.label}, long watch", failures))
        trial.is_quiet.wait()
    return waiting


def merge_outcomes(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the new outcomes, and the earlier ones of what was not run this time."""
    renewed = {(outcome["contender"], outcome["fault"]) for outcome in now}
    return [one for one in before if (one["contender"], one["fault"]) not in renewed] + now


def read_machine() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="rrq-faults-") as folder:
        redis = DurableRedis(Path(folder))
        redis.start()
        try:
            version = redis.version()
        finally:
            redis.kill()
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "redis": version,
    }


def main() -> int:
    given = parse_arguments()
    if given.page:
        PAGE.write_text(build_page(json.loads(RESULTS.read_text())))
        return 0
    # The trials then end by themselves, and with them the servers and workers they started.
    is_over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    failures: list[str] = []
    try:
        for contender in CONTENDERS:
            contender.python()
        machine = read_machine()
        with ThreadPoolExecutor(len(CONTENDERS)) as beside:
            waiting = []
            if LONG_WATCH in given.parts:
                waiting = start_long_watch(given, beside, failures, is_over)
            outcomes = run_rounds(given, failures, is_over) if ROUNDS in given.parts else []
            later = [outcome for outcome in (future.result() for future in waiting) if outcome is not None]
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if is_over.is_set():
        return 130
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results |= {"machine": machine, "jobs": JOBS, "long_watch_seconds": LONG_WATCH_SECONDS}
    if not given.only and set(given.faults) == set(FAULTS) and set(given.parts) == set(PARTS):
        # It is written by hand where the results are of several runs.
        results.pop("remark", None)
    if ROUNDS in given.parts:
        results |= {
            "rounds": given.rounds,
            "watch_seconds": given.watch_seconds,
            "outcomes": merge_outcomes(results.get("outcomes", []), outcomes),
            "failures": failures,
        }
    if LONG_WATCH in given.parts:
        results["long_watch"] = merge_outcomes(results.get("long_watch", []), later)
    print("\n" + build_tables(results))
    # A partial run is mostly a trial of the bench itself.
    if given.write or (not given.only and set(given.faults) == set(FAULTS)):
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
        PAGE.write_text(build_page(results))
    contenders = len(given.only or CONTENDERS)
    expected = given.rounds * len(given.faults) * contenders if ROUNDS in given.parts else 0
    expected += contenders if LONG_WATCH in given.parts else 0
    return 0 if len(outcomes) + len(later) == expected else 1


if __name__ == "__main__":
    sys.exit(main())
