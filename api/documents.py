"""What the client wants the answer to be: the document that the fields for structured output describe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tandem.api.readers import Place, Schema, mapping, shown, takes, text

FORMS = ("regex", "choice", "json")


@dataclass(frozen=True, slots=True)
class Document:
    """A text that the answer has to be. `param` is the field that holds `spec`."""

    kind: str
    """`json_object`, `json`, `regex` or `choice`."""
    spec: Any
    param: str

    @property
    def is_json(self) -> bool:
        """The client parses the whole answer as JSON."""
        return self.kind in ("json_object", "json")


RESPONSE_FORMAT: Schema = {
    "type": "object",
    "required": ["type"],
    "anyOf": [
        {"properties": {"type": {"enum": ["text", "json_object"]}}},
        {
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string", "minLength": 1}, "schema": {"type": "object"}},
                },
            },
            "required": ["json_schema"],
        },
    ],
}


@takes(RESPONSE_FORMAT)
def response_format(value: Any, place: Place) -> Document | None:
    """OpenAI's field; None for `text`."""
    wanted = mapping(value, place)
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Document("json_object", None, place.path)
    if kind != "json_schema":
        raise place.key("type").error(f"must be text, json_object or json_schema, not {shown(kind)}")
    at = place.key("json_schema")
    named = mapping(wanted.get("json_schema"), at)
    text(empty=False)(named.get("name"), at.key("name"))
    schema = named.get("schema", {})
    if not isinstance(schema, dict):
        raise at.key("schema").wrong("an object", schema)
    return Document("json", schema, at.key("schema").path)


STRUCTURED_OUTPUTS: Schema = {
    "type": "object",
    "properties": {
        "regex": {"type": ["string", "null"], "minLength": 1},
        "choice": {"type": ["array", "null"], "items": {"type": "string", "minLength": 1}, "minItems": 1},
        "json": {"type": ["object", "null"]},
    },
}
"""Exactly one of the three."""


@takes(STRUCTURED_OUTPUTS)
def structured_outputs(value: Any, place: Place) -> Document:
    """The extension of other servers: exactly one of `regex`, `choice` and `json`."""
    wanted = mapping(value, place)
    given = [form for form in FORMS if wanted.get(form) is not None]
    if len(given) != 1:
        raise place.error(f"takes exactly one of {', '.join(FORMS)}")
    form = given[0]
    at, spec = place.key(form), wanted[form]
    if form == "regex":
        text(empty=False)(spec, at)
    elif form == "choice":
        if not isinstance(spec, list) or not spec:
            raise at.wrong("a list of texts", spec)
        spec = [text(empty=False)(item, at.item(index)) for index, item in enumerate(spec)]
    elif not isinstance(spec, dict):
        raise at.wrong("a JSON Schema object", spec)
    return Document(form, spec, at.path)
