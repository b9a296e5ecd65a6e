"""``rrq dlq delete``: forget dead letters for good."""

import click

from rrq.commands.actor import as_option
from rrq.commands.dlq_choice import LetterChoice, find_letters
from rrq.commands.formatting import printable
from rrq.commands.job_choice import JobFilter, dlq_name_option
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_line
from rrq.commands.redis_access import run_with_store
from rrq.commands.refusal import Refusal
from rrq.store import JobStore


@click.command("delete")
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@dlq_name_option
@click.option("--queue", "queue_name", help="Only jobs that came from this queue.")
@click.option("--function", "function_name", help="Only jobs of this function.")
@click.option("--all", "take_all", is_flag=True, help="Delete every job on the list.")
@click.option("--dry-run", is_flag=True, help="Only say how many would be deleted.")
@click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask.")
@as_option
@settings_option
@json_option
def dlq_delete(
    job_ids: tuple[str, ...],
    dlq_name: str | None,
    queue_name: str | None,
    function_name: str | None,
    take_all: bool,
    dry_run: bool,
    is_confirmed: bool,
    actor: str,
    settings_path: str | None,
    as_json: bool,
) -> None:
    """Delete dead letters for good, with arguments, error and history.

    The number is shown first, and asked for, unless --yes is given.
    """
    wanted = JobFilter(queue_name, function_name)
    if not take_all and wanted.is_open and not job_ids:
        raise Refusal("ERROR: Say which: ids, --queue, --function, or --all.")

    async def find(store: JobStore) -> tuple[str, list[str]]:
        name = store.keys.dlq_name(dlq_name or store.settings.default_dlq_name)
        letters = await find_letters(store, LetterChoice(name, wanted, job_ids))
        return name, [letter.job_id for letter in letters]

    name, found = run_with_store(settings_path, find)
    count, deleted = len(found), 0
    if dry_run or not found:
        message = (
            f"DRY RUN: Would delete {count} jobs" if dry_run else f"No matching jobs found in DLQ: {name}"
        )
    # The question goes to stderr, where it cannot spoil JSON.
    elif is_confirmed or click.confirm(printable(f"Delete {count} jobs of DLQ {name} for good?"), err=True):
        deleted = run_with_store(settings_path, lambda store: store.delete_dead_letters(name, found, actor))
        message = f"Deleted {deleted} jobs from DLQ '{name}'"
    else:
        message = "Nothing was deleted"
    if as_json:
        print_json({"dlq": name, "dry_run": dry_run, "matching": count, "deleted": deleted, "job_ids": found})
    else:
        print_line(message)
