"""Metrics exporters that come with RRQ; ``metrics_exporter`` in the settings names one."""
