"""``kubectl rrq jobs``, ``dlq`` and ``cancel``: the jobs of a pool, by the commands of ``rrq``."""

from typing import TYPE_CHECKING

import click

from rrq.commands.options import cancel_options, json_option, limit_option, max_scan_option
from rrq_operator.plugin.options import Access, access_options, pool_argument, redis_url_option

if TYPE_CHECKING:
    from rrq_operator.plugin.pool_redis import PoolRedis


@click.command()
@pool_argument
@click.option("--queue", "queue_name", help="Only jobs of this queue of the pool.")
@click.option("--status", help="Only jobs with this status, such as pending, active, completed or failed.")
@click.option("--function", "function_name", help="Only jobs of this function.")
@limit_option
@max_scan_option()
@access_options
@redis_url_option
@json_option
def jobs(
    pool_name: str,
    queue_name: str | None,
    status: str | None,
    function_name: str | None,
    limit: int,
    max_scan: int,
    access: Access,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """List the jobs in the queues of a pool, the newest first."""
    from rrq.commands.job import JOB_STATUSES, show_jobs
    from rrq.inspect.jobs import StoredJobFilter
    from rrq_operator.plugin.pool_redis import find_pool_redis

    # Not checked by click, so that --help need not load the module that lists them.
    if status is not None and status.lower() not in JOB_STATUSES:
        raise click.BadParameter(f"{status!r} is none of {', '.join(JOB_STATUSES)}.", param_hint="--status")
    pool = find_pool_redis(pool_name, access, redis_url)
    wanted = StoredJobFilter(pool.choose_queues(queue_name), function_name, status)
    show_jobs(pool.run, wanted, limit, max_scan, as_json)


@click.command()
@pool_argument
@click.argument("action", type=click.Choice(["list", "inspect", "requeue"]), default="list")
@click.argument("job_id", metavar="[JOB_ID]", required=False)
@click.option("--queue", "queue_name", help="Only jobs that came from this queue of the pool.")
@click.option("--function", "function_name", help="Only jobs of this function.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="Maximum number of jobs. Default: 20 for list, all for requeue.",
)
@click.option("--all", "take_all", is_flag=True, help="requeue: every dead letter of the pool.")
@click.option("--target-queue", help="requeue: to this queue. Default: the queue that each job came from.")
@click.option("--dry-run", is_flag=True, help="requeue: only show what would be requeued.")
@click.option("--dlq-name", help="The dead letter queue, if the application names its own.")
@max_scan_option()
@access_options
@redis_url_option
@json_option
def dlq(
    pool_name: str,
    action: str,
    job_id: str | None,
    queue_name: str | None,
    function_name: str | None,
    limit: int | None,
    take_all: bool,
    target_queue: str | None,
    dry_run: bool,
    dlq_name: str | None,
    max_scan: int,
    access: Access,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """List, inspect or requeue the jobs of a pool that failed for good.

    \b
    kubectl rrq dlq emails                      list the dead letters, the newest first
    kubectl rrq dlq emails inspect JOB_ID       show why one failed
    kubectl rrq dlq emails requeue JOB_ID       requeue one
    kubectl rrq dlq emails requeue --all        requeue all of them
    """
    from rrq.commands import dlq as rrq_dlq
    from rrq.commands.dlq_changes import Requeue, requeue_letters
    from rrq.commands.refusal import Refusal
    from rrq.inspect.jobs import StoredJobFilter
    from rrq_operator.plugin.pool_redis import find_pool_redis

    if action == "list" and job_id is not None:
        raise click.UsageError("list has no job id; inspect and requeue have one.")
    if action == "inspect" and job_id is None:
        raise click.UsageError("inspect needs the id of a job.")
    if action == "requeue" and as_json:
        raise click.UsageError("--json is for list and inspect.")
    if action == "requeue" and not (take_all or job_id or queue_name or function_name):
        raise Refusal("ERROR: Choose the jobs with the id of a job, --queue, --function, or --all.")
    pool = find_pool_redis(pool_name, access, redis_url)
    wanted = StoredJobFilter(pool.choose_queues(queue_name), function_name)
    if action == "list":
        page = rrq_dlq.LetterPage(dlq_name, limit or 20, max_scan=max_scan, with_all_fields=True)
        rrq_dlq.show_dead_letters(pool.run, wanted, page, as_json)
    elif action == "inspect":
        rrq_dlq.show_dead_letter(pool.run, str(job_id), raw=False, as_json=as_json)
    else:
        if target_queue is not None:
            pool.choose_queues(target_queue)
        if job_id is not None:
            _check_queue(pool, job_id, pool.choose_queues(queue_name))
        order = Requeue(dlq_name, wanted, job_id, limit, target_queue, pool.actor, dry_run)
        requeue_letters(pool.run, order, as_json=False)


def _check_queue(pool: "PoolRedis", job_id: str, queues: tuple[str, ...]) -> None:
    """Raise Refusal for a job that did not come from one of these queues."""
    from rrq.commands.redis_access import read_chosen_job
    from rrq.commands.refusal import Refusal
    from rrq.inspect.jobs import short_queue_name
    from rrq.store import JobStore

    async def read_queue(store: JobStore) -> str:
        return short_queue_name(store, await read_chosen_job(store, job_id))

    queue = pool.run(read_queue)
    if queue not in queues:
        raise Refusal(f"ERROR: Job {job_id} came from queue {queue}, not from {', '.join(queues)}.")


@click.command()
@pool_argument
@click.option("--queue", "queue_name", required=True, help="The queue of the pool in which they wait.")
@cancel_options
@access_options
@redis_url_option
@json_option
def cancel(
    pool_name: str,
    queue_name: str,
    function_name: str | None,
    due_for_seconds: int | None,
    dry_run: bool,
    is_confirmed: bool,
    access: Access,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Cancel jobs that wait in a queue of a pool; running jobs go on.

    It prints their number and asks first, unless --yes is given.
    """
    from rrq.commands.job import cancel_waiting
    from rrq.flow import JobFilter
    from rrq_operator.plugin.pool_redis import find_pool_redis

    pool = find_pool_redis(pool_name, access, redis_url)
    (queue,) = pool.choose_queues(queue_name)
    chosen = JobFilter(queue, function_name, due_for_seconds)
    cancel_waiting(
        pool.run, chosen, pool.actor, is_dry_run=dry_run, is_confirmed=is_confirmed, as_json=as_json
    )
