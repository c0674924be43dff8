"""The pytest plugin. Every run of pytest where Tandem is installed loads it, so it imports nothing but pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tandem.testing.box import Box


@pytest.fixture
def platform() -> Iterator[Callable[..., Box]]:
    """A running Tandem in a box: call it with a manifest, and it is closed when the test ends.

        def test_something(platform):
            host = platform(rules={"no_disclaimer": {}})
            host.chat("hello", script=["Good ", "day."]).assert_text("Good day.")

    See `tandem.testing.box.Box` for what the manifest may be and what the host can do.
    """
    from tandem.testing.box import Box

    boxes: list[Box] = []

    def start(*args: object, **kwargs: object) -> Box:
        box = Box(*args, **kwargs)  # type: ignore[arg-type]
        boxes.append(box)
        return box

    yield start
    for box in reversed(boxes):
        box.close()
