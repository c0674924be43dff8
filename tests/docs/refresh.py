"""Brings up to date what is written in two places: the packages of tests/thirdparty, and parts of the pages.

    python tests/docs/refresh.py

* The packages are what `tandem new` writes: edit api/command/templates/KIND/ and run this.
* A page shows a file whole behind a comment that names it: `<!-- file: PATH -->`.
* Between such a comment and `<!-- end -->` a page shows a section's options (`<!-- options: SECTION -->`), the fields
  of a request (`<!-- fields: chat -->`), or all built-in parts (`<!-- built-in parts -->`).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tandem.api.command.explain import fields_table
from tandem.api.command.new import Package, write
from tandem.api.fields import TABLES
from tandem.core.engine.options import SECTIONS
from tandem.core.kernel import Registry
from tandem.core.kernel.manifest import MODEL_OPTIONS
from tandem.core.plugin import KINDS

ROOT = Path(__file__).parent.parent.parent
THIRDPARTY = ROOT / "tests" / "thirdparty"
NAMES = {
    "model": "parrot",
    "drafter": "bigram",
    "chooser": "elastic",
    "quantization": "row_int8",
    "cache": "prefix_memory",
    "rule": "no_disclaimer",
    "stage": "keywords",
    "decider": "wordcount",
    "client": "acme_agent",
    "format": "angle_json",
    "narrator": "terse",
    "route": "hello",
}
"""Kind -> the package of it."""

SHOWN = {**SECTIONS, "model": MODEL_OPTIONS}
"""What `<!-- options: ... -->` can show."""

FILE = re.compile(r"<!-- file: (?P<path>\S+) -->\n```(?P<language>\w+)\n(?P<text>.*?)```\n", re.DOTALL)
OPTIONS = re.compile(r"<!-- options: (?P<section>\w+) -->\n.*?<!-- end -->\n", re.DOTALL)
FIELDS = re.compile(r"<!-- fields: (?P<table>\w+) -->\n.*?<!-- end -->\n", re.DOTALL)
PARTS = re.compile(r"<!-- built-in parts -->\n.*?<!-- end -->\n", re.DOTALL)

Schemas = Mapping[str, Mapping[str, Any]]


def packages() -> list[Package]:
    """Every package that `tandem new` is to have written."""
    return [Package(kind, NAMES[kind.noun]) for kind in KINDS]


def pages() -> Iterator[Path]:
    """Every Markdown page of the documentation."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from sorted((ROOT / "examples").rglob("*.md"))


def refreshed(page: str) -> str:
    """The page's text with each of its shown parts as it is now."""
    page = FILE.sub(_file, page)
    page = OPTIONS.sub(
        lambda found: f"<!-- options: {found['section']} -->\n{table(SHOWN[found['section']])}<!-- end -->\n", page
    )
    page = FIELDS.sub(
        lambda found: (
            f"<!-- fields: {found['table']} -->\n{fields_table(TABLES[found['table']].values())}<!-- end -->\n"
        ),
        page,
    )
    return PARTS.sub(lambda found: f"<!-- built-in parts -->\n{built_in_parts()}<!-- end -->\n", page)


def _file(found: re.Match[str]) -> str:
    text = (ROOT / found["path"]).read_text("utf-8")
    return f"<!-- file: {found['path']} -->\n```{found['language']}\n{text}```\n"


def table(options: Schemas) -> str:
    """Options as a Markdown table: name, default, sentence with the bounds."""
    lines = ["| option | default | what it is |", "|---|---|---|"]
    for name, schema in options.items():
        default = f"`{json.dumps(schema['default'], ensure_ascii=False)}`" if "default" in schema else "must be given"
        bounds = [
            f"{words} {json.dumps(schema[key], ensure_ascii=False)}" for key, words in BOUNDS.items() if key in schema
        ]
        sentence = schema["description"] + (f" ({', '.join(bounds)})" if bounds else "")
        lines.append(f"| `{name}` | {default} | {sentence} |".replace("\n", " "))
    return "\n".join(lines) + "\n"


BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
    "enum": "one of",
}


def built_in_parts() -> str:
    """Every part that ships with Tandem: its documentation and its options, by kind."""
    registry = Registry()
    text = ""
    for kind in KINDS:
        records = [r for r in registry.records if r.kind == kind.plural and r.distribution == "tandem-llm"]
        if records:
            text += f"\n## {kind.plural.capitalize()}\n"
        for record in records:
            part = registry.load(record.kind, record.name)
            if part is None:
                reason = registry.record(record.kind, record.name).reason
                text += f"\n### `{record.name}`\n\nIt could not be loaded when this page was written: {reason}\n"
                continue
            doc = re.sub(r"^#", "####", part.doc.strip(), flags=re.MULTILINE)
            text += f"\n### `{record.name}`\n\n{doc}\n\n"
            text += table(part.options) if part.options else "It has no options.\n"
    return text + "\n"


def refresh() -> None:
    for package in packages():
        shutil.rmtree(THIRDPARTY / package.folder, ignore_errors=True)
        write(THIRDPARTY / package.folder, package.files())
    for page in pages():
        page.write_text(refreshed(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    refresh()
