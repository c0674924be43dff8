"""Drafts the continuation that followed the same words earlier in the prompt or the answer.

Text that copies (an edited file, a quoted list, a tool result told again) is its own best draft model. The session
keeps, for each n-gram of `min_order` tokens, the places where it ended. A proposal takes the latest places, keeps those
with the longest common ending, and merges what followed them into a tree whose branches are weighted by votes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq

from tandem.core.plugin import Drafter, DraftSession, DraftStart, DraftTree, Model, Options, hookimpl, option

TANDEM_API = ">=0.2,<0.3"

LONGEST_ORDER = 32
"""Endings are compared up to this many tokens; a longer match says nothing more."""


class LookupSession:
    """The n-gram index of one text."""

    def __init__(self, min_order: int, max_depth: int, branch_top_k: int, max_places: int) -> None:
        self._order = min_order
        self._depth = max_depth
        self._branches = branch_top_k
        self._max_places = max_places
        self._text: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}

    def extend(self, tokens: Seq[int]) -> None:
        text, order = self._text, self._order
        start = len(text)
        text.extend(tokens)
        for end in range(max(start, order - 1) + 1, len(text) + 1):
            # `end` is where the continuation begins; the newest place has none yet and is simply found empty.
            self._places.setdefault(tuple(text[end - order : end]), []).append(end)

    def close(self) -> None:
        return

    def propose(self, root: int, limit: int) -> DraftTree | None:
        keep = self._order - 1
        if len(self._text) < keep:
            return None
        places = self._places.get((*self._text[len(self._text) - keep :], root))
        if not places:
            return None
        matches = [(self._match(place), place) for place in places[-self._max_places :]]
        longest = max(matches)[0]
        return self._tree([place for length, place in matches if length == longest], longest, limit)

    def _match(self, place: int) -> int:
        """Length of the common ending of the text before `place` and the text followed by the root."""
        text = self._text
        length, here, there = self._order, len(text) - self._order, place - 1 - self._order
        while length < LONGEST_ORDER and there >= 0 and here >= 0 and text[here] == text[there]:
            length, here, there = length + 1, here - 1, there - 1
        return length

    def _tree(self, places: list[int], order: int, limit: int) -> DraftTree | None:
        """What followed the places, newest first, as a tree of at most `limit` nodes.

        A node's q is its parent's times the share of votes for it times order / (order + 1), the chance that a
        match of that order goes on for another token (Laplace's rule of succession, up to calibration).
        """
        tree = DraftTree(source=f"lookup:{_size(order)}")
        going_on = order / (order + 1)
        layer = [(-1, 1.0, sorted(places, reverse=True))]
        for depth in range(self._depth):
            following: list[tuple[int, float, list[int]]] = []
            for parent, q, group in layer:
                votes: dict[int, list[int]] = {}
                for place in group:
                    if place + depth < len(self._text):
                        votes.setdefault(self._text[place + depth], []).append(place)
                best = sorted(votes.items(), key=lambda item: -len(item[1]))[: self._branches]
                for token, voters in best:
                    if len(tree) >= limit:
                        return tree
                    share = q * going_on * len(voters) / len(group)
                    following.append((tree.add(token, parent, share), share, voters))
            if not following:
                break
            layer = following
        return tree if len(tree) else None


def _size(order: int) -> str:
    """The class of match lengths whose acceptance is learned together."""
    return "short" if order <= 4 else "middle" if order <= 8 else "long"


def _build(options: Options, model: Model) -> Callable[[DraftStart], DraftSession]:
    return lambda start: LookupSession(
        options["min_order"], options["max_depth"], options["branch_top_k"], options["max_places"]
    )


@hookimpl
def tandem_drafters() -> list[Drafter]:
    return [
        Drafter(
            name="lookup",
            doc=__doc__,
            build=_build,
            options={
                "min_order": option("integer", "The shortest match, in tokens, that is drafted from.", 3, minimum=1),
                "max_depth": option("integer", "How many tokens deep a draft goes.", 16, minimum=1),
                "branch_top_k": option("integer", "How many continuations of one place are followed.", 3, minimum=1),
                "max_places": option(
                    "integer", "How many earlier places, the latest first, are compared.", 16, minimum=1
                ),
            },
        )
    ]
