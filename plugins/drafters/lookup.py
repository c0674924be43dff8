"""Drafts the continuation that followed the same words earlier in the prompt or the answer.

Text that copies (an edited file, a quoted list, a tool result told again) is its own best draft model. The session
keeps, for each n-gram of `min_order` tokens, the places where it ended. A proposal takes the latest places, keeps those
with the longest common ending, and merges what followed them into a tree whose branches are weighted by votes.

After two proposals in a row that the text followed, the next is a deep chain: one exact continuation, as long as a pass
has room for, until one fails.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence as Seq
from math import exp

from tandem.core.plugin import Drafter, DraftSession, DraftStart, DraftTree, Model, Options, hookimpl, option

TANDEM_API = ">=0.2,<0.3"

LONGEST_ORDER = 32
"""Endings are compared up to this many tokens; a longer match says nothing more."""
ORDERS = (2, 3, 4, 5, 6, 8, 11, 15, 20, 26, 31)
"""Upper ends of the classes of match lengths (tokens) that a continuation rate is learned for; 32 is one more."""
CLASS = [bisect_left(ORDERS, order) for order in range(LONGEST_ORDER + 1)]
DEEP_AFTER = 2
"""Proposals in a row that the text followed before the next one goes deep."""
WHOLE = 4
"""A proposal counts as followed whole when the text went through a leaf, or this many tokens down: more may not have
been verified, nor be known yet when the next one is asked for."""


class Continuation:
    """How often a match of some length goes on for one more token, learned from every text of the server's life.

    Kept by class of the match's length, and by whether it is a run already: the text followed the step before, of this
    proposal or the last one. Before anything is known, a match of n tokens is taken to go on with probability
    n / (n + 4), or n / (n + 1) inside a run; that weighs as much as `PRIOR` steps. Counts are halved past `BOUND`
    steps.
    """

    PRIOR = 4.0
    BOUND = 4000.0

    def __init__(self) -> None:
        ends = (*ORDERS, LONGEST_ORDER)
        self._steps = [[self.PRIOR] * len(ends) for _ in (False, True)]
        self._right = [[self.PRIOR * n / (n + doubt) for n in ends] for doubt in (4, 1)]

    def rate(self, place: int, running: bool) -> float:
        """For the class `place` of the match's length; never quite 1, so that a text can always say otherwise."""
        return min(0.995, self._right[running][place] / self._steps[running][place])

    def learn(self, order: int, running: bool, held: bool, share: float = 1.0) -> None:
        """A match of `order` tokens went on for one more, or did not. `share` of the votes were in the proposal."""
        place = CLASS[order]
        steps, right = self._steps[running], self._right[running]
        steps[place] += share
        right[place] += held
        if steps[place] > self.BOUND:
            steps[place], right[place] = steps[place] / 2, right[place] / 2


class TextRates:
    """The rates as one text bears them out: a factor on the odds of each, for the first step after a failure and for
    the steps of a run.

    Its logarithm follows the errors of what was said (online logistic regression with an intercept alone). Every
    proposal teaches it, verified or not, so that a text that repeats words without copying is known after a few.
    """

    RATE = 0.15
    HALF = 3.0
    """Steps after which the rate of learning is one half; it begins with 1 and ends with `RATE`."""

    def __init__(self, shared: Continuation) -> None:
        self._shared = shared
        self._log = [0.0, 0.0]
        self._odds = [1.0, 1.0]
        self._steps = [0, 0]

    def rates(self, running: bool) -> list[float]:
        """By class of the match's length (`CLASS`)."""
        return [self._rate(place, running) for place in range(len(ORDERS) + 1)]

    def _rate(self, place: int, running: bool) -> float:
        rate = self._shared.rate(place, running)
        favour = rate * self._odds[running]
        return favour / (1.0 - rate + favour)

    def learn(self, order: int, running: bool, held: bool, share: float) -> None:
        """As `Continuation.learn`, which it tells as well."""
        said = self._rate(CLASS[order], running) * share
        rate = max(self.RATE, 1.0 / (1.0 + self._steps[running] / self.HALF))
        self._log[running] = min(6.0, max(-6.0, self._log[running] + rate * (held - said)))
        self._odds[running] = exp(self._log[running])
        self._steps[running] += 1
        self._shared.learn(order, running, held, share)


class Proposal:
    """The tree that was proposed last, followed down as the text goes on."""

    __slots__ = ("children", "depth", "held", "order", "reached", "running", "shares", "tree", "unread")

    def __init__(self, tree: DraftTree, shares: list[float], order: int, running: bool, root: int) -> None:
        self.tree = tree
        self.shares = shares
        """By node: the share of its parent's votes."""
        self.order = order
        self.running = running
        self.unread: int | None = root
        """The root is no guess: it is read before the first step."""
        self.children: dict[int, dict[int, int]] | None = None
        """By node: token -> child; None before the first step is asked for."""
        self.reached = -1
        self.depth = 0
        self.held = True
        """Nothing has contradicted it."""

    @property
    def open(self) -> bool:
        """The next token still tells something."""
        return self.held and (self.children is None or self.reached in self.children)

    def step(self, token: int, rates: TextRates) -> None:
        """The text goes on with this token."""
        if self.children is None:
            self.children = {}
            for i, (parent, drafted) in enumerate(zip(self.tree.parents, self.tree.tokens, strict=True)):
                self.children.setdefault(parent, {})[drafted] = i
        below = self.children[self.reached]
        node = below.get(token)
        share = 1.0 if len(below) == 1 else min(1.0, sum(self.shares[i] for i in below.values()))
        running = self.running or self.depth > 0
        rates.learn(min(self.order + self.depth, LONGEST_ORDER), running, node is not None, share)
        self.depth += 1
        if node is None:
            self.held = False
        else:
            self.reached = node


class LookupSession:
    """The n-gram index of one text."""

    def __init__(
        self,
        min_order: int,
        max_depth: int,
        branch_top_k: int,
        max_places: int,
        deep: bool = True,
        rates: Continuation | None = None,
    ) -> None:
        self._order = min_order
        self._depth = max_depth
        self._branches = branch_top_k
        self._max_places = max_places
        self._deep = deep
        self._rates = TextRates(rates if rates is not None else Continuation())
        self._text: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._last: Proposal | None = None
        self._held = False
        """The text followed the last proposal as far as it went on."""
        self._run = 0
        """Proposals in a row that were followed whole, or for `WHOLE` tokens."""
        self._followed: tuple[int, int] | None = None
        """Where the last deep chain was copied from, and how long the text was then: a copy goes on from there."""

    def extend(self, tokens: Seq[int]) -> None:
        self._follow(tokens)
        text, order = self._text, self._order
        start = len(text)
        text.extend(tokens)
        for end in range(max(start, order - 1) + 1, len(text) + 1):
            # `end` is where the continuation begins; the newest place has none yet and is simply found empty.
            self._places.setdefault(tuple(text[end - order : end]), []).append(end)

    def close(self) -> None:
        return

    # ------------------------------------------------------------------------------------------------ proposing

    def propose(self, root: int, limit: int) -> DraftTree | None:
        self._judge(root)
        keep = self._order - 1
        if len(self._text) < keep:
            return None
        places = self._places.get((*self._text[len(self._text) - keep :], root))
        if not places:
            self._held, self._run = False, 0
            return None
        matches = [(self._match(place), place) for place in places[-self._max_places :]]
        longest = max(matches)[0]
        best = [place for length, place in matches if length == longest]
        if self._deep and self._run >= DEEP_AFTER:
            tree, shares = self._chain(best, longest, root, limit)
        else:
            tree, shares = self._tree(best, longest, limit)
        if not len(tree):
            self._held, self._run = False, 0
            return None
        self._last = Proposal(tree, shares, longest, self._held, root)
        return tree

    def _match(self, place: int) -> int:
        """Length of the common ending of the text before `place` and the text followed by the root."""
        text = self._text
        length, here, there = self._order, len(text) - self._order, place - 1 - self._order
        more = LONGEST_ORDER - length
        if there + 1 >= more > 0 and text[here - more + 1 : here + 1] == text[there - more + 1 : there + 1]:
            return LONGEST_ORDER  # inside a copy nearly all places are: one comparison instead of thirty
        while length < LONGEST_ORDER and there >= 0 and here >= 0 and text[here] == text[there]:
            length, here, there = length + 1, here - 1, there - 1
        return length

    def _tree(self, places: list[int], order: int, limit: int) -> tuple[DraftTree, list[float]]:
        """What followed the places, newest first, as a tree of at most `limit` nodes, and each node's share of votes.

        A node's q is its parent's times its share of the votes times the rate at which a match as long as that goes
        on; below the first step the match is one longer for each.
        """
        tree = DraftTree(source=f"lookup:{_size(order)}")
        shares: list[float] = []
        first, later = self._rates.rates(self._held), self._rates.rates(True)
        layer = [(-1, 1.0, sorted(places, reverse=True))]
        for depth in range(self._depth):
            going_on = (later if depth else first)[CLASS[min(order + depth, LONGEST_ORDER)]]
            following: list[tuple[int, float, list[int]]] = []
            for parent, q, group in layer:
                votes: dict[int, list[int]] = {}
                for place in group:
                    if place + depth < len(self._text):
                        votes.setdefault(self._text[place + depth], []).append(place)
                best = sorted(votes.items(), key=lambda item: -len(item[1]))[: self._branches]
                for token, voters in best:
                    if len(tree) >= limit:
                        return tree, shares
                    share = len(voters) / len(group)
                    likely = q * going_on * share
                    shares.append(share)
                    following.append((tree.add(token, parent, likely), likely, voters))
            if not following:
                break
            layer = following
        return tree, shares

    def _chain(self, places: list[int], order: int, root: int, limit: int) -> tuple[DraftTree, list[float]]:
        """The continuation of one place, `limit` tokens long: that of the copy being followed, where the match holds
        it still, else of the latest place. What has no end yet (a period) is read on into the chain itself."""
        text, tree = self._text, DraftTree(source="lookup:deep")
        place = self._followed[0] + len(text) - self._followed[1] if self._followed else -1
        if place not in places:
            place = places[-1]
        self._followed = place, len(text)
        rates = self._rates.rates(True)
        chain = text[place : place + limit]
        if len(chain) < limit:
            chain.append(root)
            period = len(chain)
            while len(chain) < limit:
                chain.append(chain[-period])
        q = 1.0
        for depth, token in enumerate(chain):
            q *= rates[CLASS[min(order + depth, LONGEST_ORDER)]]
            tree.add(token, depth - 1, q)
        return tree, [1.0] * len(tree)

    # ------------------------------------------------------------------------------------------------- learning

    def _follow(self, tokens: Seq[int]) -> None:
        """Walk the last proposal along the text, whether it was verified or not."""
        last = self._last
        if last is None:
            return
        for token in tokens:
            if last.unread is not None:
                if token != last.unread:  # the round was not what it was asked for: forced text, for instance
                    last.held = False
                last.unread = None
                if not last.held:
                    return
            elif last.open:
                last.step(token, self._rates)
            else:
                return

    def _judge(self, root: int) -> None:
        """Did the text follow the last proposal? The new root is the first token behind what was accepted."""
        last, self._last = self._last, None
        if last is None:
            return
        if last.unread is not None:  # asked twice for one round: nothing is known yet
            return
        if last.open:
            last.step(root, self._rates)
        self._held = last.held
        if not last.held:
            self._run = 0
        elif last.depth >= WHOLE or not last.open:
            self._run += 1


def _size(order: int) -> str:
    """The class of match lengths whose acceptance is learned together."""
    return "short" if order <= 4 else "middle" if order <= 8 else "long"


def _build(options: Options, model: Model) -> Callable[[DraftStart], DraftSession]:
    rates = Continuation()
    return lambda start: LookupSession(
        options["min_order"],
        options["max_depth"],
        options["branch_top_k"],
        options["max_places"],
        options["deep"],
        rates,
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
                "max_depth": option("integer", "How many tokens deep a tree of votes goes.", 16, minimum=1),
                "branch_top_k": option("integer", "How many continuations of one place are followed.", 3, minimum=1),
                "max_places": option(
                    "integer", "How many earlier places, the latest first, are compared.", 16, minimum=1
                ),
                "deep": option(
                    "boolean",
                    "Whether a run of right guesses is followed by one chain as long as a pass has room for.",
                    True,
                ),
            },
        )
    ]
