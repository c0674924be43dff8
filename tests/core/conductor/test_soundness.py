"""Nonsense that a rule returns is the rule's fault and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.core.conductor.soundness import actions_of, fault_of_messages
from tandem.core.plugin import Action, ActionKind

BROKEN: Any = None


@pytest.mark.parametrize(
    "action",
    [
        Action.passed(),
        Action.notify("seen", count=3),
        Action.give_up("[Stop.]", "x", seconds=1.5),
        Action.close_reasoning("Enough."),
        Action.go_on("More.", "x", then="so"),
        Action.repair_call({"a": [1, None, "x"]}),
        Action.regenerate_call("Again.", give_up="[No.]"),
        Action.tail_note("Note."),
        Action.think_budget(0),
        Action.constrain({"json": {}}),
        Action.sample("x", temperature=0.7, top_p=0.9, top_k=20, min_p=0),
        Action.sample("x"),
        Action.mask({"word": ""}),
        Action(ActionKind.NOTIFY, score=0.5, detail={"mode": "shadow"}),
    ],
)
def test_what_is_well_formed_is_taken(action: Action) -> None:
    assert actions_of(action) == [action]
    assert actions_of((action,)) == [action]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("hello", "returned str, not an Action or None"),
        ([Action.passed(), 1], "returned list, not an Action or None"),
        (Action.go_on(BROKEN), "returned continue with None as its text"),
        (Action.give_up(BROKEN), "returned give_up with None as its text"),
        (Action.give_up("a\ud800"), "returned give_up with a text that UTF-8 can't hold"),
        (Action.go_on("", then="\ud800"), "returned continue with a then that is no text"),
        (Action.mask({"a": "\ud800"}), "returned mask with words that are no texts"),
        (Action.tail_note("a", BROKEN), "returned prompt_tail_note with None as its reason"),
        (Action(ActionKind.NOTIFY, detail=BROKEN), "returned notify with None as its detail"),
        (Action(BROKEN), "returned None with None as its kind"),
        (Action(ActionKind.NOTIFY, score=float("nan")), "returned notify with float as its score"),
        (Action.go_on("a", then=BROKEN or 5), "returned continue with a then that is no text"),
        (Action.regenerate_call("a", give_up=5), "returned regenerate_call with a give_up that is no text"),
        (Action.think_budget(-1), "returned set_think_budget with tokens that are no whole number from 0 on"),
        (Action.constrain(BROKEN), "returned set_constraint with a document that is no mapping"),
        (Action.sample(temperature=-1), "returned set_sampling with a temperature that is out of range"),
        (Action.sample(top_p=float("nan")), "returned set_sampling with a top_p that is out of range"),
        (Action.sample(heat=1), "returned set_sampling with the setting 'heat', which is none of temperature, "),
        (Action.mask({"": "x"}), "returned mask with words that are no texts"),
        (Action.mask(BROKEN), "returned mask with words that are no texts"),
        (Action.repair_call(BROKEN), "returned repair_call with arguments that are no mapping"),
        (Action.repair_call({"a": {1}}), "returned repair_call with arguments that JSON can't say"),
        (Action.repair_call({"a": float("nan")}), "returned repair_call with arguments that JSON can't say"),
    ],
)
def test_nonsense_is_named(value: Any, why: str) -> None:
    told = actions_of(value)
    assert isinstance(told, str)
    assert told.startswith(why)


@pytest.mark.parametrize("value", [None, [], (), "hello", [1], [{}], [{"role": 1}], {"role": "user"}])
def test_rewritten_messages_must_be_messages(value: Any) -> None:
    assert fault_of_messages(value)
    assert not fault_of_messages([{"role": "user", "content": "hi"}])
