"""``rrq dlq edit``: mend the arguments of a dead letter, and try it again."""

from dataclasses import dataclass
from typing import Any

import click

from rrq.commands.actor import as_option
from rrq.commands.argument_options import args_option, kwargs_option
from rrq.commands.formatting import format_value
from rrq.commands.job_choice import dlq_name_option, read_chosen_job, short_queue_name
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_line
from rrq.commands.redis_access import run_with_store
from rrq.commands.refusal import Refusal
from rrq.inspect.dead_letters import requeue_dead_letters
from rrq.jobs.request import encode_arguments
from rrq.jobs.stored_job import StoredJob
from rrq.store import JobStore


@dataclass(frozen=True)
class _Edit:
    job_id: str
    dlq_name: str | None
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    requeues: bool
    actor: str


@click.command("edit")
@click.argument("job_id", metavar="ID")
@args_option
@kwargs_option
@click.option("--requeue", is_flag=True, help="Put it back into the queue that it came from.")
@dlq_name_option
@as_option
@settings_option
@json_option
def dlq_edit(
    job_id: str,
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    requeue: bool,
    dlq_name: str | None,
    actor: str,
    settings_path: str | None,
    as_json: bool,
) -> None:
    """Change the arguments of a dead letter; what is not given stays as it is."""
    if args is None and kwargs is None:
        raise click.UsageError("Give --args, --kwargs or both.")
    edit = _Edit(job_id, dlq_name, args, kwargs, requeue, actor)
    new_args, new_kwargs, queue = run_with_store(settings_path, lambda store: _edit(store, edit))
    if as_json:
        print_json({"job_id": job_id, "job_args": new_args, "job_kwargs": new_kwargs, "requeued_to": queue})
        return
    print_line(f"Job '{job_id}' has new arguments: {format_value(new_args)} {format_value(new_kwargs)}")
    if queue is not None:
        print_line(f"Job '{job_id}' is back in queue '{queue}'")


async def _edit(store: JobStore, edit: _Edit) -> tuple[list[Any], dict[str, Any], str | None]:
    """Return the arguments as they are now, and the queue the job went to, if it did."""
    job = await read_chosen_job(store, edit.job_id)
    dlq_name = store.keys.dlq_name(edit.dlq_name or store.settings.default_dlq_name)
    args = edit.args if edit.args is not None else _kept(job, job.args, list, "--args")
    kwargs = edit.kwargs if edit.kwargs is not None else _kept(job, job.kwargs, dict, "--kwargs")
    encoded = encode_arguments(args, kwargs, job.function_name or "")
    if not await store.edit_dead_letter(dlq_name, edit.job_id, *encoded, edit.actor):
        raise Refusal(f"Job '{edit.job_id}' is not in DLQ {dlq_name}, so its arguments stay as they are")
    if not edit.requeues:
        return args, kwargs, None
    queue = short_queue_name(store, job)
    if not await requeue_dead_letters(store, dlq_name, queue, [edit.job_id]):
        raise Refusal(
            f"Job '{edit.job_id}' has new arguments, but was enqueued anew meanwhile: it was left alone"
        )
    await store.audit(
        edit.actor, "requeue", f"dlq:{dlq_name}", {"jobs": 1, "queue": queue, "ids": [edit.job_id]}
    )
    return args, kwargs, queue


def _kept(job: StoredJob, value: Any, kind: type, option: str) -> Any:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise Refusal(f"What is stored for job '{job.job_id}' cannot be read; give {option} too")
    return value
