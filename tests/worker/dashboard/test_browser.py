"""Stories of the dashboard in a real browser, with a real worker where jobs have to run."""

from __future__ import annotations

import asyncio
import contextlib
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from chromium import open_browser, prepare_browser
from dashboard_data import DashboardData
from dashboard_server import ADMIN_TOKEN, DashboardProcess
from pod import Pod
from rrq.client import JobRequest
from rrq.settings import RRQSettings
from rrq.store import JobStore
from running import end
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Browser, Page

    from rrq.client import RRQClient

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.xdist_group("browser")]

DESK = {"width": 1280, "height": 900}
PHONE = {"width": 375, "height": 812}
PAGES = ("overview", "queues", "pools", "workers", "jobs", "dead", "cron", "controls", "audit")
PATIENCE_MS = 20_000


@pytest.fixture(scope="module")
def browser_is_there() -> None:
    """Skip, and say why, where no browser can be had."""
    problem = prepare_browser()
    if problem is not None:
        pytest.skip(f"no browser: {problem}")


@pytest.fixture
async def browser(browser_is_there: None) -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@pytest.fixture
async def dashboard(redis_dsn: str, tmp_path: Path) -> AsyncIterator[DashboardProcess]:
    async with DashboardProcess(redis_dsn, tmp_path) as dashboard:
        yield dashboard


@pytest.fixture
async def data(store: JobStore) -> DashboardData:
    data = DashboardData(store)
    await data.fill()
    return data


@contextlib.asynccontextmanager
async def open_page(browser: Browser, url: str, **options: Any) -> AsyncIterator[Page]:
    """A window of its own; whatever the page complains of fails the test."""
    context = await browser.new_context(**{"viewport": DESK, **options})
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda told: complaints.append(told.text) if "Content Security Policy" in told.text else None,
    )
    try:
        await page.goto(f"{url}/")
        yield page
    finally:
        await context.close()
    assert complaints == []


async def sign_in(page: Page) -> None:
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_label("Token").fill(ADMIN_TOKEN)
    await page.get_by_label("Your name").fill("anna")
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_text("anna (admin token)").wait_for()


async def go(page: Page, name: str) -> None:
    await page.evaluate("route => { location.hash = route; }", f"#/{name}")


async def text_of(page: Page, selector: str) -> str:
    return await page.locator(selector).inner_text()


@contextlib.asynccontextmanager
async def keep_busy(client: RRQClient) -> AsyncIterator[None]:
    """Half of what one worker can do, for as long as the page takes to show it."""

    async def produce() -> None:
        while True:
            await client.enqueue_many([JobRequest("send_receipt", (1,), {"seconds": 0.2})] * 5)
            await asyncio.sleep(0.2)

    producing = asyncio.create_task(produce())
    try:
        yield
    finally:
        await end(producing)


async def test_the_overview_goes_live_while_jobs_run(
    browser: Browser, redis_dsn: str, dashboard: DashboardProcess, client: RRQClient, tmp_path: Path
) -> None:
    with Pod(redis_dsn, tmp_path, "--num-workers", "1", app="dashboard_app.settings") as pod:
        await pod.is_up()
        async with open_page(browser, dashboard.url) as page:
            await page.get_by_text("Idle.").wait_for()
            assert await page.evaluate("performance.getEntriesByType('navigation').length") == 1
            async with keep_busy(client):
                await page.get_by_text("Keeping up.").wait_for()

                async def is_moving() -> bool:
                    shown = re.match(r"[\d.]+", await text_of(page, ".tile >> nth=0 >> .tile-value"))
                    return shown is not None and float(shown[0]) > 0

                await eventually(is_moving, 30, "no throughput was shown", interval_seconds=0.2)
                await page.get_by_role("link", name="Workers").first.click()
                await page.locator(".running .row-link", has_text="send_receipt").first.wait_for()
                await page.get_by_role("link", name="Jobs", exact=True).click()
                await page.locator("tbody tr", has_text="send_receipt").first.wait_for()
                # All that without a reload, which would have forgotten the mark.
                assert await page.evaluate("performance.getEntriesByType('navigation')[0].type") == "navigate"


async def test_an_admin_pauses_and_resumes_a_queue(
    data: DashboardData, browser: Browser, dashboard: DashboardProcess, store: JobStore
) -> None:
    async with open_page(browser, dashboard.url) as page:
        await sign_in(page)
        await go(page, "queues")
        await page.get_by_role("button", name="Pause queue payments").click()
        await page.get_by_label("Reason, for other users").fill("bank holiday")
        await page.get_by_role("button", name="Pause payments").click()
        await page.locator("tr", has_text="payments").get_by_text("paused").wait_for()
        assert (await store.read_flow()).pauses["queue:payments"].reason == "bank holiday"
        await page.get_by_role("button", name="Resume queue payments").click()
        await page.get_by_role("button", name="Resume payments").click()
        await page.get_by_role("button", name="Pause queue payments").wait_for()
        assert "queue:payments" not in (await store.read_flow()).pauses
        await go(page, "audit")
        newest = page.locator("tbody tr").first
        await newest.get_by_text("anna (admin token)").wait_for()
        assert "resume" in await newest.inner_text()


async def test_a_failed_job_is_found_with_its_timeline(
    browser: Browser, redis_dsn: str, dashboard: DashboardProcess, client: RRQClient, tmp_path: Path
) -> None:
    with Pod(redis_dsn, tmp_path, "--num-workers", "1", app="dashboard_app.settings") as pod:
        await pod.is_up()
        job = await client.enqueue("charge_card", 4711, _max_retries=2)
        assert job is not None
        async with open_page(browser, dashboard.url) as page:
            await page.keyboard.press("g")
            await page.keyboard.press("j")
            await page.keyboard.press("/")
            await page.keyboard.type("expired")
            await page.keyboard.press("Enter")
            row = page.locator("tbody tr", has_text="charge_card")
            await row.wait_for(timeout=60_000)
            assert "the card of order 4711 has expired" in await row.inner_text()
            await row.get_by_role("link").click()
            await page.get_by_text("Attempt 2: failed for good").wait_for()
            assert "Attempt 1: failed, to be retried" in await text_of(page, ".timeline")
            assert "in charge_card" in await text_of(page, ".trace pre")
            assert "4711" in await text_of(page, ".value >> nth=0")
            await page.get_by_role("button", name="Hide arguments and result").click()
            await page.get_by_text("Hidden in this browser.").wait_for()
            assert await page.locator(".value").count() == 0


async def test_dead_letters_are_requeued_edited_and_deleted_with_their_number(
    browser: Browser,
    redis_dsn: str,
    dashboard: DashboardProcess,
    client: RRQClient,
    store: JobStore,
    tmp_path: Path,
) -> None:
    with Pod(redis_dsn, tmp_path, "--num-workers", "1", app="dashboard_app.settings") as pod:
        await pod.is_up()
        for number in range(3):
            await client.enqueue("charge_card", number, _max_retries=1)
        async with open_page(browser, dashboard.url) as page:
            await sign_in(page)
            await go(page, "dead")
            group = page.locator("tbody tr", has_text="the card of order # has expired")
            await group.locator("td", has_text=re.compile("^3$")).wait_for(timeout=60_000)
            await group.get_by_role("button", name="Requeue").click()
            await page.get_by_role("button", name="Requeue 3 jobs").click()
            await page.locator(".toast", has_text="3 jobs requeued.").wait_for()
            # They fail again, and are back.
            await group.locator("td", has_text=re.compile("^3$")).wait_for(timeout=60_000)
            await group.get_by_role("link").click()
            await page.locator("tbody .row-link").first.click()
            await page.get_by_role("button", name="Edit and requeue").click()
            await page.get_by_label("Keyword arguments (JSON object)").fill("{")
            await page.get_by_role("button", name="Requeue with these arguments").click()
            await page.get_by_text("This is not JSON").wait_for()
            await page.get_by_label("Keyword arguments (JSON object)").fill('{"card": "new"}')
            await page.get_by_role("button", name="Requeue with these arguments").click()
            await page.locator(".pill", has_text="done").wait_for(timeout=60_000)
            assert "is paid" in await page.locator("main").inner_text()
            await go(page, "dead")
            await group.get_by_role("button", name="Delete").click()
            await page.get_by_role("button", name="Delete 2 jobs").click()
            await page.get_by_text("No dead letters").wait_for()
        entries = await store.read_audit(10)
        assert [entry.action for entry in entries] == ["delete", "requeue", "edit", "requeue"]


async def test_a_viewer_sees_no_actions_and_the_server_refuses_them(
    data: DashboardData, browser: Browser, dashboard: DashboardProcess, store: JobStore
) -> None:
    async with open_page(browser, dashboard.url) as page:
        for name in ("queues", "queues/reports", "dead", "jobs/dead-0001", "controls", "pools"):
            await go(page, name)
            await page.locator(".card").first.wait_for()
            words = await page.locator("main").inner_text()
            assert not re.search(r"\b(Pause|Resume|Requeue|Delete|Disable|Cancel)\b", words), name
        status = await page.evaluate(
            """async () => {
              const session = await (await fetch("api/session")).json();
              const answer = await fetch("api/actions/delete-dead-letters", {
                method: "POST", body: JSON.stringify({ id: "dead-0001", expected: 1 }),
                headers: { "Content-Type": "application/json", [session.csrf_header]: session.csrf },
              });
              return answer.status;
            }"""
        )
        assert status == 403
    assert await store.get_job_data_dict("dead-0001") is not None


async def test_another_site_cannot_act_as_an_admin(
    browser: Browser, dashboard: DashboardProcess, store: JobStore
) -> None:
    async with open_page(browser, dashboard.url) as page:
        await sign_in(page)
        csrf = await page.evaluate("async () => (await (await fetch('api/session')).json()).csrf")
        stranger = await page.context.new_page()
        # The same server by another name is another origin, and the best that an attacker could hope for.
        await stranger.goto(f"{dashboard.url.replace('127.0.0.1', 'localhost')}/livez")
        outcome = await stranger.evaluate(
            """async ([url, csrf]) => {
              const order = JSON.stringify({ target: "queue:default", state: "paused" });
              const simple = fetch(url, { method: "POST", credentials: "include", body: order });
              const full = fetch(url, { method: "POST", credentials: "include", body: order,
                headers: { "Content-Type": "application/json", "X-RRQ-CSRF": csrf } });
              return (await Promise.allSettled([simple, full])).map((answer) => answer.status);
            }""",
            [f"{dashboard.url}/api/actions/pause", csrf],
        )
        assert outcome == ["rejected", "rejected"]
    assert (await store.read_flow()).pauses == {}


async def test_every_page_can_be_reached_with_the_keyboard(
    data: DashboardData, browser: Browser, dashboard: DashboardProcess
) -> None:
    async with open_page(browser, dashboard.url) as page:
        await page.get_by_role("heading", name="Overview").wait_for()
        # The second key of two counts only soon after the first, by a clock that stands still for it.
        await page.clock.set_fixed_time(datetime.now(UTC))
        for key, title in {
            "q": "Queues", "p": "Pools", "w": "Workers", "j": "Jobs", "d": "Dead letters",
            "c": "Cron", "f": "Controls", "a": "Audit", "o": "Overview",
        }.items():  # fmt: skip
            await page.keyboard.press("g")
            await page.keyboard.press(key)
            await page.get_by_role("heading", name=title, exact=True).wait_for()
        await page.keyboard.press("?")
        await page.get_by_role("dialog").get_by_text("Filter the list").wait_for()
        await page.keyboard.press("Escape")
        await page.keyboard.press("g")
        await page.keyboard.press("d")
        # The page before has rows as well.
        await page.get_by_role("heading", name="Dead letters", exact=True).wait_for()
        await page.locator("tbody tr").first.wait_for()
        await page.keyboard.press("/")
        await page.keyboard.type("mailbox")
        await page.locator("tbody tr", has_text="thumbnail").wait_for(state="detached")
        await page.keyboard.press("ArrowDown")
        focused = await page.evaluate("document.activeElement.textContent")
        assert "mailbox of customer" in focused
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        # Live updates leave the focus where it is.
        await page.wait_for_timeout(1500)
        assert await page.evaluate("document.activeElement.textContent") == focused
        await page.keyboard.press("Enter")
        await page.get_by_text("Example").wait_for()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await page.get_by_text("What happened").wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_nothing_scrolls_sideways_on_a_phone(
    data: DashboardData, browser: Browser, dashboard: DashboardProcess, theme: Any
) -> None:
    async with open_page(browser, dashboard.url, viewport=PHONE, color_scheme=theme) as page:
        back = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.findall(r"\d+", back)[0]) < 60) == (theme == "dark")
        for name in (*PAGES, "pools/shop/default", "jobs/dead-0001", "queues/reports"):
            await go(page, name)
            await page.locator(".card").first.wait_for()
            assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name
        await page.get_by_role("button", name="Menu").click()
        await page.get_by_role("link", name="Workers").click()
        await page.get_by_role("heading", name="Workers").wait_for()


async def test_a_chosen_theme_stays(browser: Browser, dashboard: DashboardProcess) -> None:
    async with open_page(browser, dashboard.url, color_scheme="light") as page:
        await page.get_by_role("button", name="Light or dark").click()
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
        await page.reload()
        await page.get_by_role("heading", name="Overview").wait_for()
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"


async def test_job_data_stays_text_on_the_page(
    browser: Browser, dashboard: DashboardProcess, client: RRQClient, store: JobStore
) -> None:
    attack = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    data = DashboardData(store)
    await data.add_dead_letter("evil", attack, "default", attack, await store.read_time())
    await store.connection.call(
        "HSET", "rrq:job:evil", "job_args", f'["{attack}"]'.replace('\\"', "'"), "traceback", attack
    )
    await store.set_pause(f"function:{attack}", "paused", attack, attack)
    await client.enqueue(attack, attack, _queue_name="<b>queue</b>")
    async with open_page(browser, dashboard.url) as page:
        for name in [
            "dead",
            "jobs?source=dead",
            "jobs/evil",
            "controls",
            "audit",
            "queues",
            "jobs?source=queued",
        ]:
            await go(page, name)
            await page.locator(".card").first.wait_for()
        await go(page, "jobs/evil")
        await page.get_by_text("What happened").wait_for()
        assert "<script>" in await text_of(page, ".trace pre")
        assert await page.locator("main img, main script").count() == 0
        assert "owned" not in await page.title()


async def test_without_redis_the_last_data_stays_and_is_grey(
    own_redis: Any, browser: Browser, tmp_path: Path
) -> None:
    store = JobStore(RRQSettings(redis_dsn=own_redis.dsn))
    try:
        await DashboardData(store).fill()
    finally:
        await store.aclose()
    async with (
        DashboardProcess(own_redis.dsn, tmp_path) as dashboard,
        open_page(browser, dashboard.url) as page,
    ):
        await page.locator(".tile", has_text="Dead letters").get_by_text("77").wait_for()
        own_redis.kill()
        await page.get_by_text("Not live.").wait_for()
        assert "The page shows the state of" in await text_of(page, ".banner")
        assert await page.locator("main.is-stale").count() == 1
        assert "77" in await text_of(page, ".tile >> nth=5")
