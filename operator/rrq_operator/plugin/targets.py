"""What in the Redis of a pool a command is aimed at: its workers, a queue, or a function."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True)
class Aim:
    """One of the three; with none the command is about the pool in Kubernetes."""

    queue_name: str | None = None
    function_name: str | None = None
    is_workers: bool = False

    def __bool__(self) -> bool:
        return self.is_workers or self.queue_name is not None or self.function_name is not None

    def as_options(self) -> str:
        """Return it as it is typed."""
        if self.is_workers:
            return "--workers"
        return (
            f"--queue {self.queue_name}"
            if self.queue_name is not None
            else f"--function {self.function_name}"
        )


_queue_option = click.option("--queue", "queue_name", help="This queue of the pool, whoever serves it.")
_function_option = click.option(
    "--function", "function_name", help="This function, in all queues of the pool's Redis."
)


def aim_options(*, with_workers: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options that name a target; the command gets them as ``aim``."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @_queue_option
        @_function_option
        @functools.wraps(command)
        def with_aim(
            *arguments: Any, queue_name: str | None, function_name: str | None, **others: Any
        ) -> Any:
            aim = Aim(queue_name, function_name, others.pop("is_workers", False))
            if aim.is_workers + (queue_name is not None) + (function_name is not None) > 1:
                raise click.UsageError("--workers, --queue and --function name different things: choose one.")
            return command(*arguments, aim=aim, **others)

        if not with_workers:
            return with_aim
        workers_option = click.option(
            "--workers",
            "is_workers",
            is_flag=True,
            help="The workers of the pool: they start no further job.",
        )
        return workers_option(with_aim)

    return add
