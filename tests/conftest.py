"""What every test may ask for: a real Redis, and settings, store and client bound to it.

`redis_dsn` is one server for the whole run (RRQ_REDIS_DSN if given); each test that uses it, or anything
built on it, finds the database empty. `own_redis` is a server that the test may kill, pause or restart.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import hypothesis  # noqa: F401  its plugin would import it after the last test, where CPython 3.11 may trip
import pytest
import redis

from docker_engine import BASE_VARIABLE
from kubernetes_build import CACHE_VARIABLE, KUBECONFIG_VARIABLE
from rrq.client import RRQClient
from rrq.embedded import DSN_VARIABLE, EmbeddedRedis
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings
from rrq.store import JobStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

# Its presence says that the rest of the database is ours to throw away.
MAY_FLUSH_KEY = "rrq-tests:may-flush"
# No settings of rrq: tests/images and tests/operator/integration read them.
KEPT_VARIABLES = (BASE_VARIABLE, CACHE_VARIABLE, KUBECONFIG_VARIABLE)
TIERS = ("fast", "slow", "cluster", "docker")

_given_dsn = pytest.StashKey[str | None]()
_servers_used: set[str] = set()
_tests_run: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_given_dsn] = os.environ.get(DSN_VARIABLE) or None
    # Settings read RRQ_* variables: a test must not depend on the shell it was started from.
    for name in [name for name in os.environ if name.startswith("RRQ_") and name not in KEPT_VARIABLES]:
        del os.environ[name]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what builds images unless it was asked for: that takes minutes, and may start an engine."""
    if "docker" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("docker")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _tests_run[next((tier for tier in reversed(TIERS) if tier in report.keywords), "fast")] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what really ran, so that a green line cannot hide a tier that was left out."""
    ran = ", ".join(f"{tier} ({_tests_run[tier]} tests)" for tier in TIERS if _tests_run[tier])
    servers = ", ".join(sorted(_servers_used)) or "none needed"
    terminalreporter.write_line(f"tiers run: {ran or 'none'}; Redis: {servers}")


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of the server that the whole run shares; tests want `redis_dsn`."""
    given = request.config.stash[_given_dsn]
    if given:
        _refuse_foreign_data(given)
        _servers_used.add(_describe(given, "RRQ_REDIS_DSN"))
        yield given
        with redis.Redis.from_url(given) as connection:
            connection.flushdb()
        return
    with EmbeddedRedis() as server:
        _servers_used.add(_describe(server.dsn, "started here"))
        yield server.dsn


@pytest.fixture
def redis_dsn(redis_server: str, request: pytest.FixtureRequest) -> str:
    """The DSN of a real Redis with an empty database."""
    with redis.Redis.from_url(redis_server) as connection:
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
    return f"{about.get('server_name', 'redis')} {about['redis_version']} ({origin})"
