"""Options that commands of the plugin share, named as kubectl names them."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

Command = Callable[..., Any]


@dataclass(frozen=True)
class Access:
    """Which cluster and namespace; None for what the kubeconfig says."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    all_namespaces: bool = False


def access_options(command: Command) -> Command:
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


pool_argument = click.argument("pool_name", metavar="POOL")
all_namespaces_option = click.option(
    "-A", "--all-namespaces", is_flag=True, help="The pools of all namespaces."
)
redis_url_option = click.option(
    "--redis-url",
    metavar="URL",
    help="Connect to Redis at this URL, for instance through a port-forward, instead of the URL of the pool. User and "
    "password are those of the pool, unless the URL has its own. Default: RRQ_REDIS_DSN, if set.",
)


@dataclass(frozen=True)
class Target:
    """What a command acts on in the Redis of a pool: its workers, a queue or a function; empty for none of them."""

    queue_name: str | None = None
    function_name: str | None = None
    is_workers: bool = False

    def __bool__(self) -> bool:
        return self.is_workers or self.queue_name is not None or self.function_name is not None

    def as_options(self) -> str:
        """Return it as it is typed."""
        if self.is_workers:
            return "--workers"
        if self.queue_name is not None:
            return f"--queue {self.queue_name}"
        return f"--function {self.function_name}"


_queue_option = click.option(
    "--queue", "queue_name", help="This queue of the pool, for the workers of all pools."
)
_function_option = click.option(
    "--function", "function_name", help="This function, in all queues of the Redis of the pool."
)
_workers_option = click.option("--workers", "is_workers", is_flag=True, help="The workers of this pool.")


def target_options(*, with_workers: bool) -> Callable[[Command], Command]:
    """Add the options that name a target; the command gets it as ``target``."""

    def add(command: Command) -> Command:
        @_queue_option
        @_function_option
        @functools.wraps(command)
        def with_target(
            *arguments: Any, queue_name: str | None, function_name: str | None, **others: Any
        ) -> Any:
            target = Target(queue_name, function_name, others.pop("is_workers", False))
            if target.is_workers + (queue_name is not None) + (function_name is not None) > 1:
                raise click.UsageError("--workers, --queue and --function exclude each other: choose one.")
            return command(*arguments, target=target, **others)

        return _workers_option(with_target) if with_workers else with_target

    return add
