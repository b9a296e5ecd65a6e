"""The command line of the plugin: which command lives where.

kubectl finds a program named ``kubectl-rrq`` on the PATH and passes it everything behind ``kubectl rrq``.
"""

import click

from rrq.commands.lazy_group import LazyGroup
from rrq.commands.options import version_option

_HOME = "rrq_operator.plugin"
_COMMANDS = {
    "top": f"{_HOME}.top:top",
    "queues": f"{_HOME}.top:queues",
    "jobs": f"{_HOME}.jobs:jobs",
    "dlq": f"{_HOME}.jobs:dlq",
    "cancel": f"{_HOME}.jobs:cancel",
    "scale": f"{_HOME}.size:scale",
    "freeze": f"{_HOME}.size:freeze",
    "unfreeze": f"{_HOME}.size:unfreeze",
    "pause": f"{_HOME}.flow:pause",
    "resume": f"{_HOME}.flow:resume",
    "disable": f"{_HOME}.flow:disable",
    "enable": f"{_HOME}.flow:enable",
    "limit": f"{_HOME}.flow:limit",
    "flow": f"{_HOME}.flow:flow",
    "audit": f"{_HOME}.flow:audit",
}


@click.group(cls=LazyGroup, places=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@version_option
def rrq() -> None:
    """See and control RRQ worker pools.

    Cluster and rights are those of your kubeconfig. Queues and jobs are read from the Redis that the pool names. That
    needs the right to read its Secret and network access to its host; --redis-url names another address.
    """
