"""The plugin's command line: which command lives where.

kubectl finds a program named ``kubectl-rrq`` on the PATH and hands it everything behind ``kubectl rrq``.
"""

import click

from rrq.commands.lazy_group import CommandsOnDemand
from rrq.commands.options import version_option

_HOME = "rrq_operator.plugin"
_COMMANDS = {
    "top": f"{_HOME}.top:top",
    "queues": f"{_HOME}.queues:queues",
    "jobs": f"{_HOME}.jobs:jobs",
    "dlq": f"{_HOME}.dlq:dlq",
    "pause": f"{_HOME}.pause:pause",
    "resume": f"{_HOME}.pause:resume",
    "scale": f"{_HOME}.scale:scale",
    "disable": f"{_HOME}.disable:disable",
    "enable": f"{_HOME}.disable:enable",
    "limit": f"{_HOME}.limit:limit",
    "cancel": f"{_HOME}.cancel:cancel",
    "flow": f"{_HOME}.flow:flow",
    "audit": f"{_HOME}.audit:audit",
}


@click.group(cls=CommandsOnDemand, places=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@version_option
def rrq() -> None:
    """See and steer RRQ worker pools.

    Cluster and rights are those of your kubeconfig. Queues and jobs are read from the Redis that the pool names,
    which takes the right to read its Secret and a way to its host; --redis-url names another way.
    """
