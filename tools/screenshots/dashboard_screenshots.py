"""Pictures of the dashboard for docs/, of a made-up shop: `make dashboard-screenshots`. Look at them before you commit."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chromium import open_browser, prepare_browser
from dashboard_data import TICK_SECONDS, DashboardData
from dashboard_server import ADMIN_TOKEN, DashboardProcess
from rrq.embedded import EmbeddedRedis
from rrq.settings import RRQSettings
from rrq.store import JobStore

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

FOLDER: Final = Path(__file__).parents[2] / "docs" / "img" / "dashboard"
LARGEST_BYTES: Final = 200_000
DESK: Final = {"width": 1280, "height": 860}
PHONE: Final = {"width": 375, "height": 812}
# File, route, window, theme, whether an admin looks.
PICTURES: Final[tuple[tuple[str, str, dict[str, int], Any, bool], ...]] = (
    ("overview-light", "overview", DESK, "light", False),
    ("overview-dark", "overview?range=hour", DESK, "dark", False),
    ("pool-light", "pools/shop/default", DESK, "light", False),
    ("job-light", "jobs/dead-0075", DESK, "light", True),
    ("dead-letters-dark", "dead", {"width": 1280, "height": 560}, "dark", True),
    ("workers-dark", "workers", DESK, "dark", False),
    ("phone-light", "overview", PHONE, "light", False),
    ("phone-dark", "jobs", PHONE, "dark", False),
)
# So long an overview has to be watched until its charts say something.
WATCHED_SECONDS: Final = 75.0


async def main() -> int:
    problem = prepare_browser()
    if problem is not None:
        sys.stderr.write(f"No browser: {problem}\n")
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    with EmbeddedRedis() as redis, tempfile.TemporaryDirectory() as folder:
        store = JobStore(RRQSettings(redis_dsn=redis.dsn))
        try:
            data = DashboardData(store)
            await data.fill()
            traffic = asyncio.create_task(_keep_moving(data))
            async with DashboardProcess(redis.dsn, Path(folder)) as dashboard, open_browser() as browser:
                await _watch(browser, dashboard.url)
                for picture in PICTURES:
                    await _take(browser, dashboard.url, *picture)
            traffic.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await traffic
        finally:
            await store.aclose()
    return _complain_of_size()


async def _keep_moving(data: DashboardData) -> None:
    while True:
        await data.tick(TICK_SECONDS)
        await asyncio.sleep(TICK_SECONDS)


async def _watch(browser: Browser, url: str) -> None:
    """Keep a page open, so that the server looks every second and has something to show to the next one."""
    page = await browser.new_page()
    await page.goto(url)
    await asyncio.sleep(WATCHED_SECONDS)
    await page.close()


async def _take(
    browser: Browser, url: str, name: str, route: str, window: dict[str, int], theme: Any, is_admin: bool
) -> None:
    context = await browser.new_context(viewport=window, color_scheme=theme)  # type: ignore[arg-type]  # a plain dict will do
    page = await context.new_page()
    await page.goto(url)
    if is_admin:
        await _sign_in(page)
    await page.evaluate("route => { location.hash = route; }", f"#/{route}")
    await page.locator(".card").first.wait_for()
    await page.mouse.move(0, 0)
    # Charts measure themselves after the first layout.
    await asyncio.sleep(2.5)
    await page.screenshot(path=FOLDER / f"{name}.png")
    await context.close()


async def _sign_in(page: Page) -> None:
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_label("Token").fill(ADMIN_TOKEN)
    await page.get_by_label("Your name").fill("anna")
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_text("anna (admin token)").wait_for()


def _complain_of_size() -> int:
    large = [file.name for file in FOLDER.iterdir() if file.stat().st_size > LARGEST_BYTES]
    if large:
        sys.stderr.write(f"Larger than {LARGEST_BYTES} bytes: {', '.join(large)}. Show less of the page.\n")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
