"""The bar that is shown while a model loads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress as Bar, TaskProgressColumn, TextColumn, TimeElapsedColumn

from tandem.core.plugin import Progress


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Yields a `Progress` that draws on stderr: a bar on a terminal, elsewhere one line for each new task."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    with Bar(*columns, console=console, transient=True) as bar:
        tasks: dict = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield report


def _lines() -> Progress:
    said: set[str] = set()

    def report(what: str, done: int, total: int) -> None:
        if what not in said:
            said.add(what)
            print(what, file=sys.stderr, flush=True)

    return report
