"""``rrq worker``: run a pod of worker processes under one supervisor, or one worker that follows the source code."""

import asyncio
import contextlib
import os
import sys

import click

from rrq.broker.keys import Keys
from rrq.commands.lazy_group import LazyGroup
from rrq.commands.options import log_format_option, settings_option
from rrq.commands.refusal import Refusal, harmless
from rrq.pod.plan import ChildPlan, PodPlan
from rrq.pod.supervisor import Supervisor
from rrq.runtime.allotment import read_cpu_allotment
from rrq.runtime.installation import describe_other_distribution
from rrq.runtime.logs import LogFormat, configure_logging
from rrq.settings import RRQSettings
from rrq.settings_loading import locate_settings

_COMMANDS = {"run": "rrq.commands.worker:worker_run", "watch": "rrq.commands.worker_watch:worker_watch"}
_WEIGHTS_EXAMPLE = "high=6,default=3,low=1"


@click.group(cls=LazyGroup, places=_COMMANDS)
def worker() -> None:
    """Manage RRQ workers (run, watch)."""


def _parse_weights(_: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, float] | None:
    """Return the weights by queue, in the order given; None without the option."""
    if text is None:
        return None
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.rpartition("="))
        if not name or not equals or not number:
            raise click.BadParameter(
                f"{part.strip()!r} is not QUEUE=NUMBER; write {_WEIGHTS_EXAMPLE}.", param=parameter
            )
        if name in weights:
            raise click.BadParameter(f"queue {name!r} has two weights.", param=parameter)
        try:
            weights[name] = float(number)
        except ValueError:
            raise click.BadParameter(
                f"the weight of queue {name!r} must be a number, not {number!r}.", param=parameter
            ) from None
    try:
        RRQSettings.check_weights(weights)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param=parameter) from error
    return weights


@click.command("run")
@click.option("--burst", is_flag=True, help="Run the due jobs in one process, then exit.")
@click.option(
    "--burst-linger",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Seconds that a burst waits for more jobs, such as retries, before it exits.",
)
@click.option(
    "--queue", "queues", multiple=True, help="Queue to serve; may be repeated. Earlier queues come first."
)
@click.option(
    "--weights",
    metavar="QUEUE=NUMBER,...",
    callback=_parse_weights,
    help="Serve queues by shares instead, such as high=6,default=3,low=1. Without --queue the worker serves these queues.",
)
@settings_option
@click.option("--num-workers", type=int, help="Number of worker processes. Default: one per allotted CPU.")
@click.option(
    "--http",
    metavar="HOST:PORT",
    envvar="RRQ_WORKER_HTTP",
    help="Serve /livez, /readyz, /startupz and /metrics at this address. [env: RRQ_WORKER_HTTP]",
)
@log_format_option
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], case_sensitive=False),
    default="INFO",
    envvar="RRQ_LOG_LEVEL",
    help="Lowest level that is logged. [env: RRQ_LOG_LEVEL]",
)
@click.option("--log-context", is_flag=True, help="Add worker id and queues to every log line.")
def worker_run(
    burst: bool,
    burst_linger: float | None,
    queues: tuple[str, ...],
    weights: dict[str, float] | None,
    settings_path: str | None,
    num_workers: int | None,
    http: str | None,
    log_format: LogFormat,
    log_level: str,
    log_context: bool,
) -> None:
    """Run worker processes until a signal ends them.

    SIGTERM and SIGINT start a graceful shutdown, which lets running jobs end; a second signal ends it sooner. SIGHUP
    replaces the processes one after the other, to load new code.
    """
    served = _decide_queues(queues, weights)
    processes = _decide_processes(num_workers, burst=burst)
    location = locate_settings(settings_path)
    if processes > 1 and location.path is None:
        raise Refusal(
            f"ERROR: {processes} worker processes each load the settings, so they need --settings or "
            "RRQ_SETTINGS, such as shop.jobs.settings."
        )
    named = f" {location.path}" if location.path is not None else ""
    _say(f"Settings{named} from {location.source}.")
    if warning := describe_other_distribution():
        _say_error(f"WARNING: {warning}")
    child = ChildPlan(
        channel=-1,
        settings_path=location.path,
        queues=served,
        weights=weights,
        burst=burst,
        burst_linger_seconds=burst_linger,
        log_format=log_format,
        log_level=log_level.upper(),
        log_context=log_context,
    )
    configure_logging(log_format, log_level.upper(), {"supervisor": os.getpid()} if log_context else None)
    pod = Supervisor(PodPlan(processes, child, http), say=_say, say_error=_say_error)
    sys.exit(asyncio.run(pod.run()))


def _say(message: str) -> None:
    # A reader that has closed the pipe, such as head, must not end the workers.
    with contextlib.suppress(OSError):
        click.echo(message)


def _say_error(message: str) -> None:
    with contextlib.suppress(OSError):
        click.echo(harmless(message), err=True)


def _decide_queues(queues: tuple[str, ...], weights: dict[str, float] | None) -> tuple[str, ...]:
    """Return the queues to serve. Raises Refusal for the weight of another queue, whose name is most likely misspelled."""
    if not queues or not weights:
        return queues or tuple(weights or ())
    short = Keys().queue_name
    served = set(map(short, queues))
    if unserved := [name for name in weights if short(name) not in served]:
        raise Refusal(
            f"ERROR: --weights names {', '.join(unserved)}, which --queue does not. Add --queue, or remove the weight."
        )
    return queues


def _decide_processes(num_workers: int | None, *, burst: bool) -> int:
    """Return how many processes to run; prints the number and where it comes from."""
    if num_workers is not None and num_workers <= 0:
        raise Refusal("ERROR: --num-workers must be a positive integer.")
    if burst and num_workers is not None and num_workers > 1:
        raise Refusal(
            "ERROR: --burst mode is not supported with multiple workers (--num-workers > 1). Burst mode cannot coordinate "
            "across multiple processes. Remove --num-workers, or remove --burst to run until a signal."
        )
    if num_workers is not None:
        processes, source = num_workers, "--num-workers"
    elif burst:
        processes, source = 1, "--burst"
    else:
        allotment = read_cpu_allotment()
        processes, source = allotment.processes, allotment.source
    _say(f"Starting {processes} worker {'process' if processes == 1 else 'processes'} ({source}).")
    return processes
