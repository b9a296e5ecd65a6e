"""The custom resource: what a user writes, its rules and its schema. Pure."""
