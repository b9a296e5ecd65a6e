"""Which of many complaints about one thing are worth a line of the log.

What a tenant's Redis does wrong is met again with every round, each second, in the same words or in words that a hostile
server changes each time.
"""

from time import monotonic
from typing import Final

_QUIET_SECONDS: Final = 60.0


class Complaint:
    """One thing that may be in trouble."""

    def __init__(self) -> None:
        self._words = ""
        self._quiet_until = 0.0

    def is_news(self, words: str) -> bool:
        """Whether to say this now: it is not what was said last, and that is a minute ago."""
        if words == self._words or monotonic() < self._quiet_until:
            return False
        self._words, self._quiet_until = words, monotonic() + _QUIET_SECONDS
        return True

    def is_over(self) -> None:
        """The trouble has passed: if it comes back, that is news."""
        self._words = ""
