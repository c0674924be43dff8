"""What `extends` and overrides make of several manifests, against a twin that never merges."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from tandem.core.kernel import Registry, load_manifest
from tandem.core.plugin.part import option

SECTIONS = {
    "server": {"x": option("integer", "X.", 7), "o": option("object", "O.", {})},
}
numbers = st.integers(0, 9)
nested = st.recursive(numbers, lambda inner: st.dictionaries(st.sampled_from("pqr"), inner, max_size=3), max_leaves=6)
mappings = nested.filter(lambda value: isinstance(value, dict))
options = st.fixed_dictionaries({}, optional={"x": numbers, "o": mappings})
switches = st.sampled_from(["on", "off", True, False, None])
drafters = st.dictionaries(st.sampled_from("abc"), options | switches, max_size=3) | st.lists(
    st.sampled_from("abc"), unique=True
)
layers = st.fixed_dictionaries({}, optional={"drafters": drafters, "server": options})


def look_up(values: list[Any]) -> Any:
    """The twin: what a reader finds who asks the last manifest first. `values` are the layers' values, first to last.

    Nothing is merged: a mapping's keys are asked for one by one, down to the last layer that had no mapping here.
    """
    if not isinstance(values[-1], dict):
        return values[-1]
    mappings = list(itertools.takewhile(lambda value: isinstance(value, dict), reversed(values)))[::-1]
    keys = dict.fromkeys(key for mapping in mappings for key in mapping)
    return {key: look_up([mapping[key] for mapping in mappings if key in mapping]) for key in keys}


def with_switches(section: Any) -> dict[str, Any]:
    """A section of parts with every form of "on" as no options and every form of "off" as None."""
    named = dict.fromkeys(section, "on") if isinstance(section, list) else section
    forms = {"on": {}, True: {}, None: {}, "off": None, False: None}
    return {name: given if isinstance(given, dict) else forms[given] for name, given in named.items()}


@given(st.lists(layers, min_size=1, max_size=4))
def test_any_chain_of_manifests_reads_as_if_each_were_asked_in_turn(
    memory: Callable[[], Registry], chain: list[dict[str, Any]]
) -> None:
    with TemporaryDirectory() as folder:
        for number, layer in enumerate(chain):
            parent = {"extends": f"m{number - 1}.yaml"} if number else {}
            text = yaml.safe_dump({"tandem": 1, **parent, **layer}, sort_keys=False)
            Path(folder, f"m{number}.yaml").write_text(text)
        path = Path(folder, f"m{len(chain) - 1}.yaml")
        manifest = load_manifest(path, sections=SECTIONS, registry=memory())

    on = look_up([with_switches(layer.get("drafters", {})) for layer in chain])
    defaults = {"x": 0, "y": None, "o": {}}
    expected = {name: {**defaults, **given} for name, given in on.items() if given is not None}
    assert manifest.enabled("drafters") == expected
    assert list(manifest.enabled("drafters")) == list(expected)
    assert manifest.section("server") == {"x": 7, "o": {}, **look_up([layer.get("server", {}) for layer in chain])}


def load(memory: Callable[[], Registry], tmp_path: Path, parent: str, child: str, *overrides: str) -> Any:
    (tmp_path / "parent.yaml").write_text("tandem: 1\n" + parent)
    (tmp_path / "child.yaml").write_text("tandem: 1\nextends: parent.yaml\n" + child)
    return load_manifest(tmp_path / "child.yaml", overrides=overrides, sections=SECTIONS, registry=memory())


def test_another_model_plugin_drops_the_options_of_the_parents(memory: Any, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"x")
    parent = "model: {plugin: packed, checkpoint: weights.bin, size: 5, served_name: Ours}\n"
    same = load(memory, tmp_path, parent, "model: {size: 6}\n")
    other = load(memory, tmp_path, parent, "model: {plugin: tiny}\n")
    assert (same.model.plugin, same.model.options["size"]) == ("packed", 6)
    assert same.model.located.path == tmp_path / "weights.bin"
    assert (other.model.plugin, other.model.options["size"], other.model.checkpoint) == ("tiny", 1, None)
    assert same.served_name == other.served_name == "Ours"


@pytest.mark.parametrize("switch", ["off", "false"])
def test_a_child_can_switch_the_model_off(memory: Any, tmp_path: Path, switch: str) -> None:
    assert load(memory, tmp_path, "model: {plugin: tiny}\n", f"model: {switch}\n").model is None


def test_a_section_left_empty_is_the_parents(memory: Any, tmp_path: Path) -> None:
    parent = "model: {plugin: tiny}\ndrafters: [b, a]\nserver: {x: 3}\n"
    manifest = load(memory, tmp_path, parent, "model:\ndrafters:\nserver:\n")
    assert manifest.model.plugin == "tiny"
    assert list(manifest.enabled("drafters")) == ["b", "a"]
    assert manifest.section("server")["x"] == 3


def test_overrides_come_last_and_in_their_order(memory: Any, tmp_path: Path) -> None:
    manifest = load(
        memory, tmp_path, "drafters: [a, b]\n", "server: {x: 1}\n",
        "server.x=2", "server.x=0x10", "drafters.a.x=4", "drafters.b=off", "rules=[look]", "drafters.a.y=on",
    )  # fmt: skip
    assert manifest.section("server")["x"] == 16
    assert manifest.enabled("drafters") == {"a": {"x": 4, "y": "on", "o": {}}}
    assert list(manifest.enabled("rules")) == ["look"]


def test_a_parent_may_be_shipped_or_lie_in_another_folder(memory: Any, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "weights.bin").write_bytes(b"x")
    (tmp_path / "base" / "b.yaml").write_text("tandem: 1\nmodel: {plugin: packed, checkpoint: weights.bin}\n")
    (tmp_path / "c.yaml").write_text("tandem: 1\nextends: base/b.yaml\n")
    manifest = load_manifest(tmp_path / "c.yaml", registry=memory())
    assert manifest.model is not None
    assert manifest.model.located is not None
    assert manifest.model.located.path == tmp_path / "base" / "weights.bin"
    (tmp_path / "d.yaml").write_text("tandem: 1\nextends: scripted\n")
    shipped = load_manifest(tmp_path / "d.yaml", sections={"server": {
        "host": option("string", "H.", "x"), "port": option("integer", "P.", 1)}})  # fmt: skip
    assert shipped.section("server") == {"host": "127.0.0.1", "port": 8000}
    assert shipped.path == tmp_path / "d.yaml"


def test_every_value_is_located_in_the_file_that_wrote_it(memory: Any, tmp_path: Path) -> None:
    parent, child = "server:\n  x: 1\n  o: {p: 1}\ndrafters: [a]\n", "server:\n  o:\n    q: 2\n"
    manifest = load(memory, tmp_path, parent, child, "server.x=3")
    files = {"parent": str(tmp_path / "parent.yaml"), "child": str(tmp_path / "child.yaml")}
    assert manifest.locate("server.o.p") == (files["parent"], 4)
    assert manifest.locate(("server", "o", "q")) == (files["child"], 5)
    assert manifest.locate("server.x") == ("--set", 1)
    assert manifest.locate("drafters.a") == (files["parent"], 5)
    assert manifest.locate("drafters.a.x") == (files["parent"], 5)
    assert manifest.locate("nothing") == (files["child"], 1)
