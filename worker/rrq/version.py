"""The one place that says which version this is and what the package is called; the build reads the version from here."""

__version__ = "1.0.0.dev0"

#: What pip installs and an index lists. The distribution `rrq` there is another project.
DISTRIBUTION = "rrq-kubernetes"
