"""Options that commands of the plugin share, spelled as kubectl spells them."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True)
class Access:
    """Which cluster, and where in it; None is for what the kubeconfig says."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    all_namespaces: bool = False


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose cluster and namespace; the command gets them as ``access``."""

    @click.option("-n", "--namespace", help="Namespace of the pool. Default: that of the context.")
    @click.option("--context", help="Context of the kubeconfig to use.")
    @click.option(
        "--kubeconfig", metavar="FILE", help="The kubeconfig. Default: KUBECONFIG, else ~/.kube/config."
    )
    @functools.wraps(command)
    def with_access(
        *arguments: Any, namespace: str | None, context: str | None, kubeconfig: str | None, **others: Any
    ) -> Any:
        access = Access(kubeconfig, context, namespace, others.pop("all_namespaces", False))
        return command(*arguments, access=access, **others)

    return with_access


all_namespaces_option = click.option(
    "-A", "--all-namespaces", is_flag=True, help="The pools of all namespaces."
)

redis_url_option = click.option(
    "--redis-url",
    metavar="URL",
    help="Reach Redis this way, such as through a port-forward, instead of by the URL of the pool; user and "
    "password are still those of the pool unless given here. Default: RRQ_REDIS_DSN, if set.",
)
