"""``kubectl rrq jobs``: the jobs of a pool, the newest first."""

import asyncio

import click

from rrq.commands.options import json_option, limit_option, max_scan_option
from rrq_operator.plugin.options import Access, access_options, redis_url_option


@click.command()
@click.argument("pool_name", metavar="POOL")
@click.option("--queue", "queue_name", help="Only jobs of this queue of the pool.")
@click.option("--status", help="Only jobs like this, such as pending, active, completed or failed.")
@click.option("--function", "function_name", help="Only jobs of this function.")
@limit_option
@max_scan_option
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
    from rrq.commands.job_choice import JobFilter
    from rrq.commands.output import print_json, print_line, print_scan_note, print_table
    from rrq_operator.plugin.job_listing import FoundJobs, build_table, check_status, find_jobs
    from rrq_operator.plugin.pool_store import open_pool_store

    wanted = JobFilter(queue_name, function_name, check_status(status))

    async def read() -> FoundJobs:
        async with open_pool_store(pool_name, access, redis_url) as pool_store:
            return await find_jobs(pool_store, wanted, limit, max_scan)

    found = asyncio.run(read())
    if as_json:
        listed = [job.to_json() for job in found.newest]
        print_json({"complete": found.is_complete, "total": found.total, "jobs": listed})
        return
    if found.newest:
        print_table(build_table(found))
        print_line(f"Showing {len(found.newest)} of {found.total} jobs")
    else:
        print_line("No jobs found")
    if not found.is_complete:
        print_scan_note(max_scan)
