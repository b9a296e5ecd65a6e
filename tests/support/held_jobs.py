"""Handlers that a test lets end when it wants."""

from __future__ import annotations

import asyncio
from collections import Counter


class Held:
    """Jobs that stay in hand until they are let go, and how often each was begun."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.let_go = asyncio.Event()
