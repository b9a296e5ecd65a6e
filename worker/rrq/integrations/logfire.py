"""Logfire, which is OpenTelemetry underneath: what ``logfire.configure()`` set up gets the spans."""

try:
    import logfire  # noqa: F401  only to say clearly that it is missing
except ImportError as error:
    raise ImportError(
        "Tracing with Logfire needs the package logfire. Run: pip install logfire",
        name="logfire",
    ) from error

from rrq.integrations import otel

__all__ = ["enable"]


def enable(service_name: str | None = None) -> otel.OtelTelemetry:
    """Trace enqueues and attempts in this process with Logfire; call ``logfire.configure()`` before.

    ``service_name`` means what it means in ``rrq.integrations.otel.enable``.
    """
    return otel.enable(service_name)
