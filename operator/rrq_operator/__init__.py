"""The Kubernetes operator for RRQ worker pools; it may import `rrq`, never the other way round."""
