"""A drafter: each token is guessed to be followed by what followed it most often in this text."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from tandem.core.plugin import Drafter, DraftSession, DraftStart, DraftTree, Model, Options, hookimpl, option

TANDEM_API = ">=0.2,<0.3"


class Pairs:
    """Counts of neighbouring tokens in one text."""

    def __init__(self, min_q: float) -> None:
        self.min_q = min_q
        self.followers: dict[int, Counter[int]] = defaultdict(Counter)
        self.last: int | None = None

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self.last is not None:
                self.followers[self.last][token] += 1
            self.last = token

    def propose(self, root: int, limit: int) -> DraftTree | None:
        """A chain below `root`: the likeliest follower each time, while the whole chain is likelier than `min_q`."""
        tree = DraftTree(source="bigram")
        token, parent, q = root, -1, 1.0
        while len(tree) < limit and (counts := self.followers.get(token)):
            token, count = counts.most_common(1)[0]
            q *= count / counts.total()
            if q < self.min_q:
                break
            parent = tree.add(token, parent, q)
        return tree if len(tree) else None

    def close(self) -> None:
        pass


def build(options: Options, model: Model) -> Callable[[DraftStart], DraftSession]:
    return lambda start: Pairs(options["min_q"])


@hookimpl
def tandem_drafters() -> list[Drafter]:
    return [
        Drafter(
            name="bigram",
            doc="Guesses that a token is followed by what followed it most often in this text.",
            options={
                "min_q": option("number", "A chain ends before it is less likely than this.", 0.3, minimum=0, maximum=1)
            },
            build=build,
        )
    ]
