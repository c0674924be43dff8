from __future__ import annotations

from hypothesis import given, strategies as st

from tandem.core.plugin import AnswerReader, CallPart, JsonCall, Steps, TextPart, Tool, json_arguments, json_call

TOOLS = [Tool("add", "", {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}})]


class Braces(AnswerReader):
    """A call is `@name{...}`; everything else is text."""

    def read(self) -> Steps[None]:
        while char := (yield from self.char()):
            length = 1
            while char == "@" and (yield from self.char(length)).isalpha():
                length += 1
            if char == "@" and (yield from self.char(length)) == "{":
                tool = self.begin(self.take(length)[1:])
                if (yield from json_arguments(self, tool)):
                    self.done()
                else:
                    self.leave()
            else:
                self.say(self.take(1))


class Objects(AnswerReader):
    """A call is a JSON object, anywhere; what comes of each is kept."""

    def read(self) -> Steps[None]:
        self.seen: list[JsonCall] = []
        while char := (yield from self.char()):
            if char == "{":
                self.seen.append((yield from json_call(self, 0)))
                if self.seen[-1] is not JsonCall.NONE:
                    continue
            self.say(self.take(1))


def parts(reader: AnswerReader, *pieces: str, cut: bool = False) -> list[TextPart | CallPart]:
    return [part for piece in pieces for part in reader.feed(piece)] + reader.end(cut)


def test_a_format_is_one_walk_through_the_answer() -> None:
    read = parts(Braces(TOOLS), "Look: ", "@a", 'dd{"a": "1", ', '"B": "x"}', " and @home")
    assert read == [
        TextPart("Look: "),
        CallPart(0, name="add"),
        CallPart(0, '{"a": 1, '),
        CallPart(0, '"b": "x"}', done=True),
        TextPart(" and "),
        TextPart("@home"),
    ]


@given(st.lists(st.sampled_from(["@", "add", "{", "}", '"a"', ":", "1", ", ", "x", " ", "@add{}"]), max_size=20))
def test_characters_one_by_one_give_what_the_whole_gives(texts: list[str]) -> None:
    def outcome(pieces: str | list[str]) -> tuple[str, list[tuple[int, str | None, str, bool]]]:
        read = parts(Braces(TOOLS), *pieces)
        calls: dict[int, tuple[int, str | None, str, bool]] = {}
        for part in read:
            if isinstance(part, CallPart):
                index, name, arguments, done = calls.get(part.index, (part.index, None, "", False))
                calls[part.index] = (index, name or part.name, arguments + part.arguments, done or part.done)
        return "".join(part.text for part in read if isinstance(part, TextPart)), list(calls.values())

    text = "".join(texts)
    assert outcome(text) == outcome([text])


def test_a_parts_neighbours_in_one_piece_are_one_part() -> None:
    reader = Braces(TOOLS)
    assert reader.feed("a b c ") == [TextPart("a b c ")]
    assert reader.feed('@add{"b": "x"}') == [CallPart(0, name="add"), CallPart(0, '{"b": "x"}', done=True)]


def test_a_blank_answer_stays_text_and_blanks_beside_a_call_do_not() -> None:
    assert parts(Braces(TOOLS), "\n \n") == [TextPart("\n \n")]
    assert parts(Braces(TOOLS), "\n", "@add{}", "\n", '@add{"a": 1}', " ")[0] == CallPart(0, name="add")
    assert not [part for part in parts(Braces(TOOLS), "\n @add{}\n ") if isinstance(part, TextPart)]


def test_what_became_of_a_json_object() -> None:
    for text, cut, seen in [
        ('{"name": "add", "arguments": {"a": 1}}', False, [JsonCall.WHOLE]),
        ('{"name": "add", "arguments": {"a": ?', False, [JsonCall.OPEN]),
        ('{"name": "add", "arguments": {"a": ', True, [JsonCall.OPEN]),
        ('{"name": "add"', True, [JsonCall.OPEN]),
        ('{"name": "add"', False, [JsonCall.NONE]),
        ('{"a": 1}', False, [JsonCall.NONE]),
        ('{"a": {"name": "add"}}', False, [JsonCall.NONE, JsonCall.WHOLE]),
    ]:
        reader = Objects(TOOLS)
        read = parts(reader, *text, cut=cut)
        assert reader.seen == seen, text
        if seen == [JsonCall.NONE]:
            assert "".join(part.text for part in read if isinstance(part, TextPart)) == text


def test_a_whole_argument_object_may_be_deeply_nested() -> None:
    deep = '{"b": ' + "[" * 3000 + "]" * 3000 + "}"
    read = parts(Braces(TOOLS), f"@add{deep}")
    assert "".join(part.arguments for part in read if isinstance(part, CallPart)) == deep
