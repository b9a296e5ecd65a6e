"""`rrq-operator local`: the same manifest, on this machine."""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from pydantic import ValidationError
from rich.console import Console

from rrq.commands.refusal import Refusal
from rrq.exc import RRQError
from rrq_operator.api.spec import Pool
from rrq_operator.local.display import Display
from rrq_operator.local.launch import find_missing_variables
from rrq_operator.local.manifest import ManifestError, read_pools
from rrq_operator.local.running import log_folder_of, redis_of, running
from rrq_operator.local.session import LocalPlan, LocalSession, PoolFailed


@click.command("local")
@click.option(
    "-f",
    "--filename",
    "path",
    required=True,
    metavar="FILE",
    help="Manifest with one or more pools; - is stdin.",
)
@click.option("--redis-url", metavar="URL", help="Use this Redis instead of that of the manifest.")
@click.option(
    "--log-folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the logs of the replicas here. Default: a temporary folder that is removed at the end.",
)
def local_command(path: str, redis_url: str | None, log_folder: Path | None) -> None:
    """Run the pools of a manifest on this machine: a replica is a supervisor process.

    The same decisions as in a cluster size them. Without a Redis in the manifest one is started, and stopped at the
    end. Ctrl+C lets running jobs end first; a second one hurries.
    """
    with _refusing(), contextlib.ExitStack() as stack:
        pools = read_pools(path)
        _tell_missing(pools)
        addresses = stack.enter_context(redis_of(pools, redis_url, click.echo))
        folder = stack.enter_context(log_folder_of(log_folder))
        display = Display(Console())
        plan = LocalPlan([*zip(pools, addresses, strict=True)], folder, keeps_logs=log_folder is not None)
        session = LocalSession(plan, display.tell)
        click.echo(f"Logs of the replicas: {folder}")
        asyncio.run(_run(session, display))


async def _run(session: LocalSession, display: Display) -> None:
    async with running(session, display) as task:
        await task


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn errors that a user can correct into one message instead of a traceback."""
    try:
        yield
    except ValidationError as error:
        # Without the values: one of them is a DSN.
        faults = "; ".join(f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors() if fault["loc"])
        raise Refusal(f"ERROR: These settings cannot work. {faults}") from error
    except (ManifestError, PoolFailed, RRQError, OSError) as error:
        raise Refusal(f"ERROR: {error}") from error


def _tell_missing(pools: Sequence[Pool]) -> None:
    for pool in pools:
        missing = find_missing_variables(pool.spec, os.environ)
        if missing:
            click.echo(
                f"Pool {pool.name} takes variables from the cluster that are not set here: {', '.join(missing)}. "
                "Export those that its jobs need.",
                err=True,
            )
