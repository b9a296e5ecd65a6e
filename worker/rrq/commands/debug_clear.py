"""``rrq debug clear``: delete keys by pattern."""

from collections.abc import Sequence

import click

from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_line
from rrq.commands.progress import showing_progress
from rrq.commands.redis_access import run_with_store
from rrq.inspect.jobs import find_keys_like, in_batches
from rrq.store import JobStore

_BATCH = 500


@click.command("clear")
@click.option("--confirm", "is_confirmed", is_flag=True, help="Do not ask.")
@click.option(
    "--pattern",
    default="test_*",
    show_default=True,
    help="Pattern of whole Redis keys; 'rrq:job:test_*' matches generated jobs.",
)
@settings_option
@json_option
def debug_clear(is_confirmed: bool, pattern: str, settings_path: str | None, as_json: bool) -> None:
    """Delete all keys that match a pattern, whatever they hold."""
    keys = run_with_store(settings_path, lambda store: _find(store, pattern))
    if not keys:
        _tell(as_json, f"No keys found matching pattern: {pattern}", 0, 0)
        return
    if not as_json:
        print_line(f"Found {len(keys)} keys matching pattern: {pattern}")
    # The question goes to stderr, where it cannot spoil JSON.
    if not is_confirmed and not click.confirm(f"Delete {len(keys)} keys?", err=True):
        _tell(as_json, "Deletion cancelled", len(keys), 0)
        return
    deleted = run_with_store(settings_path, lambda store: _delete(store, keys))
    _tell(as_json, f"Deleted {deleted} keys", len(keys), deleted)


async def _find(store: JobStore, pattern: str) -> list[bytes]:
    return sorted({key async for key in find_keys_like(store, pattern)})


async def _delete(store: JobStore, keys: Sequence[bytes]) -> int:
    deleted = 0
    with showing_progress("Deleting", len(keys)) as advance:
        for batch in in_batches(keys, _BATCH):
            # UNLINK frees the memory in the background, however large the value.
            deleted += int(await store.redis.unlink(*batch))
            advance(len(batch))
    return deleted


def _tell(as_json: bool, message: str, found: int, deleted: int) -> None:
    if as_json:
        print_json({"found": found, "deleted": deleted})
    else:
        print_line(message)
