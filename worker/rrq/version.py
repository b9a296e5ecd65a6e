"""The one place that says which version this is; the build reads it from here."""

__version__ = "1.0.0.dev0"
