"""What a function becomes under ``@app.job()``: itself, and a producer of its jobs that mypy can check.

``P`` are the parameters of the function without its context, ``R`` is what it returns. ``jobs/options.py`` lists the
options; the worker runs the jobs and gets the bare function from the registry.
"""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, cast

from rrq.client import RRQClient
from rrq.context import JobContext
from rrq.job_handle import JobHandle
from rrq.jobs.options import CALL_OPTIONS, CallOptions, JobOptions, check_names, merge_options, resolve_keys
from rrq.jobs.request import JobRequest

__all__ = ["AsyncJobFunction", "Enqueuer", "JobFunction", "PlainJobFunction"]

P = ParamSpec("P")
R = TypeVar("R")


class Enqueuer(Generic[P, R]):
    """Enqueues jobs of one function, all with the same options."""

    def __init__(self, name: str, options: JobOptions, get_client: Callable[[], RRQClient]) -> None:
        self.name = name
        self.options = options
        # Asked for each time: an application is imported before it is known which Redis it will use.
        self._get_client = get_client

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Queue one job with these arguments, which are checked as if the function itself were called.

        Raises what ``RRQClient.enqueue`` raises.
        """
        client = self._get_client()
        job = await client.enqueue_request(self.request(*args, **kwargs))
        return JobHandle(job.id, client)

    def request(self, /, *args: P.args, **kwargs: P.kwargs) -> JobRequest:
        """Return a job for ``RRQClient.enqueue_many``, with these arguments and options, without sending it."""
        return JobRequest(self.name, args, kwargs, options=resolve_keys(self.options, args, kwargs))

    def with_options(self, **options: Unpack[CallOptions]) -> "Enqueuer[P, R]":
        """Return an enqueuer of the same function whose jobs have these options as well."""
        check_names("with_options()", options, CALL_OPTIONS)
        return Enqueuer(self.name, merge_options(self.options, options), self._get_client)

    def handle(self, job_id: str) -> JobHandle[R]:
        """Return the handle of a job that any process enqueued before."""
        return JobHandle(job_id, self._get_client())


class JobFunction(Enqueuer[P, R]):
    """A registered function. A call runs it here and now, as if it had never been decorated."""

    __name__: str

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        options: JobOptions,
        get_client: Callable[[], RRQClient],
    ) -> None:
        super().__init__(name, options, get_client)
        self.function = function
        functools.update_wrapper(cast(Any, self), function)

    def __repr__(self) -> str:
        return f"<job function {self.name!r}>"


class AsyncJobFunction(JobFunction[P, R]):
    """A registered coroutine function."""

    function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]]

    # Any: a test that calls the function gives it the context it needs, a dict mostly.
    def __call__(self, context: Any, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self.function(context, *args, **kwargs)


class PlainJobFunction(JobFunction[P, R]):
    """A registered plain function; a worker runs it in a thread."""

    function: Callable[Concatenate[JobContext, P], R]

    def __call__(self, context: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(context, *args, **kwargs)
