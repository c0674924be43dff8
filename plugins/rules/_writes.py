"""The files that a program writes, as its redirections and arguments name them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tandem.plugins.rules._runs import Run
from tandem.plugins.rules._shell import Word

DELETERS = frozenset(("rm", "unlink", "shred", "rmdir", "srm"))


def written_words(run: Run, deleted: bool = False) -> list[Word]:
    """The words that name the files a run writes to, with `deleted` those that it deletes too."""
    words = [redirect.target for redirect in run.redirects if redirect.writes]
    if run.name in WRITERS:
        words += WRITERS[run.name](run)
    elif deleted and run.name in DELETERS:
        words += run.operands
    return words


def _last(run: Run) -> list[Word]:
    """Where a copying program puts things: the folder of `-t`, else its last operand."""
    return _values(run, "t", "--target-directory") or run.operands[1:][-1:]


def _values(run: Run, letter: str, long: str) -> list[Word]:
    """The values of an option, in all ways to write it."""
    found = []
    for word, following in zip(run.words, [*run.words[1:], None], strict=True):
        if word.text.startswith(long + "="):
            found.append(Word(word.text.partition("=")[2], word.known))
        elif following is not None and (word.text == long or re.fullmatch(rf"-[a-zA-Z]*{letter}", word.text)):
            found.append(following)
    return found


WRITERS: Mapping[str, Callable[[Run], list[Word]]] = {
    "tee": lambda run: run.operands,
    "touch": lambda run: run.operands,
    "mkdir": lambda run: run.operands,
    "truncate": lambda run: run.operands,
    "cp": _last,
    "mv": lambda run: run.operands,
    "install": _last,
    "ln": _last,
    "rsync": lambda run: [word for word in _last(run) if ":" not in word.text],
    "dd": lambda run: [Word(word.text[3:], word.known) for word in run.words if word.text.startswith("of=")],
    "sed": lambda run: run.operands[0 if run.has("e", "--expression") else 1 :] if run.has("i", "--in-place") else [],
    "shred": lambda run: run.operands,
    "curl": lambda run: [word for word in _values(run, "o", "--output") if word.text != "-"],
    "wget": lambda run: [word for word in _values(run, "O", "--output-document") if word.text != "-"],
}
"""Program -> the words that name the files it writes."""
