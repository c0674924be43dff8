"""A parameter's value while it is being written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.core.plugin import AnswerReader, allowed_types, is_text, json_text, typed
from tandem.plugins.formats.qwen_xml.tags import Run


class Value:
    """A parameter's value, as far as it is known to be one.

    Text goes out as it is written; a value that has to be typed is collected. What comes behind closing tags that may
    or may not have been the call's own is kept aside: `take_back` makes it part of the value, `rest` is it otherwise.
    """

    def __init__(self, reader: AnswerReader, key: str, schema: Any, root: Mapping[str, Any]) -> None:
        self._reader, self._key, self._schema, self._root = reader, key, schema, root
        self._live = is_text(schema, root)
        self._text: list[str] = []
        self.at_line_start = True
        """The current line has nothing but blanks."""
        self._aside: list[str] | None = None
        self.certain = False
        """What is kept aside stands behind closing tags that end the call unless more of them follow. Otherwise they
        may have closed an example inside the value, and end the call only where the answer ends."""
        self.nested = 0
        """Examples of calls inside the value that are open."""
        if self._live:
            reader.write(f'{key}"')

    def put(self, text: str) -> None:
        self.at_line_start = line_start(text, self.at_line_start)
        if self._aside is not None:
            self._aside.append(text)
        elif self._live:
            self._reader.write(json_text(text)[1:-1])
        else:
            self._text.append(text)

    @property
    def closed(self) -> bool:
        """There were closing tags that may end the call."""
        return self._aside is not None

    def closing(self, text: str, run: Run) -> None:
        """Closing tags that don't end the value here. From a strong run on everything is kept aside, but for one that
        leaves an example open."""
        certain = not self.nested
        if self.nested and "function" in run.kinds:
            self.nested -= 1
        if run.strong and (certain or "function" in run.kinds):
            self.take_back()
            self._aside, self.certain, self.at_line_start = [text], certain, False
        else:
            self.put(text)

    def take_back(self) -> None:
        """What was kept aside is part of the value."""
        aside, self._aside, self.certain = self._aside, None, False
        if aside:
            self.put("".join(aside))

    @property
    def rest(self) -> str:
        """The text behind the closing tags that are kept aside."""
        return "".join((self._aside or [])[1:])

    def finished(self) -> bool:
        """Whether the value could end here: a value that has to be JSON is."""
        if self._live or "string" in allowed_types(self._schema, self._root):
            return True
        return not isinstance(typed("".join(self._text), self._schema, self._root), str)

    def close(self) -> None:
        if self._live:
            self._reader.write('"')
        else:
            value = typed("".join(self._text), self._schema, self._root)
            self._reader.write(self._key + json_text(value))


def line_start(text: str, before: bool) -> bool:
    """Whether the line that `text` ends in has nothing but blanks; `before`: so had the line that it goes on with."""
    return not text.rpartition("\n")[2].strip() and (before or "\n" in text)
