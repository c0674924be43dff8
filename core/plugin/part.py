"""What every plugin part has in common: a name, a doc text, and options described by JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Options = Mapping[str, Any]
"""Options of one part after validation: every declared option is present, defaults filled in."""

MISSING: Any = object()


def option(
    kind: str | list[str],
    sentence: str,
    default: Any = MISSING,
    **constraints: Any,
) -> dict[str, Any]:
    """One option's JSON Schema (draft 2020-12): its `type`, its sentence, its default and further keywords.

    An option without a default must be given in the manifest. Keywords such as `minimum`, `enum`, `items` or
    `pattern` go in as keyword arguments.

        options={"min_order": option("integer", "The shortest match that is drafted from.", 3, minimum=1)}
    """
    schema: dict[str, Any] = {"type": kind, "description": sentence, **constraints}
    if default is not MISSING:
        schema["default"] = default
    return schema


@dataclass(frozen=True, kw_only=True)
class Part:
    """A named thing that a plugin contributes. The entry point's name selects the part of the same name.

    Making a part must be cheap: a module that returns parts is imported when a manifest is checked, so heavy imports
    (torch, a tokenizer) belong inside the function that builds the working object.
    """

    name: str
    """Unique among the parts of its kind; equal to the entry point's name."""
    doc: str = ""
    """Markdown. The first line is the sentence shown in lists; `tandem explain NAME` prints the whole."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Option name -> its JSON Schema, as `option(...)` writes it."""

    @property
    def summary(self) -> str:
        return self.doc.strip().splitlines()[0] if self.doc.strip() else ""


def options_schema(options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON Schema of a whole options mapping: closed, with the options that lack a default required."""
    return {
        "type": "object",
        "properties": {name: dict(schema) for name, schema in options.items()},
        "required": [name for name, schema in options.items() if "default" not in schema],
        "additionalProperties": False,
    }


def with_defaults(options: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with the default of every option that it leaves out."""
    filled = {name: schema["default"] for name, schema in options.items() if "default" in schema}
    return {**filled, **given}
