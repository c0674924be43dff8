"""Plugins are found without being imported, loaded behind a guard, and leave nothing behind when they fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.core.kernel import Registry
from tandem.core.kernel.registry import part_type
from tandem.core.plugin import KINDS, Drafter, Part, Rule


def reason(registry: Registry, kind: str = "rules", name: str = "it") -> str | None:
    assert registry.load(kind, name) is None
    record = registry.record(kind, name)
    assert record.state == "failed"
    return record.reason


def registered(registry: Registry) -> set[Any]:
    return registry._manager.get_plugins()


def test_listing_imports_nothing(install: Any, site: Path) -> None:
    touch = f"open({str(site / 'imported')!r}, 'w').close()\nraise RuntimeError('imported')\n"
    install("tandem-loud", {"rules": {"loud": "loud_mod"}, "caches": {"loud": "loud_mod:obj"}}, "2.1", loud_mod=touch)
    registry = Registry()
    found = {(r.kind, r.name, r.distribution, r.version, r.entry_point, r.state) for r in registry.records}
    assert ("rules", "loud", "tandem-loud", "2.1", "loud_mod", "found") in found
    assert ("caches", "loud", "tandem-loud", "2.1", "loud_mod:obj", "found") in found
    assert not (site / "imported").exists()
    assert reason(registry, "rules", "loud") == "RuntimeError: imported (tandem-loud 2.1)"
    assert (site / "imported").exists()


def test_records_are_sorted_by_kind_and_name(install: Any) -> None:
    install("tandem-z", {"routes": {"r": "m"}, "drafters": {"zz": "m", "aa": "m"}})
    order = [kind.plural for kind in KINDS]
    keys = [(order.index(record.kind), record.name) for record in Registry().records]
    assert keys == sorted(keys)
    assert len(keys) >= 3


def test_a_plugin_is_loaded_once_and_its_part_kept(install: Any, rule_module: Any) -> None:
    install("tandem-ok", {"rules": {"it": "ok_mod"}}, ok_mod=rule_module("other", "it"))
    registry = Registry()
    part = registry.load("rules", "it")
    assert isinstance(part, Rule)
    assert part.name == "it"
    assert registry.load("rules", "it") is part
    assert registry.record("rules", "it").state == "enabled"


def test_one_module_serves_several_entry_points_and_is_registered_once(install: Any, site: Path) -> None:
    source = """
from tandem.core.plugin import Drafter, Rule, SafePoint, hookimpl
with open({log!r}, "a") as log: log.write("x")
@hookimpl
def tandem_rules():
    return [Rule(name, at=SafePoint.SP2, check=print) for name in ("one", "two")]
@hookimpl
def tandem_drafters():
    return [Drafter(name="three", build=print)]
"""
    source = source.format(log=str(site / "log"))
    points = {"rules": {"one": "many", "two": "many", "four": "many"}, "drafters": {"three": "many"}}
    install("tandem-many", points, many=source)
    registry = Registry()
    assert reason(registry, "rules", "four") is not None
    assert not registered(registry)
    loaded = [registry.load("rules", "one"), registry.load("rules", "two"), registry.load("drafters", "three")]
    assert [part.name for part in loaded] == ["one", "two", "three"]
    assert len(registered(registry)) == 1
    assert (site / "log").read_text() == "x"


def test_a_missing_part_does_not_take_down_a_sibling_of_the_same_module(install: Any, rule_module: Any) -> None:
    install("tandem-pair", {"rules": {"one": "pair", "it": "pair"}}, pair=rule_module("one", "two"))
    registry = Registry()
    assert registry.load("rules", "one").name == "one"
    assert reason(registry) == "`tandem_rules` returned no part called `it`; it returned `one`, `two` (tandem-pair 1.0)"
    assert len(registered(registry)) == 1


def test_an_option_without_a_default_is_no_fault(install: Any) -> None:
    params = "{'n': option('integer', 'N.'), 'm': option('array', 'M.', [1], items={'type': 'integer'})}"
    install("tandem-it", {"rules": {"it": "it_mod"}}, it_mod=HEAD + HOOK + f"return [{GOOD[:-1]}, params={params})]\n")
    assert list(Registry().load("rules", "it").options) == ["mode", "n", "m"]


def test_an_object_can_be_the_plugin(install: Any) -> None:
    source = """
from tandem.core.plugin import Rule, SafePoint, hookimpl
class Plugin:
    TANDEM_API = ">=0.1,<1"
    @hookimpl
    def tandem_rules(self):
        return [Rule("it", at=SafePoint.SP2, check=print)]
plugin = Plugin()
"""
    install("tandem-object", {"rules": {"it": "object_mod:plugin"}}, object_mod=source)
    assert Registry().load("rules", "it").name == "it"


def test_two_plugins_of_one_name_are_both_refused_and_named(install: Any, rule_module: Any) -> None:
    install("tandem-first", {"rules": {"it": "first_mod", "own": "first_mod"}}, first_mod=rule_module("it", "own"))
    install("tandem-second", {"rules": {"it": "second_mod"}}, "0.3", second_mod=rule_module("it"))
    registry = Registry()
    expected = (
        "two plugins have this name, so neither is used; uninstall one of them: tandem-first 1.0 and tandem-second 0.3"
    )
    assert reason(registry) == expected
    assert [record.name for record in registry.records if record.name == "it"] == ["it"]
    assert registry.load("rules", "own").name == "own"


def test_the_same_name_in_two_kinds_is_no_quarrel(install: Any, rule_module: Any) -> None:
    install("tandem-first", {"rules": {"it": "first_mod"}}, first_mod=rule_module("it"))
    install("tandem-second", {"caches": {"it": "second_mod"}})
    assert Registry().load("rules", "it").name == "it"


HEAD = "from tandem.core.plugin import Drafter, Rule, SafePoint, hookimpl\nfrom tandem.core.plugin.part import option\n"
GOOD = "Rule('it', at=SafePoint.SP2, check=print)"
HOOK = "@hookimpl\ndef tandem_rules():\n    "


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import no_such_module_anywhere\n", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("def broken(:\n", "SyntaxError: invalid syntax (it_mod.py, line 1)"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("raise SystemExit\n", "SystemExit"),
        ("class Odd(BaseException): ...\nraise Odd('odd')\n", "Odd: odd"),
        ("raise ValueError('first\\n  second')\n", "ValueError: first second"),
        (
            "class Mute(Exception):\n    def __str__(self): raise RuntimeError\nraise Mute\n",
            "Mute: <exception str() failed>",
        ),
        (HEAD, "implements no hook `tandem_rules`"),
        ("def tandem_rules():\n    return []\n", "implements no hook `tandem_rules`"),
        (HEAD + HOOK + "return None\n", "`tandem_rules` must return a list of Rule, not NoneType"),
        (HEAD + HOOK + f"return {GOOD}\n", "`tandem_rules` must return a list of Rule, not Rule"),
        (HEAD + HOOK + "return ['it']\n", "`tandem_rules` must return Rule objects only, not str"),
        (
            HEAD + HOOK + f"return [{GOOD}, Drafter(name='d', build=print)]\n",
            "`tandem_rules` must return Rule objects only, not Drafter",
        ),
        (HEAD + HOOK + "return []\n", "`tandem_rules` returned no part called `it`; it returned nothing"),
        (
            HEAD + HOOK + f"return [{GOOD}, {GOOD}]\n",
            "`tandem_rules` returned more than one part called `it`; it returned `it`, `it`",
        ),
        (HEAD + HOOK + "raise KeyError('k')\n", "KeyError: 'k'"),
        (HEAD + HOOK + "raise SystemExit(0)\n", "SystemExit: 0"),
        (
            HEAD + HOOK + f"return [{GOOD}]\n@hookimpl\ndef tandem_rulez():\n    return []\n",
            "there is no hook `tandem_rulez`; did you mean `tandem_rules`?",
        ),
        (
            HEAD + HOOK + f"return [{GOOD[:-1]}, params={{'n': {{'type': 'intger'}}}})]\n",
            "option schema properties.n.type: 'intger' is not valid under any of the given schemas",
        ),
        (
            HEAD + HOOK + f"return [{GOOD[:-1]}, params={{'n': option('string', 'N.', pattern='[')}})]\n",
            "option schema properties.n.pattern: '[' is not a 'regex'",
        ),
        (
            HEAD + HOOK + f"return [{GOOD[:-1]}, params={{'n': option('integer','N.','x')}})]\n",
            "default of option n: 'x' is not of type 'integer'",
        ),
        (
            HEAD + HOOK + f"return [{GOOD[:-1]}, params={{'required': option('null','N.')}})]\n",
            "an option can't be called `required`: the manifest uses that word",
        ),
        (
            HEAD + HOOK + f"return [{GOOD[:-1]}, params=7)]\n",
            "TypeError: 'int' object is not a mapping",
        ),
        ("TANDEM_API = '>=9'\n", "written for Tandem's plugin API >=9, but this is 0.2.1"),
        ("TANDEM_API = 'soon'\n", "TANDEM_API must be a version range such as \">=0.2,<0.3\", not 'soon'"),
        ("TANDEM_API = 3\n", 'TANDEM_API must be a version range such as ">=0.2,<0.3", not 3'),
    ],
)
def test_what_a_plugin_does_wrong_is_its_reason_and_nothing_of_it_stays(
    install: Any, rule_module: Callable[..., str], source: str, expected: str
) -> None:
    install("tandem-it", {"rules": {"it": "it_mod"}}, it_mod=source)
    install("tandem-fine", {"rules": {"fine": "fine_mod"}}, fine_mod=rule_module("fine"))
    registry = Registry()
    assert reason(registry) == f"{expected} (tandem-it 1.0)"
    assert not registered(registry)
    assert registry._manager.hook.tandem_rules() == []
    assert registry.load("rules", "fine").name == "fine"


def test_a_hook_with_a_wrong_argument_is_rolled_back_with_the_right_ones_before_it(install: Any) -> None:
    source = HEAD + HOOK + f"return [{GOOD}]\n@hookimpl\ndef tandem_stages(no_such_argument):\n    return []\n"
    install("tandem-it", {"rules": {"it": "it_mod"}}, it_mod=source)
    registry = Registry()
    assert (reason(registry) or "").startswith("PluginValidationError: ")
    assert not registered(registry)
    assert registry._manager.hook.tandem_rules() == []


def test_an_optional_hook_that_this_version_lacks_is_no_fault(install: Any) -> None:
    source = HEAD + HOOK + f"return [{GOOD}]\n@hookimpl(optionalhook=True)\ndef tandem_dreams():\n    return []\n"
    install("tandem-it", {"rules": {"it": "it_mod"}}, it_mod=source)
    assert Registry().load("rules", "it").name == "it"


@pytest.mark.parametrize("wanted", [">=0.2,<0.3", "~=0.2.0", "==0.2.*", ""])
def test_a_plugin_for_this_version_of_the_interface_is_taken(install: Any, wanted: str) -> None:
    install("tandem-it", {"rules": {"it": "it_mod"}}, it_mod=HEAD + f"TANDEM_API = {wanted!r}\n{HOOK}return [{GOOD}]\n")
    assert Registry().load("rules", "it").name == "it"


def test_ctrl_c_during_an_import_is_not_swallowed(install: Any) -> None:
    install("tandem-it", {"rules": {"it": "it_mod"}}, it_mod="raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        Registry().load("rules", "it")


def test_a_distribution_with_unreadable_entry_points_is_noted_and_hides_no_other(
    install: Any, site: Path, rule_module: Any
) -> None:
    install("tandem-torn", {"rules": {"torn": "torn_mod"}})
    (site / "tandem_torn-1.0.dist-info" / "entry_points.txt").write_text("[tandem.rules]\nno equals sign\n")
    install("tandem-fine", {"rules": {"fine": "fine_mod"}}, fine_mod=rule_module("fine"))
    registry = Registry()
    assert registry.load("rules", "fine").name == "fine"
    (note,) = registry.unreadable
    assert note.startswith("tandem-torn 1.0: its entry points can't be read: ")


def test_an_entry_point_that_names_nothing_is_a_failed_plugin(install: Any) -> None:
    install("tandem-it", {"rules": {"it": "json:no_such_thing", "odd": "not a module!"}})
    registry = Registry()
    assert reason(registry) == "AttributeError: module 'json' has no attribute 'no_such_thing' (tandem-it 1.0)"
    assert (reason(registry, name="odd") or "").endswith("(tandem-it 1.0)")


def test_every_kind_has_a_contract_that_its_hook_names() -> None:
    types = {kind.plural: part_type(kind) for kind in KINDS}
    assert types["drafters"] is Drafter
    assert types["rules"] is Rule
    assert all(issubclass(kind_type, Part) or kind_type is Rule for kind_type in types.values())
    assert len(set(types.values())) == len(KINDS)
