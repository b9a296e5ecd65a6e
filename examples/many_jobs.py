"""A producer that enqueues many jobs at once, for the queue of the pool in pool.yaml.

`python -m examples.many_jobs` runs it. RRQ_REDIS_DSN names the Redis.
"""

import asyncio

from examples.jobs import settings
from rrq import RRQClient
from rrq.client import JobRequest


async def main() -> None:
    client = RRQClient(settings)
    pictures = [
        JobRequest("resize_picture", [f"{n}.jpg"], {"width": 640}, queue_name="shop") for n in range(450)
    ]
    print(len(await client.enqueue_many(pictures)), "jobs queued")
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
