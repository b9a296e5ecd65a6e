"""The dashboard over HTTP, on a real Redis: what it answers, to whom, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from dashboard_data import DashboardData
from dashboard_server import ADMIN_TOKEN, VIEW_TOKEN, Browser, serve_dashboard
from queue_steps import dead, enqueue, start_worker
from rrq.settings import RRQSettings
from rrq.store import JobStore
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rrq.embedded import EmbeddedRedis

DLQ = "rrq:dlq:default"


@pytest.fixture
async def browser(store: JobStore) -> AsyncIterator[Browser]:
    """Somebody on this machine who may sign in as admin."""
    async with serve_dashboard(store, admin_token=ADMIN_TOKEN) as browser:
        yield browser


@pytest.fixture
async def admin(browser: Browser) -> Browser:
    await browser.sign_in()
    return browser


@pytest.fixture
async def data(store: JobStore) -> DashboardData:
    data = DashboardData(store)
    await data.fill()
    return data


async def bury(store: JobStore, *errors: str, queue: str = "default", function: str = "charge") -> None:
    """Make a dead letter of each error, the last one the newest; ids are 0, 1, …"""
    data = DashboardData(store)
    now = await store.read_time()
    for number, error in enumerate(errors):
        ended = now - timedelta(seconds=len(errors) - number)
        await data.add_dead_letter(str(number), function, queue, error, ended)


async def dead_ids(store: JobStore) -> list[str]:
    reply: Any = await store.connection.call("LRANGE", DLQ, 0, -1)
    return [entry.decode() for entry in reply]


async def audited(store: JobStore) -> list[tuple[str, str, str]]:
    return [(entry.actor, entry.action, entry.object) for entry in await store.read_audit(10)]


# The page and its headers


async def test_the_page_is_served_with_a_strict_policy(browser: Browser) -> None:
    async with browser.session.get(f"{browser.url}/") as answer:
        text = await answer.text()
        assert answer.status == 200
        assert answer.content_type == "text/html"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "<script>" not in text
    assert "style=" not in text
    async with browser.session.get(f"{browser.url}/static/app.js") as answer:
        assert answer.content_type == "text/javascript"
        etag = answer.headers["ETag"]
    async with browser.session.get(f"{browser.url}/static/app.js", headers={"If-None-Match": etag}) as answer:
        assert answer.status == 304


async def test_only_files_of_the_page_can_be_fetched(browser: Browser) -> None:
    for path in ("static/../server.py", "static/%2e%2e/server.py", "static/server.py", "static//etc/passwd"):
        async with browser.session.get(f"{browser.url}/{path}") as answer:
            assert answer.status == 404, path
            assert "Content-Security-Policy" in answer.headers


async def test_an_unknown_host_name_is_refused(browser: Browser) -> None:
    status, body = await browser.get("queues", Host="evil.example")
    assert status == 421
    assert "--public-host evil.example" in body["error"]


# Who may look


async def test_nothing_is_shown_before_signing_in(store: JobStore) -> None:
    async with serve_dashboard(store, view_token=VIEW_TOKEN, admin_token=ADMIN_TOKEN) as browser:
        pages = "session queues jobs job?id=1 workers dead-letters dead-letters/1 cron pools live audit controls decisions"
        for path in pages.split():
            assert (await browser.get(path))[0] == 401, path
        status, body = await browser.post("sign-in", {"token": "wrong"})
        assert (status, body) == (403, {"error": "This token is wrong."})
        await browser.sign_in(VIEW_TOKEN)
        session = await browser.ok("session")
        assert (session["role"], session["actor"]) == ("read-only", "anna (read-only token)")
        assert (await browser.get("queues"))[0] == 200
        await browser.post("sign-out", {})
        assert (await browser.get("queues"))[0] == 401


async def test_the_session_cookie_is_out_of_reach_for_scripts_and_other_sites(browser: Browser) -> None:
    body, headers = {"token": ADMIN_TOKEN}, {"Origin": browser.url}
    async with browser.session.post(f"{browser.url}/api/sign-in", json=body, headers=headers) as answer:
        cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Secure" not in cookie
    headers["X-Forwarded-Proto"] = "https"
    async with browser.session.post(f"{browser.url}/api/sign-in", json=body, headers=headers) as answer:
        assert "Secure" in answer.headers["Set-Cookie"]


async def test_headers_that_make_no_sense_are_refused(browser: Browser) -> None:
    usual = {"Host": "127.0.0.1", "Origin": "http://127.0.0.1", "Content-Type": "application/json"}
    for odd in (
        {"Host": "["},
        {"Origin": "http://["},
        {"Cookie": "rrq_dashboard=\udcff.a"},
        {"Content-Type": "application/json; charset=x"},
    ):
        head = "".join(f"{name}: {value}\r\n" for name, value in (usual | odd).items())
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(browser.url).port)
        request = f"POST /api/sign-in HTTP/1.1\r\n{head}Content-Length: 2\r\n\r\n{{}}"
        writer.write(request.encode("utf-8", "surrogateescape"))
        status = int((await reader.readline()).split()[1])
        writer.close()
        assert 400 <= status < 500, odd


async def test_a_proxy_names_the_user_and_admins_may_act(store: JobStore) -> None:
    async with serve_dashboard(store, proxy_user_header="X-User", proxy_admins=["anna"]) as browser:
        assert (await browser.get("session"))[0] == 401
        _, omar = await browser.get("session", **{"X-User": "omar"})
        assert (omar["actor"], omar["role"]) == ("omar", "read-only")
        _, anna = await browser.get("session", **{"X-User": "anna"})
        assert (anna["actor"], anna["role"]) == ("anna", "admin")
        order = {"target": "queue:mail", "state": "paused"}
        as_omar = {"X-User": "omar", "X-RRQ-CSRF": omar["csrf"]}
        assert (await browser.post("actions/pause", order, **as_omar))[0] == 403
        stolen = {"X-User": "anna", "X-RRQ-CSRF": omar["csrf"]}
        assert (await browser.post("actions/pause", order, **stolen))[0] == 403
        as_anna = {"X-User": "anna", "X-RRQ-CSRF": anna["csrf"]}
        assert (await browser.post("actions/pause", order, **as_anna))[0] == 200
    assert await audited(store) == [("anna", "pause", "queue:mail")]


# Who may act


async def test_a_viewer_is_refused_every_action(browser: Browser, store: JobStore) -> None:
    await bury(store, "no")
    orders: dict[str, dict[str, Any]] = {
        "pause": {"target": "queue:a", "state": "paused"},
        "resume": {"target": "queue:a"},
        "cancel-job": {"id": "0"},
        "cancel-where": {"queue": "default", "dry_run": True},
        "requeue-dead-letters": {"id": "0", "expected": 1},
        "delete-dead-letters": {"id": "0", "expected": 1},
        "edit-dead-letter": {"id": "0", "args": "[]", "kwargs": "{}"},
    }
    for name, order in orders.items():
        status, body = await browser.act(name, **order)
        assert status == 403, name
        assert "anonymous is a viewer here" in body["error"]
    assert await dead_ids(store) == ["0"]
    assert await audited(store) == []


async def test_a_read_only_server_refuses_every_action(store: JobStore) -> None:
    async with serve_dashboard(store, admin_token=ADMIN_TOKEN, read_only=True) as browser:
        await browser.sign_in()
        assert (await browser.ok("session"))["role"] == "read-only"
        assert (await browser.act("pause", target="queue:a", state="paused"))[0] == 403


async def test_a_page_of_another_origin_cannot_act_for_an_admin(admin: Browser, store: JobStore) -> None:
    session = await admin.ok("session")
    order, csrf = {"target": "queue:a", "state": "paused"}, {"X-RRQ-CSRF": session["csrf"]}
    for headers in (
        {"Origin": "https://evil.example", **csrf},
        {"Origin": None, **csrf},
        {"Sec_Fetch_Site": "cross-site", **csrf},
        {"X-RRQ-CSRF": "0" * 64},
        {},
    ):
        status, _ = await admin.post("actions/pause", order, **headers)
        assert status == 403, headers
    # A form needs nobody's leave to be sent anywhere, but it cannot be JSON.
    async with admin.session.post(
        f"{admin.url}/api/actions/pause", data=order, headers={"Origin": admin.url, **csrf}
    ) as answer:
        assert answer.status == 415
    assert (await store.read_flow()).pauses == {}
    assert (await admin.post("actions/pause", order, **csrf))[0] == 200


# What it shows


async def test_all_pages_get_the_same_sample_every_second(browser: Browser, store: JobStore) -> None:
    first, *more = await browser.events(3)
    assert first[0] == "history"
    assert [name for name, _ in more] == ["sample", "sample"]
    others = await asyncio.gather(*(browser.events(2) for _ in range(20)))
    # Of one look, or of one a second or two later; each with a look of its own would have seen twenty.
    assert len({events[1][1]["at_ms"] for events in others}) <= 4


async def count_calls(store: JobStore) -> Counter[str]:
    """How often each command was sent; the server may have served other tests before."""
    info: Any = await store.redis.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): figures["calls"] for name, figures in info.items()})


async def test_many_open_pages_cost_redis_no_more_than_one(browser: Browser, store: JobStore) -> None:
    await asyncio.gather(*(browser.events(2) for _ in range(30)))
    before = await count_calls(store)
    await asyncio.gather(*(browser.ok("workers") for _ in range(50)))
    sent = await count_calls(store) - before
    assert sent["evalsha"] <= 25
    assert not {"scan", "keys", "hscan", "sscan", "zscan"} & sent.keys()


async def test_every_page_shows_its_data(data: DashboardData, browser: Browser, store: JobStore) -> None:
    before = await count_calls(store)
    queues = {row["name"]: row for row in (await browser.ok("queues"))["queues"]}
    assert queues["thumbnails"]["due"] == 128
    assert queues["reports"]["oldest_seconds"] > 20
    assert queues["reports"]["limit"]["concurrency"] == 2
    workers = (await browser.ok("workers"))["workers"]
    assert len(workers) == 7
    assert workers[0]["jobs"][0]["function"]
    assert sum(worker["is_draining"] for worker in workers) == 1
    controls = await browser.ok("controls")
    assert [pause["target"] for pause in controls["pauses"]] == ["function:send_newsletter"]
    pools = (await browser.ok("pools"))["pools"]
    assert [pool["pool"] for pool in pools] == ["shop/default", "shop/media", "shop/payments", "shop/reports"]
    decisions = (await browser.ok("decisions?pool=shop/default"))["decisions"]
    assert {decision["reason"] for decision in decisions} == {"Steady", "Backlog", "CooledDown"}
    assert decisions[0]["at_ms"] > decisions[-1]["at_ms"]
    cron = (await browser.ok("cron"))["entries"]
    assert cron[0]["function"] == "refresh_prices"
    assert len((await browser.ok("audit"))["entries"]) == 6
    # Nothing of all that was found by going through the keys.
    assert not {"scan", "keys"} & (await count_calls(store) - before).keys()


async def test_every_list_of_jobs_is_paged_and_can_be_filtered(data: DashboardData, browser: Browser) -> None:
    async def has_queues() -> bool:
        return bool((await browser.ok("jobs"))["queues"])

    await eventually(has_queues, 30, "the first snapshot never came")
    for source, total in {"recent": 180, "running": 30, "queued": 349, "blocked": 6, "dead": 77}.items():
        seen: list[str] = []
        offset = 0
        while offset is not None:
            page = await browser.ok(f"jobs?source={source}&offset={offset}")
            seen += [job["id"] for job in page["jobs"]]
            assert len(page["jobs"]) <= 50
            offset = page["next_offset"]
        assert page["total"] == len(seen) == len(set(seen)) == total, source
    page = await browser.ok("jobs?source=dead&text=mailbox")
    assert (len(page["jobs"]), page["looked_at"]) == (12, 77)
    assert {job["function"] for job in page["jobs"]} == {"send_newsletter"}
    page = await browser.ok("jobs?source=recent&status=cancelled")
    assert {job["status"] for job in page["jobs"]} == {"CANCELLED"}
    assert (await browser.ok("jobs?source=queued&queue=reports"))["total"] == 9
    for query in ("source=everything", "offset=-1", "offset=x", "offset=9999999999", "text=" + "x" * 600):
        assert (await browser.get(f"jobs?{query}"))[0] == 400, query


async def test_one_job_is_shown_with_attempts_arguments_and_traceback(
    browser: Browser, store: JobStore
) -> None:
    await bury(store, "no such card")
    job = await browser.ok("job?id=0")
    assert job["is_dead_letter"]
    assert [event["kind"] for event in job["timeline"]] == ["enqueued", "retry", "retry", "dead"]
    assert "no such card" in job["traceback"]
    assert json.loads(job["kwargs"]["text"])["currency"] == "EUR"
    assert (await browser.get("job?id=unheard-of"))[0] == 404


async def test_hidden_arguments_are_never_sent_and_cannot_be_edited(store: JobStore) -> None:
    await bury(store, "no")
    async with serve_dashboard(store, hides_values=True, admin_token=ADMIN_TOKEN) as browser:
        await browser.sign_in()
        assert "EUR" not in json.dumps(await browser.ok("job?id=0"))
        status, body = await browser.act("edit-dead-letter", id="0", args="[]", kwargs="{}")
        assert status == 409
        assert "hidden" in body["error"]


async def test_unexpected_data_in_redis_does_not_break_the_page(browser: Browser, store: JobStore) -> None:
    await store.connection.call("ZADD", "rrq:queue:default", "inf", "far-away")
    await store.connection.call("HSET", "rrq:pools", "shop/odd", "no JSON", "shop/list", "[]")
    await store.connection.call("HSET", "rrq:counters", "done", "many")
    await store.connection.call("LPUSH", "rrq:recent", b"\xff\xfe")
    await store.connection.call("HSET", "rrq:job:odd", "attempts", "{", "status", "FAILED", "progress", "7")
    assert (await browser.ok("jobs?source=queued&queue=default"))["jobs"][0]["is_gone"]
    assert (await browser.ok("pools"))["pools"] == []
    assert (await browser.ok("jobs"))["total"] == 1
    assert (await browser.ok("job?id=odd"))["progress"] is None
    assert (await browser.events(1))[0][0] == "history"


# What it changes


async def test_a_queue_is_paused_and_resumed_and_the_audit_has_the_user(
    admin: Browser, store: JobStore
) -> None:
    status, body = await admin.act("pause", target="queue:default", state="paused", reason="too hot")
    assert (status, body["words"]) == (200, "Queue default is paused.")
    worker = await start_worker(store)
    await enqueue(store, "1")
    assert (await worker.claim(1)).jobs == []
    assert (await admin.act("resume", target="queue:default"))[0] == 200
    assert len((await worker.claim(1)).jobs) == 1
    assert (await admin.act("pause", target="function:charge", state="disabled"))[0] == 200
    assert (await store.read_flow()).pauses["function:charge"].state == "disabled"
    actor = "anna (admin token)"
    done = [("disable", "function:charge"), ("resume", "queue:default"), ("pause", "queue:default")]
    assert await audited(store) == [(actor, *action) for action in done]
    assert len((await admin.ok("audit"))["entries"]) == 3


NONSENSE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("pause", {"target": "everything", "state": "paused"}),
    ("pause", {"target": "queue:a", "state": "stopped"}),
    ("pause", {"target": "queue:a", "state": "disabled"}),
    ("pause", {"target": 7, "state": "paused"}),
    ("pause", {"target": "queue:a", "state": "paused", "reason": "x" * 600}),
    ("resume", {}),
    ("cancel-job", {"id": "unheard of"}),
    ("cancel-where", {"function": "charge", "dry_run": True}),
    ("cancel-where", {"queue": "default"}),
    ("requeue-dead-letters", {}),
    ("requeue-dead-letters", {"id": "unheard of", "expected": 1}),
    ("delete-dead-letters", {"group": "unheard of", "expected": 1}),
    ("edit-dead-letter", {"id": "0", "args": "{}", "kwargs": "{}"}),
    ("edit-dead-letter", {"id": "0", "args": "[", "kwargs": "{}"}),
    ("edit-dead-letter", {"id": "0"}),
    ("edit-dead-letter", {"id": "unheard of", "args": "[]", "kwargs": "{}"}),
    ("format-the-disk", {}),
)


async def test_an_invalid_action_is_refused(admin: Browser, store: JobStore) -> None:
    await bury(store, "no")
    for name, order in NONSENSE:
        status, told = await admin.act(name, **order)
        assert status == 409, (name, order)
        assert told["error"].endswith((".", "again."))
    assert await audited(store) == []
    session = await admin.ok("session")
    headers = {"Origin": admin.url, "Content-Type": "application/json", "X-RRQ-CSRF": session["csrf"]}
    for body in ("[]", "{", '"x"'):
        async with admin.session.post(f"{admin.url}/api/actions/pause", data=body, headers=headers) as answer:
            assert answer.status == 400, body


async def test_only_as_many_jobs_of_a_group_are_requeued_as_the_admin_confirmed(
    admin: Browser, store: JobStore
) -> None:
    await bury(store, "order 1 lost", "order 2 lost", "no such card", "order 3 lost")
    groups = {group["pattern"]: group for group in (await admin.ok("dead-letters"))["groups"]}
    order = {"group": groups["order # lost"]["id"]}
    status, told = await admin.act("requeue-dead-letters", **order, dry_run=True)
    assert (status, told["affected"]) == (200, 3)
    assert await audited(store) == []
    # The newest one arrived after the count, and stays.
    status, done = await admin.act("requeue-dead-letters", **order, expected=2)
    assert (status, done) == (200, {"affected": 2, "words": "2 jobs requeued."})
    assert await dead_ids(store) == ["3", "2"]
    assert await store.get_queued_job_ids("default") == ["0", "1"]
    assert await audited(store) == [("anna (admin token)", "requeue", f"dlq:{DLQ}")]
    # Each goes back to the queue it came from.
    await bury(store, "no", queue="payments")
    assert (await admin.act("requeue-dead-letters", id="0", expected=1))[0] == 200
    assert await store.get_queued_job_ids("payments") == ["0"]


async def test_dead_letters_are_deleted_for_good(admin: Browser, store: JobStore) -> None:
    await bury(store, "order 1 lost", "order 2 lost", "no such card")
    group = (await admin.ok("dead-letters"))["groups"][0]
    assert (await admin.act("delete-dead-letters", group=group["id"], expected=2))[1]["affected"] == 2
    assert await dead_ids(store) == ["2"]
    # The next look shows it.
    assert (await admin.get("job?id=0"))[0] == 404
    assert (await admin.ok("dead-letters"))["total"] == 1
    assert await audited(store) == [("anna (admin token)", "delete", f"dlq:{DLQ}")]


async def test_a_dead_letter_is_edited_and_requeued(admin: Browser, store: JobStore) -> None:
    await bury(store, "no")
    order = {"id": "0", "args": "[7]", "kwargs": '{"card": "other"}', "queue": "second-try"}
    status, done = await admin.act("edit-dead-letter", **order)
    assert (status, done["affected"]) == (200, 1)
    job = await store.get_job_definition("0")
    assert job is not None
    assert (job.job_args, job.job_kwargs, job.queue_name) == ([7], {"card": "other"}, "second-try")
    assert await store.get_queued_job_ids("second-try") == ["0"]
    assert [action for _, action, _ in await audited(store)] == ["requeue", "edit"]


async def test_jobs_are_cancelled_one_by_one_and_by_queue_and_function(
    admin: Browser, store: JobStore
) -> None:
    for number in range(4):
        await enqueue(store, str(number), function_name="charge" if number else "render")
    assert (await admin.act("cancel-job", id="1"))[1]["words"] == "Job 1 is cancelled."
    assert (await admin.act("cancel-job", id="1"))[0] == 409
    order = {"queue": "default", "function": "charge"}
    assert (await admin.act("cancel-where", **order, dry_run=True))[1]["affected"] == 2
    status, body = await admin.act("cancel-where", **order, expected=1)
    assert status == 409
    assert "2 jobs match by now, more than you confirmed" in body["error"]
    assert (await admin.act("cancel-where", **order, expected=2))[1]["affected"] == 2
    assert await store.get_queued_job_ids("default") == ["0"]


async def test_a_running_job_is_cancelled_by_its_worker(admin: Browser, store: JobStore) -> None:
    worker = await start_worker(store)
    await enqueue(store, "1")
    await worker.take_one()
    status, done = await admin.act("cancel-job", id="1")
    assert status == 200
    assert "its worker will cancel it" in done["words"]


# Trouble


async def test_viewing_needs_only_read_rights_on_redis(own_redis: EmbeddedRedis) -> None:
    owner = JobStore(RRQSettings(redis_dsn=own_redis.dsn))
    rights = ["~rrq:*", "+@read", "+eval", "+evalsha", "+time", "+ping"]
    await owner.connection.call("ACL", "SETUSER", "viewer", "on", ">secret", *rights)
    await DashboardData(owner).fill()
    await owner.aclose()
    viewer = JobStore(RRQSettings(redis_dsn=own_redis.dsn.replace("redis://", "redis://viewer:secret@")))
    try:
        async with serve_dashboard(viewer) as browser:
            assert (await browser.events(1))[0][0] == "history"
            for path in [
                "queues",
                "controls",
                "workers",
                "dead-letters",
                "cron",
                "pools",
                "audit",
                "job?id=dead-0001",
            ]:
                assert (await browser.get(path))[0] == 200, path
            for source in ("recent", "running", "queued", "blocked", "dead"):
                assert (await browser.ok(f"jobs?source={source}"))["jobs"], source
    finally:
        await viewer.aclose()


async def test_without_redis_the_page_shows_an_error_instead_of_zeros(
    own_redis: EmbeddedRedis,
) -> None:
    store = JobStore(RRQSettings(redis_dsn=own_redis.dsn))
    try:
        worker = await start_worker(store)
        await enqueue(store, "1")
        await worker.finish(dead(await worker.take_one()))
        async with serve_dashboard(store) as browser:
            (name, told), *_ = await browser.events(1)
            assert (name, told["samples"][-1]["dead_letters"]) == ("history", 1)
            own_redis.kill()
            status, body = await browser.get("workers")
            assert (status, body["is_trouble"]) == (503, True)

            async def trouble() -> Any:
                events = dict(await browser.events(2))
                return events.get("trouble")

            told = await eventually(trouble, 20, "nobody said that Redis is away")
            assert told["words"].startswith("no Redis: ")
            assert told["since_ms"] is not None
            own_redis.restart()

            async def sample() -> Any:
                return dict(await browser.events(3)).get("sample")

            assert (await eventually(sample, 20, "it never came back"))["dead_letters"] == 0
    finally:
        await store.aclose()
