"""Which of many complaints about one thing are worth a line of the log.

Every round meets again what is wrong with the Redis of a tenant, each second, in the same words or in words that a hostile
server changes each time.
"""

from time import monotonic
from typing import Final

_QUIET_SECONDS: Final = 60.0


class Complaint:
    """One thing that may be in trouble."""

    def __init__(self) -> None:
        #: The words of the last line. Set it to "" when the trouble is over: if it comes back, that is news.
        self.said = ""
        self._quiet_until = 0.0

    def is_news(self, words: str) -> bool:
        """Whether to log this now: the last line had other words and is a minute old."""
        if words == self.said or monotonic() < self._quiet_until:
            return False
        self.said, self._quiet_until = words, monotonic() + _QUIET_SECONDS
        return True
