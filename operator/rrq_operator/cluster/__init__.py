"""Everything that speaks to the Kubernetes API, and what is kept of its objects."""
