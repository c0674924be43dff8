"""The prompt of a plain completion: text, token ids, or a batch of either."""

from __future__ import annotations

from typing import Any

from tandem.api.readers import Place, Schema, shown, takes

MAX_BATCH = 128

PlainPrompt = str | tuple[int, ...]
"""Text, or the token ids themselves."""

TEXT: Schema = {"type": "string", "minLength": 1}
TOKENS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
BATCH: Schema = {"type": "array", "items": {"anyOf": [TEXT, TOKENS]}, "minItems": 1, "maxItems": MAX_BATCH}


@takes({"anyOf": [TEXT, TOKENS, BATCH]})
def prompts(value: Any, place: Place) -> tuple[PlainPrompt, ...]:
    """Each prompt of the batch, in order; a single one is a batch of one."""
    if isinstance(value, str):
        return (_text(value, place),)
    if not isinstance(value, list):
        raise place.wrong("a string, a list of token ids or a list of either", value)
    if not value:
        raise place.error("is empty")
    if isinstance(value[0], str | list):
        if len(value) > MAX_BATCH:
            raise place.error(f"takes at most {MAX_BATCH} prompts at once, not {len(value)}")
        return tuple(_one(item, place.item(index)) for index, item in enumerate(value))
    return (_ids(value, place),)


def _one(value: Any, place: Place) -> PlainPrompt:
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, list) and value:
        return _ids(value, place)
    raise place.error("is empty") if value == [] else place.wrong("a string or a list of token ids", value)


def _text(value: str, place: Place) -> str:
    if not value:
        raise place.error("is empty")
    return value


def _ids(value: list[Any], place: Place) -> tuple[int, ...]:
    for index, token in enumerate(value):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < place.vocab_size:
            raise place.item(index).error(
                f"is not a token id ({shown(token)}); ids of this model go from 0 to {place.vocab_size - 1}"
            )
    return tuple(value)
