"""``rrq worker run``: a pod of worker processes under one supervisor."""

import asyncio
import contextlib
import os
import sys

import click

from rrq.broker.keys import Keys
from rrq.commands.options import settings_option
from rrq.commands.refusal import Refusal, harmless
from rrq.commands.weights import parse_weights
from rrq.exc import SettingsError
from rrq.pod.plan import ChildPlan, PodPlan
from rrq.pod.supervisor import Supervisor
from rrq.runtime.allotment import read_cpu_allotment
from rrq.runtime.installation import describe_other_distribution
from rrq.runtime.logs import LogFormat, configure_logging
from rrq.settings_loading import locate_settings

BURST_IS_ALONE = (
    "ERROR: --burst mode is not supported with multiple workers (--num-workers > 1). "
    "Burst mode cannot coordinate across multiple processes. Leave --num-workers out, or leave --burst out and let "
    "the processes run on."
)


@click.command("run")
@click.option("--burst", is_flag=True, help="Run the jobs that are due, in one process, then exit.")
@click.option(
    "--burst-linger",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long a burst waits for more, such as retries, before it exits.",
)
@click.option("--queue", "queues", multiple=True, help="Queue to serve; may be repeated, first come first.")
@click.option(
    "--weights",
    metavar="QUEUE=NUMBER,...",
    callback=parse_weights,
    help="Serve queues by shares instead, such as high=6,default=3,low=1; without --queue these queues are served.",
)
@settings_option
@click.option("--num-workers", type=int, help="Worker processes. Default: one per allotted CPU.")
@click.option(
    "--http",
    metavar="HOST:PORT",
    envvar="RRQ_WORKER_HTTP",
    help="Serve /livez, /readyz, /startupz and /metrics there. [env: RRQ_WORKER_HTTP]",
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "json", "text"]),
    default="auto",
    envvar="RRQ_LOG_FORMAT",
    help="auto is text on a terminal, else JSON. [env: RRQ_LOG_FORMAT]",
)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], case_sensitive=False),
    default="INFO",
    envvar="RRQ_LOG_LEVEL",
    help="The least that is worth a line. [env: RRQ_LOG_LEVEL]",
)
@click.option("--log-context", is_flag=True, help="Put worker id and queues on every log line.")
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

    SIGTERM and SIGINT let running jobs end first; a second one hurries. SIGHUP replaces the processes one
    after the other, so that new code is loaded.
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
    try:
        pod = Supervisor(PodPlan(processes, child, http), say=_say, say_error=_say_error)
        code = asyncio.run(pod.run())
    except SettingsError as error:
        raise Refusal(f"ERROR: {error}") from error
    sys.exit(code)


def _say(message: str) -> None:
    # A reader that has gone, such as head, must not bring the workers down.
    with contextlib.suppress(OSError):
        click.echo(message)


def _say_error(message: str) -> None:
    with contextlib.suppress(OSError):
        click.echo(harmless(message), err=True)


def _decide_queues(queues: tuple[str, ...], weights: dict[str, float] | None) -> tuple[str, ...]:
    """Return the queues to serve; a weight of any other is most likely a slip of the pen."""
    if not queues or not weights:
        return queues or tuple(weights or ())
    short = Keys().queue_name
    served = set(map(short, queues))
    if unserved := [name for name in weights if short(name) not in served]:
        raise Refusal(
            f"ERROR: --weights names {', '.join(unserved)}, which --queue does not. Serve it too, or leave it out."
        )
    return queues


def _decide_processes(num_workers: int | None, *, burst: bool) -> int:
    """Return how many processes to run, and print where the number comes from."""
    if num_workers is not None and num_workers <= 0:
        raise Refusal("ERROR: --num-workers must be a positive integer.")
    if burst and num_workers is not None and num_workers > 1:
        raise Refusal(BURST_IS_ALONE)
    if num_workers is not None:
        processes, source = num_workers, "--num-workers"
    elif burst:
        processes, source = 1, "--burst"
    else:
        allotment = read_cpu_allotment()
        processes, source = allotment.processes, allotment.source
    _say(f"Starting {processes} worker {'process' if processes == 1 else 'processes'} ({source}).")
    return processes
