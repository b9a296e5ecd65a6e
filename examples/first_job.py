"""A producer: one job for the application of jobs.py, and a wait for its result.

`python -m examples.first_job` runs it; Redis is where RRQ_REDIS_DSN says, and a worker has to run.
"""

import asyncio

from examples.jobs import settings
from rrq import RRQClient


async def main() -> None:
    client = RRQClient(settings)
    job = await client.enqueue("resize_picture", "cat.jpg", width=640)
    assert job is not None  # only its type allows it, for programs of RRQ 0.7
    seen = await client.wait_for_completion(job.id)
    if seen is None:
        print("not done within 30 s: does a worker run?")
    else:
        print(seen.status.value, seen.result)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
