"""Drafts what this server wrote before behind the same words, in any earlier answer."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from tandem.core.plugin import Drafter, DraftSession, DraftStart, Model, Options, hookimpl, option, state_dir

if TYPE_CHECKING:
    from tandem.plugins.drafters.suffix.files import Folder

TANDEM_API = ">=0.2,<0.3"

log = logging.getLogger("tandem.drafters.suffix")

DOC = """\
Drafts what this server wrote before behind the same words, in any earlier answer.

Answers repeat each other: a project's names and headers, the shape of a tool call, a file that is written once more.
The store keeps what the model wrote, over restarts, in a suffix array. A proposal takes the longest match of the newest
tokens, looks at up to `max_samples` places that have it, and merges what followed them into a tree whose branches are
weighted by votes.

The store lies in `suffix/` under Tandem's state directory, readable by its owner alone, one for each tokenizer; it
holds at most `max_tokens` ids of 4 bytes, and orders of the same size. When it is full, the oldest half is forgotten.
Of a request that says `store: false` nothing is kept. Of two servers with one state directory the first writes; the
other reads what is there, and keeps what it writes itself in memory.
"""


def build(options: Options, model: Model) -> Callable[[DraftStart], DraftSession]:
    """Open the store. It is read on a thread of its own: the first answers may find a part of it only."""
    from tandem.plugins.drafters.suffix.session import Limits, Recent, SuffixSession
    from tandem.plugins.drafters.suffix.store import Store
    from tandem.plugins.drafters.suffix.vocabulary import vocabulary_hash

    if sys.byteorder != "little":
        raise ValueError("this machine stores numbers big end first, and the suffix store needs the other order")
    vocabulary = vocabulary_hash(model.tokenizer)
    store = Store(_folder(vocabulary) if options["persist"] else None, vocabulary, options["max_tokens"])
    limits = Limits(
        options["min_order"], options["max_depth"], options["branch_top_k"], options["max_samples"], options["min_q"]
    )
    recent = Recent() if options["scope"] == "all" else None

    def opened(start: DraftStart) -> DraftSession:
        return SuffixSession(store, limits, start.keep_text, None if start.hidden else recent)

    weakref.finalize(opened, store.close)  # when the server lets go of it, and at the latest when the process ends
    return opened


def _folder(vocabulary: bytes) -> Folder | None:
    """The store's folder, or None where there can't be one."""
    from tandem.plugins.drafters.suffix.files import Folder, others

    try:
        path = state_dir("suffix", vocabulary.hex()[:16])
        for folder in (path.parent, path):
            folder.chmod(0o700)  # they may have been there, and open to others
        found = Folder(path, vocabulary)
        for other, size in others(path):
            log.info("the suffix store of another tokenizer is left alone: %s (%.1f MiB)", other, size / 2**20)
    except OSError as error:
        log.warning("the suffix store has no folder, and lives in memory only: %s", error)
        return None
    if not found.writer:
        log.warning("another process writes the suffix store %s; here it is read, and nothing is added", path)
    return found


@hookimpl
def tandem_drafters() -> list[Drafter]:
    return [
        Drafter(
            name="suffix",
            doc=DOC,
            build=build,
            options={
                "min_order": option(
                    "integer", "The shortest match, in tokens, that is drafted from.", 3, minimum=1, maximum=16
                ),
                "max_depth": option("integer", "How many tokens deep a draft goes.", 16, minimum=1),
                "branch_top_k": option("integer", "How many continuations of one place are followed.", 3, minimum=1),
                "max_samples": option(
                    "integer", "How many of the places with the longest match are looked at.", 64, minimum=1
                ),
                "min_q": option(
                    "number", "Guesses that are less likely than this are left out.", 0.02, minimum=0, maximum=1
                ),
                "max_tokens": option(
                    "integer", "How many ids the store holds; 4 bytes each.", 48 * 2**20, minimum=65_536
                ),
                "scope": option(
                    "string",
                    "What is kept of a text: the `answers`, or `all`, with the new part of each prompt.",
                    "answers",
                    enum=["answers", "all"],
                ),
                "persist": option("boolean", "Whether the store is kept over restarts.", True),
            },
        )
    ]
