"""What is wrong with a manifest, in sentences that name the place and the nearest right word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to repair."""

    file: str
    """The file as the user named it; `--set` for an override."""
    line: int
    """Counted from 1; 0 where there is no line. For `--set` the number of the override."""
    path: str
    """Dotted path inside the manifest; empty for the file as a whole."""
    message: str
    hint: str | None = None
    """The nearest right word."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        path = f" {self.path}:" if self.path else ""
        hint = f" (did you mean `{self.hint}`?)" if self.hint else ""
        return f"{place}:{path} {self.message}{hint}"


class ManifestError(Exception):
    """A manifest that can't be used. `str()` prints every problem, one a line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(dict.fromkeys(problems))
        super().__init__("\n".join(str(problem) for problem in self.problems))


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of `words` that looks most like `word`, or None when none looks alike."""
    lowered = {known.lower(): known for known in words}
    found = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.5)
    return lowered[found[0]] if found else None
