"""Who stands where: the tasks that are on, by safe point, with the caps and texts that hold for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tandem.core.plugin.rule import Rule, SafePoint, Task

RAW, SHADOW, ON = "raw", "shadow", "on"
MODES = (RAW, SHADOW, ON)
"""What may be done at all, from nothing to everything."""
ACT = "act"

GIVE_UP = (
    "[Tandem ended this answer: the same mistake came again after it was pointed out. Nothing more was run or written. "
    "Ask again with a smaller step.]"
)


def lowest(*modes: str) -> str:
    """The most careful of these modes."""
    return min(modes, key=MODES.index)


@dataclass(frozen=True, slots=True)
class Caps:
    """How much may be done."""

    acts_per_request: int = 4
    acts_per_session_hour: int = 30


@dataclass(frozen=True, slots=True)
class Post:
    """A task on duty."""

    task: Task
    rule: Rule

    @property
    def acts(self) -> bool:
        return self.task.mode == ACT


@dataclass(frozen=True, slots=True)
class Roster:
    """The tasks of a request, in the order in which they are asked."""

    posts: tuple[Post, ...] = ()
    caps: Caps = Caps()
    texts: Mapping[str, str] = field(default_factory=dict)
    """What is said when no task says it: `give_up`."""

    @classmethod
    def of(cls, tasks: Iterable[tuple[str, Rule, Mapping[str, Any]]], **shared: Any) -> Roster:
        """From `(task's name, rule, options)`; the options are `mode` and the rule's parameters, defaults filled in."""
        posts = []
        for name, rule, options in tasks:
            mode = ACT if options["mode"] == "on" else options["mode"]
            if mode != "off":
                params = {key: value for key, value in options.items() if key != "mode"}
                posts.append(Post(Task(name, mode, params), rule))
        return cls(tuple(posts), **shared)

    @property
    def rewrites(self) -> bool:
        """Whether a task that acts changes messages before they are read."""
        return any(post.acts and post.rule.rewrite is not None for post in self.posts)

    def at(self, point: SafePoint) -> list[Post]:
        return [post for post in self.posts if point in post.rule.points]

    def without(self, rules: Iterable[str]) -> Roster:
        """The roster with these rules gone."""
        gone = frozenset(rules)
        return replace(self, posts=tuple(p for p in self.posts if p.rule.name not in gone)) if gone else self

    def lowered(self, mode: str) -> Roster:
        """As it is in a mode: nobody in raw, nobody acts in shadow."""
        if mode == RAW:
            return replace(self, posts=())
        if mode == ON:
            return self
        return replace(self, posts=tuple(Post(replace(p.task, mode=SHADOW), p.rule) for p in self.posts))

    @property
    def give_up(self) -> str:
        return self.texts.get("give_up") or GIVE_UP
