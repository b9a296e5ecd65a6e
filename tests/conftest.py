"""What every test may ask for: a real Redis, and settings, store and client bound to it.

`redis_dsn` is one server for the whole run (RRQ_REDIS_DSN if given); each test that uses it, or anything
built on it, finds the database empty. `own_redis` is a server that the test may kill, pause or restart.
With `-n` each process that runs tests has a server, a control plane and folders of its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis  # also because its plugin would import it after the last test, where CPython 3.11 may trip
import pytest
import redis

from docker_engine import BASE_VARIABLE
from kubernetes_build import CACHE_VARIABLE
from long_and_short import LongAndShort
from rrq.client import RRQClient
from rrq.embedded import DSN_VARIABLE, EmbeddedRedis
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore
from tier_report import REPORT_VARIABLE, STEP_VARIABLE
from tier_summary import ON_DEMAND, TierSummary, tier_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from xdist.remote import Producer  # type: ignore[import-untyped]  # xdist ships no types

# Its presence says that the rest of the database is ours to throw away.
MAY_FLUSH_KEY = "rrq-tests:may-flush"
# No settings of rrq: they say which images and clusters the tests run on.
KEPT_VARIABLES = (BASE_VARIABLE, CACHE_VARIABLE, "RRQ_E2E_")
# The first test that needs a cluster, a browser or an engine waits until it is installed and started.
STARTS_SERVERS = ("browser", "cluster", "e2e", "docker")
STARTS_SERVERS_SECONDS = 300

# How long an example takes says more about the neighbours of a test than about what it tests.
hypothesis.settings.register_profile(
    "beside others", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("beside others")

_given_dsn = pytest.StashKey[str | None]()
_summary = pytest.StashKey[TierSummary]()


@pytest.hookimpl(tryfirst=True)  # before the processes are counted
def pytest_cmdline_main(config: pytest.Config) -> None:
    if os.environ.get(DSN_VARIABLE):
        # The one database is emptied before each test: a neighbour's test would lose its jobs.
        config.option.numprocesses = 0


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_given_dsn] = os.environ.get(DSN_VARIABLE) or None
    # Taken out, so that tests which run pytest themselves add nothing to the report of this run.
    config.stash[_summary] = TierSummary(
        os.environ.pop(REPORT_VARIABLE, None), os.environ.pop(STEP_VARIABLE, None)
    )
    config.pluginmanager.register(config.stash[_summary])
    # Settings read RRQ_* variables: a test must not depend on the shell it was started from.
    for name in [
        name for name in os.environ if name.startswith("RRQ_") and not name.startswith(KEPT_VARIABLES)
    ]:
        del os.environ[name]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only runs on demand, unless it was asked for by its mark or by its file or folder."""
    tiers = [tier for tier in ON_DEMAND if tier not in config.option.markexpr]
    named = [Path(argument.partition("::")[0]).absolute() for argument in config.args]
    folders = [path for path in named if path not in (config.rootpath, Path(__file__).parent)]
    left_out = [
        item
        for item in items
        if any(item.get_closest_marker(tier) for tier in tiers)
        and not any(item.path.is_relative_to(folder) for folder in folders)
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        is_served = tier_of(mark.name for mark in item.iter_markers()) in STARTS_SERVERS
        if is_served and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(STARTS_SERVERS_SECONDS))
    if hasattr(config, "workerinput"):
        # The long ones first: at the end many short ones keep all processes busy to the last second.
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist` knows no such hook
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongAndShort | None:
    return LongAndShort(config, log) if config.option.dist == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Let any text through to the process that prints; half a surrogate pair would end the run."""
    return _make_encodable((yield))


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of the server that the whole run shares; tests want `redis_dsn`."""
    given = request.config.stash[_given_dsn]
    if given:
        _refuse_foreign_data(given)
        request.config.stash[_summary].servers_used.add(_describe(given, "RRQ_REDIS_DSN"))
        yield given
        with redis.Redis.from_url(given) as connection:
            connection.flushdb()
        return
    with EmbeddedRedis() as server:
        request.config.stash[_summary].servers_used.add(_describe(server.dsn, "started here"))
        yield server.dsn


@pytest.fixture
def redis_dsn(redis_server: str, request: pytest.FixtureRequest) -> str:
    """The DSN of a real Redis with an empty database."""
    # Two million keys of the test before take a busy machine longer than redis-py waits by itself.
    with redis.Redis.from_url(redis_server, socket_timeout=60) as connection:
        connection.flushdb()
        if request.config.stash[_given_dsn]:
            connection.set(MAY_FLUSH_KEY, "made by the tests of rrq")
    return redis_server


@pytest.fixture
def make_redis() -> Iterator[Callable[..., EmbeddedRedis]]:
    """Start servers of the test's own, e.g. `make_redis(appendonly=True)`; they end with the test."""
    started: list[EmbeddedRedis] = []

    def make(**options: object) -> EmbeddedRedis:
        server = EmbeddedRedis(**options)  # type: ignore[arg-type]  # passed through as they come
        started.append(server)
        return server.start()

    yield make
    for server in reversed(started):
        server.stop()


@pytest.fixture
def own_redis(make_redis: Callable[..., EmbeddedRedis]) -> EmbeddedRedis:
    """A server that the test may kill, pause and restart, without persistence."""
    return make_redis()


@pytest.fixture
def settings(redis_dsn: str) -> RRQSettings:
    return RRQSettings(redis_dsn=redis_dsn, job_registry=JobRegistry())


@pytest.fixture
async def store(settings: RRQSettings) -> AsyncIterator[JobStore]:
    store = JobStore(settings=settings)
    yield store
    await store.aclose()


@pytest.fixture
async def client(settings: RRQSettings) -> AsyncIterator[RRQClient]:
    client = RRQClient(settings)
    yield client
    await client.close()


def _refuse_foreign_data(dsn: str) -> None:
    with redis.Redis.from_url(dsn) as connection:
        keys = connection.dbsize()
        if keys and not connection.exists(MAY_FLUSH_KEY):
            pytest.exit(
                f"{DSN_VARIABLE} names a database with {keys} keys that these tests did not make, and every test "
                "empties it. Name an empty database (for instance .../15), or unset the variable.",
                returncode=pytest.ExitCode.USAGE_ERROR,
            )


def _describe(dsn: str, origin: str) -> str:
    with redis.Redis.from_url(dsn) as connection:
        about = connection.info("server")
    # Valkey calls itself redis 7.2.4, too, for clients that ask for that.
    if about.get("server_name") == "valkey":
        return f"Valkey {about['valkey_version']} ({origin})"
    return f"Redis {about['redis_version']} ({origin})"


def _make_encodable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {key: _make_encodable(part) for key, part in value.items()}
        case list() | tuple():
            return type(value)(_make_encodable(part) for part in value)
        case _:
            return value
