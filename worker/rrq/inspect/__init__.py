"""Reading for people: jobs, dead letters, and the whole picture at one moment."""
