from __future__ import annotations

from hypothesis import given, strategies as st

from tandem.core.answer.gate import CallGate, HeldBlock, HeldCall
from tandem.core.engine.request import CallPiece, Piece

OPEN = "<tool_call>"


def call(index: int, arguments: str = "{}", name: str | None = "f", done: bool = True) -> CallPiece:
    return CallPiece(index, name, arguments, done)


def text(events: list[Piece | CallPiece]) -> str:
    return "".join(event.text for event in events if isinstance(event, Piece))


def test_text_before_the_first_call_goes_out_at_once_and_nothing_behind_it() -> None:
    gate = CallGate(OPEN)
    assert gate.feed([Piece("a "), Piece("b ")]) == [Piece("a "), Piece("b ")]
    assert gate.feed([call(0), Piece("between"), call(1)]) == []
    assert gate.holding
    assert [item.index for item in gate.items() if isinstance(item, HeldCall)] == [0, 1]


def test_a_call_in_pieces_goes_out_whole() -> None:
    gate = CallGate(OPEN)
    gate.feed([CallPiece(0, "f", "", False)])
    gate.feed([CallPiece(0, None, '{"x": ', False), CallPiece(0, None, "1}", True)])
    assert gate.release({}) == [CallPiece(0, "f", '{"x": 1}', True)]
    assert not gate.holding


def test_a_repair_changes_the_arguments_of_its_call_alone() -> None:
    gate = CallGate(OPEN)
    gate.feed([call(0, '{"x": 1}'), call(1, '{"x": 1}')])
    out = gate.release({1: {"x": 2}})
    assert [event.arguments for event in out if isinstance(event, CallPiece)] == ['{"x": 1}', '{"x": 2}']


def test_a_block_that_is_no_call_is_held_from_its_opener_on() -> None:
    gate = CallGate(OPEN)
    assert text(gate.feed([Piece(f"so {OPEN}nonsense")])) == "so "
    assert gate.feed([Piece("</tool_call> and more")]) == []
    (item,) = gate.items()
    assert isinstance(item, HeldBlock)
    assert item.text == f"{OPEN}nonsense</tool_call> and more"
    assert text(gate.release({})) == f"{OPEN}nonsense</tool_call> and more"


def test_what_is_dropped_is_gone() -> None:
    gate = CallGate(OPEN)
    gate.feed([call(0)])
    gate.drop()
    assert gate.items() == []
    assert gate.feed([Piece("on")]) == [Piece("on")]


def test_tokens_without_text_stay_with_what_follows_them() -> None:
    gate, mute = CallGate(OPEN), Piece("", tokens=1)
    assert gate.feed([mute]) == []
    assert gate.feed([Piece("text")]) == [mute, Piece("text")]
    assert gate.tokens == 0
    gate.feed([mute, mute, call(0)])
    assert gate.tokens == 2
    gate.drop()
    gate.feed([mute])
    assert (gate.tokens, gate.settle(), gate.settle()) == (0, [mute], [])


def test_a_call_that_was_cut_stays_open() -> None:
    gate = CallGate(OPEN)
    gate.feed([CallPiece(0, "f", '{"x": ', False)])
    (item,) = gate.items()
    assert isinstance(item, HeldCall)
    assert (item.call.done, item.call.arguments) == (False, '{"x": ')
    assert gate.release({}) == [CallPiece(0, "f", '{"x": ', False)]


EVENTS = st.lists(
    st.one_of(
        st.text("ab <tool_call>", max_size=14).map(Piece),
        st.tuples(st.integers(0, 2), st.text("x{}", max_size=3)).map(lambda pair: call(pair[0], pair[1])),
    ),
    max_size=12,
)


@given(EVENTS)
def test_nothing_is_lost_or_changed_on_the_way_through(events: list[Piece | CallPiece]) -> None:
    gate = CallGate(OPEN)
    out = [event for one in events for event in gate.feed([one])]
    out += gate.release({})
    assert text(out) == text(events)
    for index in range(3):
        sent = "".join(e.arguments for e in events if isinstance(e, CallPiece) and e.index == index)
        got = "".join(e.arguments for e in out if isinstance(e, CallPiece) and e.index == index)
        assert got == sent
