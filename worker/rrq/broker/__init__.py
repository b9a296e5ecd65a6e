"""Everything that speaks Redis: keys, scripts, connections, and one call per atomic step."""
