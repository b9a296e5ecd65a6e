"""What a job is: what is asked of it, how it is written, stored and read. Values only."""
