"""Nothing public is undocumented, and no link of the documentation leads nowhere."""

import re
from pathlib import Path

import pytest
from starlette.routing import BaseRoute, Route

import tandem.core.plugin as contracts
from tandem.api.app import build_app
from tandem.api.command.group import SUBCOMMANDS
from tandem.core.conductor.options import CONDUCTOR_OPTIONS
from tandem.core.engine.engine import Engine
from tandem.core.engine.options import SECTIONS, SERVER_OPTIONS
from tandem.core.kernel import Registry, assemble, load_manifest, shipped
from tandem.core.kernel.manifest import MODEL_OPTIONS
from tandem.core.plugin import KINDS, hookspecs

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def mentions(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


def row(text: str, first: str) -> str | None:
    """The table row that starts with `first` in code."""
    found = re.search(rf"^\| `{re.escape(first)}` \|.*$", text, re.MULTILINE)
    return found.group() if found else None


# -------------------------------------------------------------------------------------------------------- hooks


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_every_hook_has_a_page_that_says_what_matters(kind):
    text = page(f"plugins/{kind.plural}.md")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    assert kind.hook in headings[0]
    for heading in ("The contract", "A complete package", "Switched on", "Tested", "When it fails"):
        assert heading in headings, f"docs/plugins/{kind.plural}.md has no section `{heading}`"
    assert f"{kind.plural}.md" in page("plugins/README.md")
    preview = "preview" in (getattr(hookspecs, kind.hook).__doc__ or "")
    assert ("(preview)" in headings[0]) == preview


def test_every_hook_of_the_spec_is_a_kind():
    hooks = {name for name in vars(hookspecs) if name.startswith("tandem_")}
    assert hooks == {kind.hook for kind in KINDS}


@pytest.mark.parametrize("name", contracts.__all__)
def test_every_exported_name_is_explained(name):
    text = "".join(path.read_text("utf-8") for path in (DOCS / "plugins").glob("*.md"))
    assert mentions(text, name), f"{name} of tandem.core.plugin is in no page of docs/plugins"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_every_member_of_a_contract_is_on_its_page(kind):
    """Fields and methods of everything that the kind's module exports, but those that every part has."""
    homes = {"stage": ["decision"], "decider": ["decision"], "narrator": ["decision"], "format": ["format", "tools"]}
    modules = homes.get(kind.noun, [kind.noun])
    text = "".join(page(f"plugins/{k.plural}.md") for k in KINDS if homes.get(k.noun, [k.noun]) == modules)
    text += page("plugins/README.md")
    for name in contracts.__all__:
        contract = getattr(contracts, name)
        if isinstance(contract, type) and contract.__module__.rpartition(".")[2] in modules:
            members = {*vars(contract).get("__annotations__", {}), *vars(contract)}
            public = sorted(member for member in members if not member.startswith("_"))
            missing = [member for member in public if not mentions(text, member)]
            assert not missing, f"{name}.{', '.join(missing)}: not in docs/plugins/{kind.plural}.md"


# ------------------------------------------------------------------------------------------ options and manifests


@pytest.mark.parametrize("name", [*SERVER_OPTIONS, *MODEL_OPTIONS, *CONDUCTOR_OPTIONS])
def test_every_option_of_a_section_has_its_row(name):
    schema = {**SERVER_OPTIONS, **MODEL_OPTIONS, **CONDUCTOR_OPTIONS}[name]
    line = row(page("manifest.md"), name)
    assert line, f"docs/manifest.md has no row for {name}"
    assert schema["description"] in line


BUILT_IN = [(r.kind, r.name) for r in Registry().records if r.distribution == "tandem-llm"]


@pytest.mark.parametrize(("kind", "name"), BUILT_IN, ids=[f"{kind}.{name}" for kind, name in BUILT_IN])
def test_every_built_in_part_is_described_with_all_its_options(kind, name):
    registry = Registry()
    part = registry.load(kind, name)
    assert part is not None, registry.record(kind, name).reason
    assert part.summary, f"{kind}.{name} has no doc"
    text = page("builtins.md").partition(f"\n## {kind.capitalize()}\n")[2].partition("\n## ")[0]
    section = text.partition(f"\n### `{name}`\n")[2].partition("\n### ")[0]
    assert part.summary in section
    for option, schema in part.options.items():
        line = row(section, option)
        assert line, f"docs/builtins.md has no row for the option {option} of {kind}.{name}"
        assert schema["description"] in line


@pytest.mark.parametrize("section", [*(kind.plural for kind in KINDS if kind.noun != "model"), "model", "server"])
def test_every_section_of_the_manifest_is_explained(section):
    assert f"`{section}`" in page("manifest.md")


@pytest.mark.parametrize("word", ["tandem: 1", "extends", "$env", "$file", "default:", "required: true", "--set"])
def test_every_word_of_the_manifest_is_explained(word):
    assert word in page("manifest.md")


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_manifest_is_named(name):
    text = "".join(path.read_text("utf-8") for path in PAGES)
    assert f"`{name}`" in text or f"serve {name}" in text


# ---------------------------------------------------------------------------------------------- routes, commands


def served_routes() -> list[BaseRoute]:
    manifest = load_manifest({"tandem": 1, "model": {"plugin": "scripted"}}, sections=SECTIONS)
    platform = assemble(manifest)
    try:
        return list(build_app(platform, Engine(platform)).routes)
    finally:
        platform.close()


@pytest.mark.parametrize(
    "route",
    [
        f"{method} {re.sub(r':[a-z]+}', '}', route.path)}"
        for route in served_routes()
        if isinstance(route, Route)
        for method in sorted((route.methods or set()) - {"HEAD"})
    ],
)
def test_every_route_has_its_line(route):
    assert row(page("http.md"), route), f"docs/http.md has no row for {route}"


@pytest.mark.parametrize("command", SUBCOMMANDS)
def test_every_command_is_named(command):
    text = "".join(path.read_text("utf-8") for path in PAGES)
    assert f"tandem {command}" in text


# --------------------------------------------------------------------------------------------------------- links


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    words = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return words.replace(" ", "-")


def anchors(text: str) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_between_pages_leads_somewhere(path):
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        aim = (path.parent / file).resolve() if file else path
        assert aim.exists(), f"{path.relative_to(ROOT)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(aim.read_text("utf-8")), f"{path.relative_to(ROOT)}: no heading for #{anchor}"


def test_every_page_of_docs_is_reachable_from_the_readme():
    reached: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        if path in reached or path.suffix != ".md" or not path.is_file():
            continue
        reached.add(path)
        links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", path.read_text("utf-8"))
        todo += [(path.parent / link).resolve() for link in links if not re.match(r"[a-z]+:", link)]
    lonely = [str(path.relative_to(ROOT)) for path in PAGES if path not in reached]
    assert not lonely, f"no page leads to {', '.join(lonely)}"
