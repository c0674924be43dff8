"""The assembled platform: what is active, what has failed and why, and what stops the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandem.core.kernel import SERVED_NAME, Registry, StartError, assemble, load_manifest
from tandem.core.plugin import Checkpoint, ModelBuilder
from tandem.core.plugin.part import option

DRAFTERS = """
from tandem.core.plugin import Drafter, hookimpl
from tandem.core.plugin.part import option
def build(options, *args):
    if options["fault"] == "exit":
        raise SystemExit("bye")
    if options["fault"]:
        raise ValueError(options["fault"])
    return options, args
@hookimpl
def tandem_drafters():
    fault = {"fault": option("string", "What build raises.", "")}
    return [Drafter(name=name, options=fault, build=build) for name in ("one", "two", "three")]
"""


@pytest.fixture
def drafters(install: Any) -> None:
    install("tandem-three", {"drafters": dict.fromkeys(["one", "two", "three"], "three_mod")}, three_mod=DRAFTERS)
    install("tandem-broken", {"drafters": {"broken": "broken_mod"}}, broken_mod="1 / 0\n")


def states(platform: Any) -> dict[str, tuple[str, str | None]]:
    return {r["name"]: (r["state"], r["reason"]) for r in platform.records() if r["kind"] == "drafters"}


@pytest.mark.usefixtures("drafters")
def test_parts_are_active_in_the_manifests_order_and_a_broken_one_stops_nothing() -> None:
    platform = assemble(load_manifest({"tandem": 1, "drafters": ["two", "broken", "one"]}))
    assert [part.name for part in platform.active("drafters")] == ["two", "one"]
    first = platform.active("drafters")[0]
    assert (first.part.name, first.options, first.record.distribution) == ("two", {"fault": ""}, "tandem-three")
    found = states(platform)
    assert found["one"] == found["two"] == ("active", None)
    assert found["three"] == ("found", None)
    assert found["broken"] == ("failed", "ZeroDivisionError: division by zero (tandem-broken 1.0)")


@pytest.mark.usefixtures("drafters")
def test_build_calls_each_part_and_leaves_out_the_one_that_raises() -> None:
    drafters = {"one": {"fault": "no"}, "two": "on", "three": {"fault": "exit"}}
    platform = assemble(load_manifest({"tandem": 1, "drafters": drafters}))
    assert platform.build("drafters", 1, 2) == [("two", ({"fault": ""}, (1, 2)))]
    assert [part.name for part in platform.active("drafters")] == ["two"]
    assert states(platform)["one"] == ("failed", "ValueError: no (tandem-three 1.0)")
    assert states(platform)["three"] == ("failed", "SystemExit: bye (tandem-three 1.0)")


@pytest.mark.usefixtures("drafters")
def test_a_part_that_is_left_out_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    platform = assemble(load_manifest({"tandem": 1, "drafters": {"one": {"fault": "no"}, "two": "on", "broken": "on"}}))
    platform.build("drafters")
    assert [record.getMessage() for record in caplog.records if record.name == "tandem.plugins"] == [
        "drafters.broken is left out: ZeroDivisionError: division by zero (tandem-broken 1.0)",
        "drafters.one is left out: ValueError: no (tandem-three 1.0)",
    ]


@pytest.mark.usefixtures("drafters")
def test_a_part_failed_at_run_time_is_dropped_with_its_first_reason() -> None:
    platform = assemble(load_manifest({"tandem": 1, "drafters": ["one", "two"]}))
    platform.fail("drafters", "one", "three faults in a minute")
    platform.fail("drafters", "one", "again")
    assert [part.name for part in platform.active("drafters")] == ["two"]
    assert states(platform)["one"] == ("failed", "three faults in a minute")


@pytest.mark.usefixtures("drafters")
def test_a_failure_in_one_platform_is_not_another_ones() -> None:
    manifest = load_manifest({"tandem": 1, "drafters": ["one"]})
    first, second = assemble(manifest), assemble(manifest)
    first.fail("drafters", "one", "gone")
    assert [part.name for part in second.active("drafters")] == ["one"]


@pytest.mark.usefixtures("drafters")
def test_a_required_part_that_cannot_be_loaded_stops_the_start() -> None:
    manifest = load_manifest({"tandem": 1, "drafters": {"one": "on", "broken": {"required": True}}})
    assert manifest.required == {("drafters", "broken")}
    expected = r"drafters\.broken is required, and it failed: ZeroDivisionError: .* \(tandem-broken 1\.0\)"
    with pytest.raises(StartError, match=expected):
        assemble(manifest)


@pytest.mark.usefixtures("drafters")
def test_a_required_part_that_cannot_be_built_stops_the_start() -> None:
    drafters = {"one": {"fault": "no", "required": True}, "two": {"required": False}}
    platform = assemble(load_manifest({"tandem": 1, "drafters": drafters}))
    assert platform.active("drafters")[0].options == {"fault": "no"}
    with pytest.raises(StartError, match=r"drafters\.one is required, and it failed: ValueError: no \(tandem-three"):
        platform.build("drafters")


def test_the_model_is_built_with_its_options_and_closed_once(memory: Callable[[], Registry]) -> None:
    told: list[tuple[str, int, int]] = []
    manifest = load_manifest({"tandem": 1, "model": {"plugin": "tiny", "size": 2}}, registry=memory())
    platform = assemble(manifest, progress=lambda what, done, total: told.append((what, done, total)))
    model: Any = platform.model
    assert told == [("rows", 1, 2)]
    assert platform.served_name == manifest.served_name == SERVED_NAME == "TandemLLM"
    assert {r["name"]: r["state"] for r in platform.records() if r["kind"] == "models"}["tiny"] == "active"
    platform.close()
    platform.close()
    assert model.closed == 1
    assert platform.model is None


def test_without_a_model_section_there_is_no_model(memory: Callable[[], Registry]) -> None:
    platform = assemble(load_manifest({"tandem": 1}, registry=memory()))
    assert platform.model is None
    assert platform.served_name is None
    platform.close()


def test_a_model_that_cannot_be_built_stops_the_start(memory: Callable[[], Registry]) -> None:
    manifest = load_manifest({"tandem": 1, "model": {"plugin": "tiny", "size": 13}}, registry=memory())
    with pytest.raises(StartError, match=r"the model's plugin `tiny` failed: RuntimeError: unlucky size \(unknown\)"):
        assemble(manifest)


BUILDER = """
from tandem.core.plugin import ModelBuilder, ModelError, hookimpl
def build(checkpoint, options, progress):
    raise ModelError(f"{checkpoint.path.name} is no checkpoint")
@hookimpl
def tandem_models():
    return [ModelBuilder(name="picky", build=build)]
"""


def test_a_builders_own_sentence_is_the_reason(install: Any, tmp_path: Any) -> None:
    install("tandem-picky", {"models": {"picky": "picky_mod"}}, picky_mod=BUILDER)
    (tmp_path / "w.bin").write_bytes(b"")
    manifest = load_manifest({"tandem": 1, "model": {"plugin": "picky", "checkpoint": str(tmp_path / "w.bin")}})
    assert manifest.model is not None
    assert isinstance(manifest.model.located, Checkpoint)
    with pytest.raises(StartError, match=r"^the model can't be loaded: w\.bin is no checkpoint$"):
        assemble(manifest)


def test_a_model_plugin_that_is_broken_stops_the_start_not_the_check(install: Any) -> None:
    install("tandem-broken", {"models": {"torn": "torn_mod"}}, torn_mod="1 / 0\n")
    manifest = load_manifest({"tandem": 1, "model": {"plugin": "torn", "checkpoint": "anything", "what": "ever"}})
    with pytest.raises(StartError, match=r"the model's plugin `torn` failed: ZeroDivisionError: .*\(tandem-broken 1"):
        assemble(manifest)


def test_the_manifest_of_the_design_loads(install: Any, tmp_path: Any) -> None:
    """Every form that a manifest may have, with stand-ins for the plugins and the weights that it names."""
    parts = {
        "models": ("ModelBuilder", ["llama"], ""),
        "drafters": ("Drafter", ["lookup"], "'min_order': option('integer', 'N.', 1)"),
        "caches": ("Cache", ["resident"], "'anchors_gib': option('number', 'N.', 0)"),
        "clients": ("Client", ["opencode", "open_webui", "hermes", "openai_sdk", "curl"], ""),
    }
    lines = ["from tandem.core.plugin import *", "from tandem.core.plugin.part import option"]
    for kind, (part, names, options) in parts.items():
        lines += ["@hookimpl", f"def tandem_{kind}():"]
        lines += [f"    return [{part}(name=name, build=print, options={{{options}}}) for name in {names}]"]
    repeats = "{'repeats': option('integer', 'N.', 2)}"
    lines += ["@hookimpl", "def tandem_rules():"]
    lines += [f"    return [Rule(n, SafePoint.SP1, print, {repeats}) for n in ('argloop', 'same_call')]"]
    points = {kind: dict.fromkeys(names, "design_mod") for kind, (_, names, _) in parts.items()}
    points["rules"] = dict.fromkeys(["argloop", "same_call"], "design_mod")
    weights = "package:design_weights/SmolLM2-135M-Instruct.Q4_1.gguf"
    install("tandem-design", points, design_mod="\n".join(lines), design_weights="")
    folder = tmp_path / "site" / "design_weights"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").touch()
    (tmp_path / "m.yaml").write_text(f"""
tandem: 1
model: {{plugin: llama, checkpoint: "{weights}", served_name: tandem}}
drafters: {{lookup: {{min_order: 3}}}}
caches:   {{resident: {{anchors_gib: 1}}}}
clients:  [opencode, open_webui, hermes, openai_sdk, curl]
rules:    {{argloop: {{mode: on}}, same_call: {{mode: act, repeats: 3}}}}
server:   {{host: 127.0.0.1, port: 8000, max_queue: 8, parallel: 2}}
""")
    server = {name: option(["string", "integer"], name) for name in ("host", "port", "max_queue", "parallel")}
    points_only = Registry(_entry_points("tandem-design"))
    manifest = load_manifest(tmp_path / "m.yaml", sections={"server": server}, registry=points_only)
    assert manifest.served_name == "tandem"
    assert manifest.enabled("drafters") == {"lookup": {"min_order": 3}}
    assert list(manifest.enabled("clients")) == ["opencode", "open_webui", "hermes", "openai_sdk", "curl"]
    assert manifest.enabled("rules") == {
        "argloop": {"mode": "on", "repeats": 2}, "same_call": {"mode": "act", "repeats": 3},
    }  # fmt: skip
    assert manifest.section("server") == {"host": "127.0.0.1", "port": 8000, "max_queue": 8, "parallel": 2}


def _entry_points(distribution: str) -> Any:
    from importlib.metadata import distribution as find

    return find(distribution).entry_points


def test_a_model_builder_is_a_part_like_any_other(memory: Callable[[], Registry]) -> None:
    assert isinstance(memory().load("models", "tiny"), ModelBuilder)
