"""A picture on the terminal that is drawn anew until a signal ends it."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from rrq.commands.refusal import Refusal
from rrq.runtime.masking import mask_secrets

if TYPE_CHECKING:
    from rich.console import RenderableType

T = TypeVar("T")


async def show_live(
    look: Callable[[], Awaitable[T]],
    draw: "Callable[[T | None, str], RenderableType]",
    refresh_seconds: float,
) -> None:
    """Look and draw again and again. A look that is refused leaves the last picture, with the reason above it.

    The first look is not forgiven: what never worked is more likely a slip of the pen.
    """
    from rich.console import Console
    from rich.live import Live

    picture, trouble = await look(), ""
    stopping = asyncio.Event()
    # As signals and not as KeyboardInterrupt: the terminal is put back in order first.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    stopped = asyncio.create_task(stopping.wait())
    try:
        with Live(console=Console(), screen=True, auto_refresh=False) as live:
            while not stopping.is_set():
                live.update(draw(picture, trouble), refresh=True)
                await asyncio.wait({stopped}, timeout=refresh_seconds)
                looking = asyncio.ensure_future(look())
                # A cluster that hangs must not hold up the end.
                await asyncio.wait({looking, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not looking.done():
                    looking.cancel()
                try:
                    with contextlib.suppress(asyncio.CancelledError):
                        picture, trouble = await looking, ""
                except Refusal as refusal:
                    trouble = mask_secrets(refusal.message)
    finally:
        stopped.cancel()
