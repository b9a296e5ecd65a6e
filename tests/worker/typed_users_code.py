"""What mypy says to users of the typed API: nothing about right calls, and the right thing about wrong ones.

`make test` runs mypy over this file. An ignored complaint that mypy does not make is an error there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rrq import App

if TYPE_CHECKING:
    from rrq.client import JobRequest
    from rrq.context import JobContext
    from rrq.job_handle import JobHandle

app = App()


@app.job(queue="mail", max_retries=3)
async def send(ctx: dict[str, Any], to: str, *, copies: int = 1) -> int:
    return copies


@app.job()
def shout(ctx: JobContext, text: str) -> str:
    return text.upper()


async def right() -> None:
    handle = await send.enqueue("eve", copies=2)
    number: int = await handle.result(timeout_seconds=5)
    kept: JobHandle[int] = send.handle(handle.id)
    text: str = await (
        await shout.with_options(queue="q", defer_by=2.5, job_id="a").enqueue(text="hi")
    ).result()
    batch: list[JobRequest] = [send.request("eve"), shout.with_options(max_retries=1).request("hi")]
    called: int = await send({}, "eve")
    plain: str = shout({}, "hi")
    del number, kept, text, batch, called, plain


async def wrong() -> None:
    await send.enqueue(7)  # type: ignore[arg-type]
    await send.enqueue()  # type: ignore[call-arg]
    await send.enqueue("eve", loud=True)  # type: ignore[call-arg]
    await send.enqueue("eve", copies="2")  # type: ignore[arg-type]
    text: str = await (await send.enqueue("eve")).result()  # type: ignore[assignment]
    kept: JobHandle[str] = await send.enqueue("eve")  # type: ignore[assignment]
    await shout.with_options(queue="q").enqueue(b"hi")  # type: ignore[arg-type]
    shout.request()  # type: ignore[call-arg]
    send.with_options(colour="red")  # type: ignore[call-arg]
    send.with_options(max_retries="3")  # type: ignore[arg-type]
    app.job(job_id="same")  # type: ignore[call-arg]
    del text, kept
