"""A burst worker in a process of its own that prints the spans it made, one JSON object per line.

Run as a script: the arguments are the DSN of Redis and the name of the handler.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rrq import JobRegistry, RRQSettings, RRQWorker
from rrq.integrations import otel


async def handler(ctx: dict[str, Any]) -> None:
    if ctx["job_try"] == 1:
        raise ValueError("not yet")


def main(dsn: str, function_name: str) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.enable(tracer_provider=provider)
    registry = JobRegistry()
    registry.register(function_name, handler)
    settings = RRQSettings(
        redis_dsn=dsn,
        job_registry=registry,
        base_retry_delay_seconds=0.0,
        worker_burst_linger_seconds=0.2,
    )
    asyncio.run(RRQWorker(settings, registry, burst=True).run())
    for span in exporter.get_finished_spans():
        sys.stdout.write(json.dumps(json.loads(span.to_json())) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
