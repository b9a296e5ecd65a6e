"""``rrq limit``: how much of a function or a queue may run, in the whole fleet."""

import click

from rrq.commands.actor import as_option
from rrq.commands.flow_words import build_limit_table, describe_limit, limit_json
from rrq.commands.limit_options import limit_options
from rrq.commands.options import json_option, settings_option
from rrq.commands.output import print_json, print_line, print_table
from rrq.commands.redis_access import run_with_store
from rrq.flow import Limit
from rrq.store import JobStore


@click.group()
def limit() -> None:
    """Limit how many jobs run at once, or start in a time."""


@limit.command("list")
@settings_option
@json_option
def limit_list(settings_path: str | None, as_json: bool) -> None:
    """List the limits, what runs under them, and how many jobs wait for them."""
    state = run_with_store(settings_path, JobStore.read_flow)
    if as_json:
        print_json([limit_json(state, target) for target in sorted(state.limits)])
    elif not state.limits:
        print_line("No limits")
    else:
        print_table(build_limit_table(state))


@limit.command("set")
@click.argument("target", metavar="TARGET")
@limit_options
@as_option
@settings_option
def limit_set(target: str, wanted: Limit, actor: str, settings_path: str | None) -> None:
    """Limit function:NAME or queue:NAME, whatever its application declares.

    \b
    rrq limit set function:send --concurrency 5
    rrq limit set function:send --per-key 1 --key tenant
    rrq limit set queue:mail --rate 100 --per 60 --burst 20

    It holds at once and replaces what was set before as a whole; `rrq limit remove` takes it back.
    """
    run_with_store(settings_path, lambda store: store.set_limit(target, wanted, actor))
    print_line(f"{target}: {describe_limit(wanted)}. `rrq limit remove {target}` takes that back.")


@limit.command("remove")
@click.argument("target", metavar="TARGET")
@as_option
@settings_option
def limit_remove(target: str, actor: str, settings_path: str | None) -> None:
    """Take back a limit that was set by hand; what the application declares holds again."""

    async def remove(store: JobStore) -> tuple[bool, Limit | None]:
        was_set = await store.set_limit(target, None, actor)
        return was_set, (await store.read_flow()).declared.get(store.normalise_target(target))

    was_set, declared = run_with_store(settings_path, remove)
    now = (
        "no limit holds" if declared is None else f"its application's limit holds: {describe_limit(declared)}"
    )
    print_line(f"{target}: {now}." if was_set else f"{target} had no limit set by hand; {now}.")
