# OpenTelemetry: pip install 'rrq-kubernetes[otel]', and the SDK and exporter of your choice
from rrq.integrations import otel

otel.enable()  # spans go to the global tracer provider, or to tracer_provider=...
