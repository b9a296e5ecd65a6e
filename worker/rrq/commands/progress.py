"""A bar for work that takes long: on stderr, and only when a person is watching."""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def showing_progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how many more are done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    # Gone at the end: the line on stdout then says what was done.
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(description, total=total)
        yield lambda done: progress.advance(bar, done)
