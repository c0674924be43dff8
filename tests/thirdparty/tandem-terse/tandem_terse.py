"""A narrator: a few words about a state that makes the reader wait."""

from collections.abc import Callable, Mapping
from typing import Any

from tandem.core.plugin import Host, Narrator, Options, hookimpl, option

TANDEM_API = ">=0.2,<0.3"


def build(options: Options, host: Host) -> Callable[[str, Mapping[str, Any]], str | None]:
    def line(kind: str, facts: Mapping[str, Any]) -> str | None:
        """The place in the queue, or how much of a long prompt was read; silence about everything else."""
        if kind == "queue" and facts.get("position"):
            return f"Waiting: place {facts['position']} in the queue."
        if kind == "prefill" and facts.get("total", 0) >= options["min_prompt"]:
            return f"Reading: {100 * facts.get('done', 0) // facts['total']} % of {facts['total']} tokens."
        return None

    return line


@hookimpl
def tandem_narrators() -> list[Narrator]:
    return [
        Narrator(
            name="terse",
            doc="Says in a few words what the reader waits for.",
            options={
                "min_prompt": option("integer", "A shorter prompt is read in silence, in tokens.", 2000, minimum=1)
            },
            build=build,
        )
    ]
