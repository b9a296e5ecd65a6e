# Datadog: pip install ddtrace
from rrq.integrations import ddtrace

ddtrace.enable(service="shop-workers")  # else DD_SERVICE
