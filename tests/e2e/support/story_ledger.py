"""What the handlers of the stories wrote down: every attempt of every job, in the cluster's own Redis."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class Entry:
    """One event: `started`, `finished` or `cancelled`."""

    job_id: str
    attempt: int
    event: str
    time: float
    pod: str
    version: str


@dataclass(frozen=True)
class StoryLedger:
    entries: Sequence[Entry]

    @classmethod
    def parse(cls, lines: Iterable[bytes | str]) -> StoryLedger:
        entries = [Entry(**json.loads(line)) for line in lines]
        return cls(sorted(entries, key=lambda entry: entry.time))

    def of(self, event: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.event == event]

    def of_job(self, job_id: str, event: str) -> list[Entry]:
        return [entry for entry in self.of(event) if entry.job_id == job_id]

    def count(self, event: str) -> Counter[str]:
        """How often each job had an event."""
        return Counter(entry.job_id for entry in self.of(event))

    @property
    def interrupted(self) -> list[Entry]:
        """Starts that nobody finished: the attempt was cut, or goes on."""
        ended = {(entry.job_id, entry.pod, entry.attempt) for entry in self.of("finished")}
        return [
            entry for entry in self.of("started") if (entry.job_id, entry.pod, entry.attempt) not in ended
        ]

    def assert_each_once(self, job_ids: Iterable[str]) -> None:
        """Every job was started once and finished once, and no other job was."""
        expected = Counter(dict.fromkeys(job_ids, 1))
        assert self.count("started") == expected, difference(self.count("started"), expected)
        assert self.count("finished") == expected, difference(self.count("finished"), expected)

    def assert_none_lost(self, job_ids: Iterable[str]) -> None:
        """Every job was finished, at least once."""
        lost = sorted(set(job_ids) - set(self.count("finished")))
        assert not lost, f"{len(lost)} jobs were never finished: {lost[:10]}"


def difference(seen: Counter[str], expected: Counter[str]) -> str:
    missing, surplus = expected - seen, seen - expected
    return (
        f"{missing.total()} missing: {list(missing)[:10]}; {surplus.total()} too many: {list(surplus)[:10]}"
    )
