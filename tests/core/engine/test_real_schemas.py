"""Schemas as clients send them: a document that fits one is one that the mask lets the model write."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import torch

from tandem.core.engine.constraint import ConstraintError, Grammars, json_schema_grammar

END = 256


def benchmark() -> ModuleType:
    """benchmarks/structured.py, whose schemas and documents these are."""
    path = Path(__file__).parents[3] / "benchmarks" / "structured.py"
    spec = importlib.util.spec_from_file_location("tandem_structured_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BENCHMARK = benchmark()
SCHEMAS: dict[str, Any] = BENCHMARK.schemas()
BEYOND = {
    "tandem.ChatRequest": "propertyNames",
    "json-schema.4": "dependencies",
    "json-schema.7": "uniqueItems",
    "json-schema.202012": "is not inside this schema",
}
"""What can't be compiled, and the word that says why."""


class Bytes:
    vocab_size = 257
    eos_ids = frozenset({END})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < END else b""


GRAMMARS = Grammars(Bytes())
ROW = torch.zeros(Bytes.vocab_size)


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name not in BEYOND])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_document_that_fits_may_be_written(name: str, indent: int | None) -> None:
    document = BENCHMARK.document_for(SCHEMAS[name])
    jsonschema.validate(document, SCHEMAS[name])
    constraint = GRAMMARS.single(json_schema_grammar(SCHEMAS[name]))
    for place, byte in enumerate(text := json.dumps(document, ensure_ascii=False, indent=indent).encode()):
        mask = constraint.mask(ROW)
        assert mask is not None
        assert mask[byte], f"{text[:place].decode(errors='replace')} may not go on with {bytes([byte])!r}"
        constraint.accept(byte)
    mask = constraint.mask(ROW)
    assert constraint.complete or (mask is not None and mask[END])


@pytest.mark.parametrize("name", BEYOND)
def test_a_schema_that_cannot_be_kept_is_refused_with_the_word(name: str) -> None:
    with pytest.raises(ConstraintError, match=BEYOND[name]):
        GRAMMARS.single(json_schema_grammar(SCHEMAS[name]))
