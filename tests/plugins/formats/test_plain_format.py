from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tandem.core.plugin import Tool
from tandem.plugins.formats.plain import Plain, tandem_formats

FORM = Plain()


@given(st.text(min_size=1) | st.just('<tool_call>\n{"name": "now"}\n</tool_call>'), st.integers(1, 5), st.booleans())
def test_every_text_is_text(take_apart, text: str, size: int, cut: bool) -> None:
    assert take_apart(FORM, text, [Tool("now")], size, cut).outcome == [text]


def test_there_are_no_calls_and_no_reasoning() -> None:
    assert (FORM.thinking, FORM.opener, FORM.grammar([Tool("now")], True)) == (None, None, None)
    with pytest.raises(ValueError, match="no notation for calls"):
        FORM.render("now", {})


def test_it_fits_every_template() -> None:
    (part,) = tandem_formats()
    assert part.fits("")
    assert part.fits("<tool_call><function=f>")
