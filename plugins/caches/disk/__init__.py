"""The disk tier: states of conversations in files, which outlive the server."""

from __future__ import annotations

from pathlib import Path

from tandem.core.plugin import Cache, CacheTier, Model, Options, hookimpl, option, state_dir

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Keeps the states of conversations in files, so that a conversation goes on after a restart without being read again.

A conversation is written when it comes back (`admit_after`), and with `spill` every one that is still in memory when
the server closes. A file names the model it is of, and carries checksums: one that is torn is deleted, one of another
model is left until its time or its place runs out, and neither is ever served. Writing happens on a thread of its own;
a full or read-only disk costs the file, nothing else.
"""


def build(options: Options, model: Model) -> CacheTier:
    """Read what is there. Raises ValueError when this model's states can't leave the process."""
    from tandem.plugins.caches.disk.tier import DiskTier, Limits

    if model.fingerprint is None:
        raise ValueError(f"the states of the model {model.name} can't leave the process")
    path = Path(options["path"]).expanduser() if options["path"] else state_dir("states")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    limits = Limits(
        budget=int(options["gib"] * 2**30),
        seconds=options["days"] * 86400,
        admit_after=options["admit_after"],
        min_tokens=options["min_tokens"],
        leave_free=int(options["leave_free_gib"] * 2**30),
        spill=options["spill"],
    )
    return DiskTier(path, model, limits)


@hookimpl
def tandem_caches() -> list[Cache]:
    return [
        Cache(
            name="disk",
            doc=DOC,
            build=build,
            options={
                "path": option(["string", "null"], "The directory; null = `states` in Tandem's state directory.", None),
                "gib": option("number", "How much all files may take, in GiB.", 20, exclusiveMinimum=0),
                "days": option("number", "A file that nobody asked for this long is deleted.", 14, exclusiveMinimum=0),
                "admit_after": option("integer", "A conversation is written from this turn of it on.", 2, minimum=1),
                "min_tokens": option("integer", "Shorter conversations are read again sooner.", 256, minimum=16),
                "leave_free_gib": option("number", "Nothing is written that would leave less space.", 2, minimum=0),
                "spill": option("boolean", "Write what is in memory when the server closes.", True),
            },
        )
    ]
