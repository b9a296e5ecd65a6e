"""RRQ: a Redis job queue for Python, at home in Kubernetes.

``RRQClient`` enqueues, ``RRQWorker`` runs, ``RRQSettings`` says how.
"""

from rrq.client import RRQClient
from rrq.cron import CronJob, CronSchedule
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.worker import RRQWorker

__all__ = ["CronJob", "CronSchedule", "JobRegistry", "RRQClient", "RRQSettings", "RRQWorker"]
