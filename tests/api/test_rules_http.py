"""What each action of a rule does to a served answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tandem.core.plugin import Rule, SafePoint, hookimpl
from tandem.testing.box import Box

TANDEM_API = ">=0.2,<0.3"
SP1, SP2, SP3, SP4 = SafePoint.SP1, SafePoint.SP2, SafePoint.SP3, SafePoint.SP4
TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {"x": {}}}}}


def module(rule: Rule) -> Any:
    class Plugin:
        TANDEM_API = ">=0.2,<0.3"

        @staticmethod
        @hookimpl
        def tandem_rules() -> list[Rule]:
            return [rule]

    Plugin.__name__ = rule.name
    return Plugin


@contextmanager
def host(check: Callable[..., Any], at: Any, mode: str = "act", **more: Any) -> Iterator[Box]:
    rule = Rule("r", at=at, check=check, **more)
    thinks = {"plugin": "scripted", "thinking": True}
    with Box(plugins=[module(rule)], rules={"r": {"mode": mode}}, model=thinks, formats=["hermes_json"]) as box:
        yield box


def call(name: str = "run", **arguments: Any) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def always(action: Any) -> Callable[..., Any]:
    return lambda event, task, sup: action


def once(action: Any) -> Callable[..., Any]:
    def check(event: Any, task: Any, sup: Any) -> Any:
        if sup.memo.get("done"):
            return None
        sup.memo["done"] = True
        return action

    return check
