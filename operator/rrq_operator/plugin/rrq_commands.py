"""Runs commands of ``rrq`` on the Redis of a pool.

They take their settings by dotted path, so the settings of the pool get one: that of ``chosen`` below.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any

import click

from rrq.settings import RRQSettings
from rrq.settings_loading import ENVIRONMENT_WINS
from rrq_operator.plugin.options import Access
from rrq_operator.plugin.pool_store import PoolStore, open_pool_store

chosen: RRQSettings | None = None


def run_rrq_command(command: click.Command, settings: RRQSettings, **options: Any) -> None:
    """Call a command of ``rrq`` with options by the names of its parameters."""
    global chosen
    # Set for workers; here the variables of a shell must not win over the pool.
    os.environ[ENVIRONMENT_WINS] = "0"
    chosen = settings
    assert command.callback is not None
    command.callback(**options, settings_path=f"{__name__}.chosen")


def run_on_pool(
    command: click.Command,
    pool_name: str,
    access: Access,
    redis_url: str | None,
    choose: Callable[[PoolStore], Mapping[str, Any]] = lambda _: {},
    **options: Any,
) -> None:
    """Call a command of ``rrq`` on the Redis of a pool; ``choose`` adds options that depend on the pool."""

    async def look() -> tuple[RRQSettings, Mapping[str, Any]]:
        async with open_pool_store(pool_name, access, redis_url) as pool_store:
            return pool_store.store.settings, choose(pool_store)

    settings, chosen_options = asyncio.run(look())
    run_rrq_command(command, settings, **chosen_options, **options)
