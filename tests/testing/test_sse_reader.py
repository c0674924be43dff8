"""The reader of server-sent events, against the specification's own examples and our writer."""

from __future__ import annotations

import itertools
import json

from hypothesis import given, strategies as st

from tandem.api import sse as writer
from tandem.testing import sse
from tandem.testing.sse import Comment, Event


def test_a_field_without_a_colon_and_one_without_a_space() -> None:
    assert list(sse.read([b"data\n\ndata:a\ndata: b\nevent: tick\nid: 7\n\n"])) == [
        Event(""),
        Event("a\nb", "tick", "7"),
    ]


def test_an_event_without_data_is_none_and_what_has_no_blank_line_is_not_sent() -> None:
    assert list(sse.read([b"event: nothing\n\n: note\n\ndata: half"])) == [Comment("note")]


def test_every_line_end_of_the_specification_and_no_other() -> None:
    for end in ("\n", "\r", "\r\n"):
        assert sse.events([f"data: a\u2028b{end}{end}data: c{end}{end}".encode()]) == [Event("a\u2028b"), Event("c")]


@given(
    st.lists(
        st.one_of(st.text(max_size=8).map(lambda text: ("data", text)), st.just(("note", "keep-alive"))), max_size=5
    ),
    st.lists(st.integers(0, 200), max_size=5),
)
def test_what_the_server_writes_is_read_back_however_the_bytes_are_cut(
    items: list[tuple[str, str]], cuts: list[int]
) -> None:
    written = b"".join(writer.event({"text": text}) if kind == "data" else writer.comment(text) for kind, text in items)
    places = sorted({min(cut, len(written)) for cut in cuts} | {0, len(written)})
    read = list(sse.read(written[start:end] for start, end in itertools.pairwise(places)))
    assert [(item.json()["text"] if isinstance(item, Event) else item.text) for item in read] == [t for _, t in items]


@given(st.text())
def test_an_event_is_one_line_by_everybodys_rules(text: str) -> None:
    line, *rest = writer.event(text).decode().splitlines()
    assert rest == [""]
    assert json.loads(line.removeprefix("data: ")) == text
