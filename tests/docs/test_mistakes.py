"""Makes every mistake of docs/mistakes.md, and compares the messages with the page."""

from __future__ import annotations

import re
import shutil
import sys
from typing import TYPE_CHECKING

import pytest
import redis

from certificates import make_certificates
from kubernetes_build import CannotHostKubernetes, find_client
from mistakes_page import PAGE, Mistake, is_shown, read_mistakes
from mistakes_sandbox import Sandbox
from proxy import RedisProxy
from rrq.embedded import EmbeddedRedis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from _pytest.mark import ParameterSet

MISTAKES = read_mistakes(PAGE.read_text())
# The traceback of an unhandled error. The traceback of a job is indented.
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\)", re.MULTILINE)


@pytest.fixture(scope="module")
def plain_redis() -> Iterator[EmbeddedRedis]:
    """Has an append-only file and a memory limit, so that `rrq check` has no other warning."""
    with EmbeddedRedis(appendonly=True, extra_args=("--maxmemory", "100mb")) as server:
        yield server


@pytest.fixture(scope="module")
def guarded_redis() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(extra_args=("--requirepass", "open-sesame")) as server:
        yield server


@pytest.fixture
async def sandbox(
    plain_redis: EmbeddedRedis,
    guarded_redis: EmbeddedRedis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Sandbox]:
    """A folder of the user, and the Redis servers of the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("shop", "half"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with redis.Redis.from_url(plain_redis.dsn) as connection:
        connection.flushall()
        connection.config_set("maxmemory-policy", "noeviction")
    certificates = make_certificates(tmp_path)
    async with RedisProxy(plain_redis.port, tls=certificates.server_context) as tls:
        ports = {6379: plain_redis.port, 6381: guarded_redis.port, 6382: tls.port, 6399: 1}
        addresses = {f"127.0.0.1:{shown}": f"127.0.0.1:{real}" for shown, real in ports.items()}
        yield Sandbox(tmp_path, addresses, {"python": sys.executable})


def _prepare(mistake: Mistake, sandbox: Sandbox, plain_redis: EmbeddedRedis) -> None:
    """Prepare what the blocks of a section do not contain."""
    if mistake.title == "Redis may evict jobs":
        with redis.Redis.from_url(plain_redis.dsn) as connection:
            connection.config_set("maxmemory-policy", "allkeys-lru")
    if any(block.text.startswith("helm ") for block in mistake.blocks):
        try:
            sandbox.programs = {**sandbox.programs, "helm": str(find_client("helm"))}
        except CannotHostKubernetes as missing:
            pytest.skip(f"no helm here. {missing}")
        shutil.copytree(PAGE.parents[1] / "charts", sandbox.folder / "charts")


def _as_parameter(mistake: Mistake) -> ParameterSet:
    # Local mode gives up after three starts, each of several processes.
    is_slow = any(block.language == "bash" and "rrq-operator" in block.text for block in mistake.blocks)
    marks = [pytest.mark.slow] if is_slow else []
    if any(block.text.startswith("helm ") for block in mistake.blocks):
        marks.append(pytest.mark.cluster)
    return pytest.param(mistake, marks=marks, id=mistake.title)


@pytest.mark.parametrize("mistake", [_as_parameter(mistake) for mistake in MISTAKES])
async def test_a_mistake_gets_the_message_of_the_page(
    mistake: Mistake, sandbox: Sandbox, plain_redis: EmbeddedRedis
) -> None:
    _prepare(mistake, sandbox, plain_redis)
    *acts, answer = mistake.blocks
    printed = ""
    for block in acts:
        printed = await sandbox.play(block, answer.text)
        assert not _TRACEBACK.search(printed), printed
    assert is_shown(answer.text, printed), f"the page has\n{answer.text}\nbut the output is\n{printed}"


def test_every_section_shows_a_mistake_and_its_message() -> None:
    assert len(MISTAKES) >= 30
    for mistake in MISTAKES:
        assert [block.language for block in mistake.blocks].count("text") == 1, mistake.title
        assert mistake.blocks[-1].language == "text", mistake.title
        assert len(mistake.blocks) > 1, mistake.title
    titles = [mistake.title for mistake in MISTAKES]
    assert len(titles) == len(set(titles))


def test_messages_are_compared_line_by_line() -> None:
    assert is_shown("… gone in … s.\n", "Usage: x\njob 7 gone in 3 s.\n")
    for other in ("ERROR: gone. And more.\n", "WARNING ERROR: gone.\n", "ERROR:\ngone.\n"):
        assert not is_shown("ERROR: gone.\n", other)
