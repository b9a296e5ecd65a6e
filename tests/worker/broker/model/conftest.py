"""Hypothesis chooses what these tests do."""

from __future__ import annotations

from uncounted import uncounted

__all__ = ["uncounted"]
