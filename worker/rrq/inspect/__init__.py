"""Reads jobs, dead letters, workers and overviews for people. Nothing here runs jobs."""
