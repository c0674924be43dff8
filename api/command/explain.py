"""`tandem explain`: the documentation of a plugin, an option, a section, a kind or a request field, where it is
written."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click
from rich.console import Console
from rich.markdown import Markdown

from tandem.api.command.manifests import CommandFailed
from tandem.api.fields import TABLES, Disposition, Field
from tandem.core.engine.options import SECTIONS
from tandem.core.kernel import Registry, nearest
from tandem.core.kernel.manifest import MODEL_OPTIONS
from tandem.core.plugin import KINDS, hookspecs

Schemas = Mapping[str, Mapping[str, Any]]


@click.command("explain")
@click.argument("name")
def explain_command(name: str) -> None:
    """Explain a plugin, an option, a kind of plugin or a request field.

    NAME is a plugin (`lookup`, `drafters.lookup`), an option (`lookup.min_order`, `server.port`), a section of the
    manifest (`server`), a kind (`drafters`), all fields of a request (`fields`, `fields.chat`) or one (`temperature`).
    """
    registry = Registry()
    texts = list(_find(name.split("."), registry))
    if not texts:
        near = nearest(name, _names(name, registry))
        raise CommandFailed(f"nothing is called `{name}`" + (f" (did you mean `{near}`?)" if near else ""), 2)
    console = Console()
    for number, text in enumerate(texts):
        if number:
            console.rule()
        console.print(Markdown(text))


def _find(words: list[str], registry: Registry) -> Iterator[str]:
    """Markdown of everything that `words` can mean."""
    for kind in KINDS:
        if words == [kind.plural] or words == [kind.noun]:
            yield _kind(kind, registry)
    for title, schemas in _sections().items():
        if words == [title]:
            yield _section(f"The manifest's section `{title}`", "", schemas)
        elif len(words) == 2 and words[0] == title and words[1] in schemas:
            yield _option(f"{title}.{words[1]}", schemas[words[1]])
    yield from _find_fields(words)
    for record in registry.records:
        rest = words[1:] if words[0] == record.kind and len(words) > 1 else words
        if rest[0] != record.name or len(rest) > 2:
            continue
        part = registry.load(record.kind, record.name)
        if part is None:
            reason = registry.record(record.kind, record.name).reason
            raise CommandFailed(f"{record.kind}.{record.name} can't be loaded: {reason}", 1)
        if len(rest) == 1:
            yield _section(f"`{record.name}` ({record.kind}, {record.owner})", part.doc, part.options)
        elif rest[1] in part.options:
            yield _option(f"{record.kind}.{record.name}.{rest[1]}", part.options[rest[1]])


def _names(name: str, registry: Registry) -> list[str]:
    """What the user may have meant: words with as many dots as `name` has."""
    names = [kind.plural for kind in KINDS]
    for title, schemas in _sections().items():
        names += [title, *(f"{title}.{option}" for option in schemas)]
    names += [FIELDS, *(f"{FIELDS}.{kind}" for kind in TABLES)]
    for field in _known_fields():
        names += [field.name, f"{FIELDS}.{field.name}"]
    first = name.split(".")[0]
    for record in registry.records:
        names += [record.name, f"{record.kind}.{record.name}"]
        if "." in name and nearest(first, [record.name]):
            part = registry.load(record.kind, record.name)
            names += [f"{record.name}.{option}" for option in (part.options if part else ())]
    return [known for known in names if known.count(".") == name.count(".")]


def _sections() -> dict[str, Schemas]:
    return {"model": MODEL_OPTIONS, **SECTIONS}


def _kind(kind: hookspecs.Kind, registry: Registry) -> str:
    doc = inspect.getdoc(getattr(hookspecs, kind.hook)) or ""
    installed = ", ".join(f"`{name}`" for name in registry.names(kind.plural)) or "none"
    facts = f"Hook `{kind.hook}`, entry-point group `{kind.group}`. Installed: {installed}."
    return f"# `{kind.plural}`\n\n{doc}\n\n{facts}"


FIELDS = "fields"
"""The word for the request fields."""


def _find_fields(words: list[str]) -> Iterator[str]:
    """All fields, those of one kind of request, or a single one."""
    for kind, table in TABLES.items():
        if words in ([FIELDS], [FIELDS, kind]):
            yield f"# Fields of a request: {kind}\n\n{fields_table(table.values())}"
    name = words[-1]
    meant = [
        table.get(name) for kind, table in TABLES.items() if words in ([name], [FIELDS, name], [FIELDS, kind, name])
    ]
    yield from (_field(field) for field in _known_fields() if field in meant)


def _known_fields() -> list[Field]:
    """Every field once; one that differs between the kinds of request, once for each."""
    return list({id(field): field for table in TABLES.values() for field in table.values()}.values())


def fields_table(fields: Iterable[Field]) -> str:
    """Request fields as a Markdown table: what each gets, and its sentence."""
    lines = [f"| `{field.name}` | {field.disposition.value} | {field.doc} |" for field in fields]
    return "\n".join(["| field | what it gets | what it is |", "|---|---|---|", *lines]) + "\n"


def _field(field: Field) -> str:
    kinds = " and ".join(kind for kind, table in TABLES.items() if table.get(field.name) is field)
    text = f"# `{field.name}` ({kinds})\n\nIt is {field.disposition.value}: {field.doc}"
    if field.disposition is Disposition.HONOURED:
        schema = json.dumps(field.schema, ensure_ascii=False, indent=2)
        text += f"\n\nIts values, as JSON Schema:\n\n```json\n{schema}\n```"
    return text


def _section(title: str, doc: str, schemas: Schemas) -> str:
    options = "\n".join(f"- {_line(name, schema)}" for name, schema in schemas.items())
    return f"# {title}\n\n{inspect.cleandoc(doc)}\n\n" + (f"## Options\n\n{options}" if options else "No options.")


def _option(title: str, schema: Mapping[str, Any]) -> str:
    return f"# `{title}`\n\n{_line('', schema)}"


def _line(name: str, schema: Mapping[str, Any]) -> str:
    """An option on one line: type, default, bounds and sentence."""
    kinds = schema.get("type", "any")
    facts = [kinds if isinstance(kinds, str) else " or ".join(kinds)]
    facts += [
        f"{word} {json.dumps(value, ensure_ascii=False)}"
        for word, value in schema.items()
        if word not in ("type", "description", "default")
    ]
    default = f"default `{json.dumps(schema['default'], ensure_ascii=False)}`" if "default" in schema else "required"
    facts.append(default)
    return f"{f'`{name}`: ' if name else ''}{schema.get('description', '')} ({'; '.join(facts)})"
