"""What ``pause``, ``resume``, ``disable``, ``enable`` and ``limit`` change in the Redis of a pool."""

from rrq.commands.flow_words import describe_hold, describe_limit
from rrq.commands.output import print_line
from rrq.flow import Limit, PauseState
from rrq_operator.plugin.options import Access
from rrq_operator.plugin.pool_store import PoolStore, open_pool_store
from rrq_operator.plugin.targets import Aim


def name_target(pool_store: PoolStore, aim: Aim) -> str:
    """Return the target as Redis knows it. Raises Refusal for a queue that the pool does not serve."""
    if aim.is_workers:
        return f"pool:{pool_store.pool.title}"
    if aim.queue_name is not None:
        return f"queue:{pool_store.choose_queues(aim.queue_name)[0]}"
    return f"function:{aim.function_name}"


async def hold(
    pool_name: str, access: Access, redis_url: str | None, aim: Aim, state: PauseState, reason: str
) -> None:
    async with open_pool_store(pool_name, access, redis_url) as pool_store:
        target = name_target(pool_store, aim)
        await pool_store.store.set_pause(target, state, pool_store.actor, reason)
    verb = "resume" if state == "paused" else "enable"
    undo = f"kubectl rrq {verb} -n {pool_store.pool.namespace} {pool_name} {aim.as_options()}"
    print_line(f"{describe_hold(target, state)}. `{undo}` ends that.")


async def let_go(pool_name: str, access: Access, redis_url: str | None, aim: Aim) -> None:
    async with open_pool_store(pool_name, access, redis_url) as pool_store:
        target = name_target(pool_store, aim)
        was_held = await pool_store.store.set_pause(target, None, pool_store.actor)
    print_line(f"{target} {'goes on' if was_held else 'was not paused'}.")


async def set_limit(pool_name: str, access: Access, redis_url: str | None, aim: Aim, wanted: Limit) -> None:
    async with open_pool_store(pool_name, access, redis_url) as pool_store:
        target = name_target(pool_store, aim)
        await pool_store.store.set_limit(target, wanted, pool_store.actor)
    undo = f"kubectl rrq limit -n {pool_store.pool.namespace} {pool_name} remove {aim.as_options()}"
    print_line(f"{target}: {describe_limit(wanted)}. `{undo}` takes that back.")
