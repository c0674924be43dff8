"""Takes an answer apart."""

from __future__ import annotations

from tandem.core.plugin import (
    AnswerReader,
    JsonCall,
    Steps,
    Tool,
    json_arguments,
    json_call,
    json_text,
    tool_named,
)
from tandem.plugins.formats.qwen_xml.tags import (
    ANY,
    CLOSING,
    ENDED,
    INSIDE,
    KINDS,
    LONGEST_TAG,
    OPENING,
    TAG,
    Run,
    Tag,
    may_become_tag,
    tag_of,
)
from tandem.plugins.formats.qwen_xml.value import Value, line_start


class XmlReader(AnswerReader):
    """Holds back: in text, an ending that may begin a call; in a value, an ending that may close it, and a value that
    has to be typed; behind closing tags, text that may turn out to belong to the value."""

    def read(self) -> Steps[None]:
        while (yield from self._text()):
            head = yield from self._tag(0, OPENING)
            if head is not None and head.opens("tool_call"):
                start = yield from self.blanks(head.length)
                if (yield from self.char(start)) == "{":
                    yield from self._json(start, head.length)
                    continue
                self.take(start)
                head = yield from self._tag(0, OPENING)
            assert head is not None
            self.take(head.length)
            yield from self._call(self.begin(head.name))

    # ------------------------------------------------------------------------------------------------------- text

    def _text(self) -> Steps[bool]:
        """Text up to a call; False at the end of the answer."""
        fresh = True
        while True:
            found = self.text.find("<", self.at)
            text = self.take((found if found >= 0 else len(self.text)) - self.at)
            fresh = line_start(text, fresh)
            self.say(text)
            if found < 0:
                if not (yield from self.more()):
                    return False
                continue
            opens = yield from self._opens(0, fresh)
            if opens or (opens is None and self.cut):
                return opens is True
            self.say(self.take(1))
            fresh = False

    def _opens(self, offset: int, fresh: bool) -> Steps[bool | None]:
        """Whether a call begins `offset` behind the cursor; None when the answer ends before that can be told.

        A call is `<tool_call>` before a function's tag or a JSON object. Without `<tool_call>` it is the tag of an
        offered function at the start of a line (`fresh`), before a parameter's tag or its own closing tag.
        """
        tag = yield from self._tag(offset, OPENING if fresh and self.tools else OPENING[:1])
        if tag is None or tag is ENDED:
            return None if tag else False
        bare = tag.kind == "function"
        if bare and tool_named(self.tools, tag.name) not in self.tools:
            return False
        behind = yield from self.blanks(offset + tag.length)
        first = yield from self.char(behind)
        if first == "{" and not bare:
            return True
        after = yield from self._tag(behind, INSIDE if bare else OPENING[1:])
        return None if after is ENDED or not first else after is not None

    def _tag(self, offset: int, starts: tuple[str, ...] = ANY) -> Steps[Tag | None]:
        """The tag `offset` behind the cursor, if it starts like one of `starts`; None for anything else."""
        while (yield from self.char(offset)) == "<":
            at = self.at + offset
            if found := TAG.match(self.text, at):
                return tag_of(found) if self.text.startswith(starts, at) else None
            if not may_become_tag(self.text[at : at + LONGEST_TAG + 1], starts):
                return None
            if not (yield from self.more()):
                return ENDED
        return None

    # ------------------------------------------------------------------------------------------------- a JSON call

    def _json(self, start: int, tag: int) -> Steps[None]:
        """A JSON object `start` behind the cursor, which stands at `<tool_call>`."""
        call = yield from json_call(self, start)
        if call is JsonCall.NONE:
            self.say(self.take(tag))
        elif call is JsonCall.OPEN:
            yield from self._skip()
        else:
            yield from self._over_closing()

    def _skip(self) -> Steps[None]:
        """Over what is left of a broken call: to behind a closing tag, or to the next call."""
        while (yield from self.char()):
            if (yield from self._over_closing()) or (yield from self._opens(0, True)):
                return
            self.take(1)

    def _over_closing(self) -> Steps[bool]:
        """Over `</function>` and `</tool_call>`, and blanks and a brace too many before them, if they stand here."""
        offset = yield from self.blanks()
        if (yield from self.char(offset)) == "}":
            offset = yield from self.blanks(offset + 1)
        tag = yield from self._tag(offset, CLOSING)
        if tag is None or (tag is ENDED and not self.cut):
            return False
        self._over((yield from self._run(offset)), offset)
        return True

    def _over(self, run: Run, start: int) -> None:
        """Over closing tags `start` behind the cursor, and over the beginning of one where the answer ends."""
        self.take(len(self.text) if run.follow == "end" else start + run.length)

    # --------------------------------------------------------------------------------------------- a function call

    def _call(self, tool: Tool) -> Steps[None]:
        """The call whose function's tag is behind the cursor."""
        names: list[str] = []
        head = yield from self._first_parameter(tool)
        while head is not None:
            name = tool.parameter_named(head.name)
            names.append(head.name if name in names else name)
            head = yield from self._value(tool, names)

    def _first_parameter(self, tool: Tool) -> Steps[Tag | None]:
        """Over the first parameter's opening tag; None when the call ends without one. What is neither is left out,
        but for a JSON object, which is the arguments."""
        while char := (yield from self.char()):
            if char == "{":
                if not (yield from json_arguments(self, tool)):
                    self.leave()
                    yield from self._skip()
                    return None
                break
            tag = yield from self._tag(0)
            if tag is not None and tag.opens("parameter"):
                self.take(tag.length)
                return tag
            if (tag is not None and tag.closing and tag.kind != "parameter") or (yield from self._opens(0, True)):
                self.write("{}")
                break
            self.take(1)
        if not char:
            self.leave()
            return None
        yield from self._over_closing()
        self.done()
        return None

    def _value(self, tool: Tool, names: list[str]) -> Steps[Tag | None]:
        """The value of the last of `names`, whose tag is behind the cursor; moves over what closes it.

        Returns the next parameter's tag, or None when the call is over.
        """
        key = f"{', ' if len(names) > 1 else '{'}{json_text(names[-1])}: "
        value = Value(self, key, tool.parameter(names[-1]), tool.parameters)
        inline = (yield from self.char()) != "\n"  # written without line breaks, as a whole
        if not inline:
            self.take(1)
        while True:
            found = self.text.find("<", self.at)
            stop = found if found >= 0 else len(self.text)
            newline = stop > self.at and self.text[stop - 1] == "\n"  # may belong to the closing tag
            value.put(self.take(stop - newline - self.at))
            if found < 0:
                if not (yield from self.more()):
                    break
                continue
            start = int(newline)
            tag = yield from self._tag(start)
            if tag is ENDED and self.cut:
                break
            if tag is None or tag is ENDED:
                value.put(self.take(start + 1))
            elif tag.closing:
                run = yield from self._run(start)
                if not value.nested and self._ends_value(run, value, tool, names):
                    value.take_back()
                    value.close()
                    if run.head is not None:
                        self.take(start + run.head_at + run.head.length)
                        return run.head
                    self._over(run, start)
                    self._end_call()
                    return None
                if run.follow == "end" and self.cut and not value.nested:
                    break
                value.closing(self.take(start + run.length), run)
            elif value.certain:
                value.put(self.take(start))
                opens = yield from self._opens(0, value.at_line_start)
                if opens or (opens is None and self.cut):
                    break
                value.put(self.take(tag.length))
            elif tag.kind == "parameter":
                fresh = newline or inline or value.at_line_start
                if fresh and not value.nested and self._may_come(tag, tool, names) and value.finished():
                    value.take_back()
                    value.close()
                    self.take(start + tag.length)
                    return tag
                value.put(self.take(start + tag.length))
            else:
                example = yield from self._example(start, newline or value.at_line_start)
                value.nested += example > 0
                value.put(self.take(example or start + tag.length))
        # The answer ends in the value, or another call begins behind it: what is kept aside was not part of it.
        if not value.closed or (self.cut and not value.certain):
            self.take(len(self.text))
            self.leave()
            return None
        value.close()
        self._end_call()
        self.say(value.rest)
        return None

    def _end_call(self) -> None:
        self.write("}")
        self.done()

    def _ends_value(self, run: Run, value: Value, tool: Tool, names: list[str]) -> bool:
        """Whether these closing tags are the value's own."""
        if run.head is not None:
            named = tool.parameter_named(run.head.name)
            known = named in tool.properties or not value.certain
            return run.kinds == ("parameter",) and named not in names and known
        if value.certain and not run.strong:
            return False
        return run.follow == "call" or (run.follow == "end" and (run.strong or not self.cut))

    def _may_come(self, tag: Tag, tool: Tool, names: list[str]) -> bool:
        """Whether a parameter's tag without a closing tag before it begins the next parameter: a declared one that
        isn't written yet."""
        name = tool.parameter_named(tag.name)
        return name in tool.properties and name not in names

    def _example(self, offset: int, fresh: bool) -> Steps[int]:
        """Where the opening tags of an example inside a value end: a function's tag, at the start of a line or behind
        `<tool_call>`, before a parameter's tag or its own closing tag. 0 when none begins at `offset`."""
        tag = yield from self._tag(offset, OPENING)
        if tag is not None and tag.opens("tool_call"):
            fresh = True
            offset = yield from self.blanks(offset + tag.length)
            tag = yield from self._tag(offset, OPENING[1:])
        if not fresh or tag is None or not tag.opens("function"):
            return 0
        end = offset + tag.length
        inside = yield from self._tag((yield from self.blanks(end)), INSIDE)
        return end if inside is not None else 0

    def _run(self, offset: int) -> Steps[Run]:
        """The closing tags `offset` behind the cursor, and what follows them."""
        kinds: tuple[str, ...] = ()
        at = end = offset
        while True:
            tag = yield from self._tag(at)
            if tag is None or not tag.closing or (kinds and KINDS.index(tag.kind) <= KINDS.index(kinds[-1])):
                break
            kinds, end = (*kinds, tag.kind), at + tag.length
            at = yield from self.blanks(end)
            if not (yield from self.char(at)):
                return Run(kinds, end - offset, "end")
        if tag is not None and tag.opens("parameter"):
            return Run(kinds, end - offset, "parameter", tag, at - offset)
        if tag is ENDED and self.cut:
            return Run(kinds, end - offset, "end")
        opens = yield from self._opens(at, True)
        call = opens or (opens is None and self.cut)
        return Run(kinds, end - offset, "call" if call else "text")
