"""The kernel without its built-in plugins, without torch, and without a word about features."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tandem.core.kernel
from tandem.core.plugin import KINDS

WITHOUT_BUILTINS = """
import importlib.metadata, sys

every = importlib.metadata.distributions
importlib.metadata.distributions = lambda **how: (d for d in every(**how) if d.metadata["Name"] != "tandem-llm")

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "tandem.plugins" or name.startswith("tandem.plugins."):
            raise ModuleNotFoundError(f"no {name} here")
sys.meta_path.insert(0, Absent())
"""

BUILDER = """
from tandem.core.plugin import ModelBuilder, hookimpl
class Model:
    name = "tiny"
    def close(self): print("closed")
@hookimpl
def tandem_models():
    return [ModelBuilder(name="tiny", build=lambda checkpoint, options, progress: Model(), needs_checkpoint=False)]
"""


def python(source: str, site: Path | None = None) -> str:
    """What a fresh interpreter prints."""
    path = {"PYTHONPATH": str(site)} if site else {}
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120, cwd="/", env={**path}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_core_starts_with_no_built_in_plugin_present() -> None:
    source = (
        WITHOUT_BUILTINS
        + """
from tandem.core.kernel import assemble, load_manifest
platform = assemble(load_manifest({"tandem": 1, "drafters": [], "rules": {}}))
assert platform.model is None and platform.build("drafters") == []
print([r for r in platform.records() if r["distribution"] == "tandem-llm"])
platform.close()
"""
    )
    assert python(source) == "[]\n"


def test_the_core_runs_a_model_from_elsewhere_with_no_built_in_plugin_present(install: Any, site: Path) -> None:
    install("tandem-tiny", {"models": {"tiny": "tiny_builder"}}, tiny_builder=BUILDER)
    source = (
        WITHOUT_BUILTINS
        + """
from tandem.core.kernel import assemble, load_manifest
platform = assemble(load_manifest({"tandem": 1, "model": {"plugin": "tiny"}}))
print(platform.model.name, [r["name"] for r in platform.records() if r["state"] == "active"])
platform.close()
"""
    )
    assert python(source, site) == "tiny ['tiny']\nclosed\n"


def test_checking_every_built_in_plugin_imports_no_torch() -> None:
    source = """
import sys
from tandem.core.kernel import Registry
registry = Registry()
own = [r for r in registry.records if r.distribution == "tandem-llm"]
for record in own:
    assert registry.load(record.kind, record.name) is not None, registry.record(record.kind, record.name).reason
print(len(own) > 0, sorted({"torch", "transformers", "tokenizers"} & set(sys.modules)))
"""
    assert python(source) == "True []\n"


@pytest.mark.parametrize("path", sorted(Path(tandem.core.kernel.__file__).parent.glob("*.py")), ids=lambda p: p.name)
def test_no_word_of_the_kernel_names_a_feature(path: Path) -> None:
    words = [word for kind in KINDS if kind.noun != "model" for word in (kind.noun, kind.plural)]
    text = re.sub("(?i)format_checker", "", path.read_text())  # an argument of jsonschema's
    found = re.findall(rf"(?i)(?<![a-z])(?:{'|'.join(words)})(?![a-z])", text)
    assert found == []
