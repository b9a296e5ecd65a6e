"""What the operator asks of a Redis and tells it."""
