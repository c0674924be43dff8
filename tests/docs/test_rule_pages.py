"""Every rule is documented in the same way, and what the pages about rules show runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from tandem.core.kernel import Registry

ROOT = Path(__file__).parent.parent.parent
RULES = [r.name for r in Registry().records if r.kind == "rules" and r.distribution == "tandem-llm"]
HEADINGS = ["Why", "When it acts", "Parameters", "Example"]
PYTHON = re.compile(r"(?P<file><!-- file: \S+ -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_says_why_when_and_how(name: str) -> None:
    rule = Registry().load("rules", name)
    assert rule is not None
    sentence, *rest = rule.doc.strip().splitlines()
    assert not sentence.startswith("#"), f"{name}: the doc begins with a sentence, not with a heading"
    assert re.search(r"[.!]$", rule.summary), f"{name}: the first line is a sentence"
    headings = [line[3:].strip() for line in rest if line.startswith("## ")]
    missing = [heading for heading in HEADINGS if heading not in headings]
    assert not missing, f"the doc of {name} has no `## {missing[0]}`"
    for heading in HEADINGS:
        under = rule.doc.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        assert under.strip(), f"{name}: nothing stands under `## {heading}`"


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_a_page_that_is_linked(name: str) -> None:
    page = ROOT / "docs" / "rules" / f"{name}.md"
    assert page.is_file(), f"docs/rules/{name}.md is missing"
    text = page.read_text("utf-8")
    assert text.startswith("# ")
    assert f"`{name}`" in text, f"docs/rules/{name}.md never says `{name}`"
    assert f"builtins.md#{name}" in text or "<!-- options" in text, f"docs/rules/{name}.md leads to no table of options"
    assert f"(rules/{name}.md)" in (ROOT / "docs" / "rules.md").read_text("utf-8"), (
        f"docs/rules.md does not list {name}"
    )


@pytest.mark.parametrize("page", ["docs/rules.md", "docs/plugins/rules.md"])
def test_the_code_of_a_page_runs_and_its_tests_pass(page: str, platform: Any) -> None:
    blocks = [found["code"] for found in PYTHON.finditer((ROOT / page).read_text("utf-8")) if not found["file"]]
    names: dict[str, Any] = {"__name__": "shown"}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert tests, f"{page} shows no test"
    for test in tests:
        test(*([platform] if "platform" in inspect.signature(test).parameters else []))
