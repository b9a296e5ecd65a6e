"""A producer: enqueues one job for the application of jobs.py and waits for its result.

`python -m examples.first_job` runs it. RRQ_REDIS_DSN names the Redis, and a worker has to run.
"""

import asyncio

from examples.jobs import settings
from rrq import RRQClient


async def main() -> None:
    client = RRQClient(settings)
    job = await client.enqueue("resize_picture", "cat.jpg", width=640)
    assert job is not None  # the type allows None for programs of RRQ 0.7
    seen = await client.wait_for_completion(job.id)
    if seen is None:
        print("not done within 30 s; is a worker running?")
    else:
        print(seen.status.value, seen.result)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
