"""The browser of the stories: Debian's Chromium, found or installed where root may, driven by Playwright."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from typing import TYPE_CHECKING

import packages
from progress import CommandFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

CHROMIUM = {"chromium": "chromium"}


def prepare_browser() -> str | None:
    """Make sure that there is a browser; returns one line about why there is none, or None."""
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is not installed; make renews .venv from requirements/dev.lock"
    try:
        packages.install(CHROMIUM)
    except (packages.MissingPackages, CommandFailed) as error:
        return str(error).splitlines()[0]
    return None


@contextlib.asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Start Chromium without a screen."""
    from playwright.async_api import async_playwright

    program = packages.find("chromium")
    assert program is not None
    # Chromium refuses its sandbox to root, which is who runs tests in a container.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(program), args=options)
        try:
            yield browser
        finally:
            await browser.close()
