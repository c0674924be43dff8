"""The resident prefix: the sequences of ended generations stay in memory, and a next turn goes on with one."""

from __future__ import annotations

from tandem.core.plugin import Cache, CacheTier, Model, Options, hookimpl, option

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Keeps the sequences of the last conversations, so that a next turn reads only what is new.

When a generation ends, its sequence is not freed but kept with the tokens it has read. A prompt that starts the same
way takes it over, cut back to where the two part, and nothing is copied. A prompt that shares only the beginning with a
longer conversation, a system prompt say, gets a copy of that part, and the conversation stays. So does one that goes on
with a conversation which another request uses right now.

A sequence with a recurrent state can't be cut anywhere. For such a model the tier keeps anchors: the state at the lines
of a grid while the prompt is read, and where it ends.
"""


def build(options: Options, model: Model) -> CacheTier:
    from tandem.plugins.caches.resident.tier import Resident

    return Resident(
        budget=int(options["gib"] * 2**30),
        anchor_budget=int(options["anchors_gib"] * 2**30),
        conversations=options["conversations"],
        anchor_every=options["anchor_every"],
        trim=model.caps.trim,
    )


@hookimpl
def tandem_caches() -> list[Cache]:
    return [
        Cache(
            name="resident",
            doc=DOC,
            build=build,
            options={
                "gib": option("number", "How much memory the kept sequences may hold, in GiB.", 2, exclusiveMinimum=0),
                "conversations": option("integer", "How many sequences are kept at most.", 16, minimum=1),
                "anchors_gib": option(
                    "number", "How much memory the anchors of recurrent models may hold besides, in GiB.", 1, minimum=0
                ),
                "anchor_every": option("integer", "Tokens from one anchor to the next, at least.", 1024, minimum=1),
            },
        )
    ]
