"""``kubectl rrq dlq``: jobs of a pool that failed for good."""

import click

from rrq.commands.options import json_option, max_scan_option
from rrq_operator.plugin.options import Access, access_options, redis_url_option


@click.command()
@click.argument("pool_name", metavar="POOL")
@click.argument("action", type=click.Choice(["list", "inspect", "requeue"]), default="list")
@click.argument("job_id", metavar="[JOB_ID]", required=False)
@click.option("--queue", "queue_name", help="Only jobs that came from this queue of the pool.")
@click.option("--function", "function_name", help="Only jobs of this function.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="Most jobs: 20 for list, any number for requeue, where it is counted for each queue.",
)
@click.option("--all", "take_all", is_flag=True, help="requeue: every dead letter of the pool.")
@click.option(
    "--target-queue", help="requeue: put them into this queue. Default: the one that each came from."
)
@click.option("--dry-run", is_flag=True, help="requeue: only show what would be requeued.")
@click.option("--dlq-name", help="The dead letter queue, where the application names its own.")
@max_scan_option
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
    """Jobs of a pool that failed for good: list them, inspect one, or requeue some.

    \b
    kubectl rrq dlq emails                      the dead letters, the newest first
    kubectl rrq dlq emails inspect JOB_ID       why one failed
    kubectl rrq dlq emails requeue JOB_ID       give it a fresh start
    kubectl rrq dlq emails requeue --all        give all of them one
    """
    from rrq.commands.job_choice import JobFilter
    from rrq_operator.plugin import dead_letters

    if action == "list" and job_id is not None:
        raise click.UsageError("list takes no job id; inspect and requeue do.")
    if action == "inspect" and job_id is None:
        raise click.UsageError("inspect takes the id of a job.")
    if action == "requeue" and as_json:
        raise click.UsageError("--json is for list and inspect.")
    place = dead_letters.Place(pool_name, access, redis_url, dlq_name)
    wanted = JobFilter(queue_name, function_name)
    if action == "list":
        dead_letters.show_list(place, wanted, limit or 20, max_scan, as_json)
    elif action == "inspect":
        dead_letters.inspect(place, str(job_id), as_json)
    else:
        dead_letters.requeue(
            place, dead_letters.Requeue(wanted, job_id, limit, take_all, target_queue, dry_run)
        )
