"""The templates of `tandem new`, the packages of tests/thirdparty and the pages of the documentation say the same."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

tools = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("refresh.py"))))
REPAIR = "run python tests/docs/refresh.py"


@pytest.mark.parametrize("package", tools.packages(), ids=lambda package: package.folder)
def test_a_package_is_what_tandem_new_writes(package):
    folder = tools.THIRDPARTY / package.folder
    for path, text in package.files().items():
        assert (folder / path).read_text("utf-8") == text, f"{package.folder}/{path}: {REPAIR}"


@pytest.mark.parametrize("package", tools.packages(), ids=lambda package: package.folder)
def test_a_kinds_page_shows_the_whole_package_of_its_kind(package):
    page = (tools.ROOT / "docs" / "plugins" / f"{package.kind.plural}.md").read_text("utf-8")
    shown = [found["path"] for found in tools.FILE.finditer(page)]
    base = f"tests/thirdparty/{package.folder}"
    wanted = ["manifest.yaml", f"tandem_{package.name}.py", f"tests/test_{package.name}.py"]
    assert sorted(shown) == sorted(f"{base}/{path}" for path in wanted)


@pytest.mark.parametrize("page", list(tools.pages()), ids=lambda page: str(page.relative_to(tools.ROOT)))
def test_a_page_shows_files_and_options_as_they_are(page):
    text = page.read_text("utf-8")
    assert tools.refreshed(text) == text, REPAIR
    markers = sum(text.count(f"<!-- {word}") for word in ("file:", "options:", "fields:", "built-in parts"))
    shown = sum(len(pattern.findall(text)) for pattern in (tools.FILE, tools.OPTIONS, tools.FIELDS, tools.PARTS))
    assert markers == shown, "a marker without the block that belongs to it"


def test_a_stale_page_is_noticed():
    stale = "<!-- file: LICENSE -->\n```text\nall rights reserved\n```\n"
    assert tools.refreshed(stale) == f"<!-- file: LICENSE -->\n```text\n{(tools.ROOT / 'LICENSE').read_text()}```\n"
    assert "| `port` | `8000` |" in tools.refreshed("<!-- options: server -->\nold\n<!-- end -->\n")
