"""One worker process: claims, attempts, outcomes, proof of life, cron and its own end."""
