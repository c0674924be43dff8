"""All hooks, one for each kind of part. Each is called once, when the platform is assembled.

A plugin is a module (or object) named by an entry point in the hook's group. It implements the hook with `hookimpl`
and returns its parts; the entry point's name picks the part of that name, so one module may serve several entry points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from tandem.core.plugin.cache import Cache
    from tandem.core.plugin.client import Client
    from tandem.core.plugin.decision import Decider, Narrator, Stage
    from tandem.core.plugin.drafter import Chooser, Drafter
    from tandem.core.plugin.format import Format
    from tandem.core.plugin.model import ModelBuilder
    from tandem.core.plugin.quantization import Quantization
    from tandem.core.plugin.route import Routes
    from tandem.core.plugin.rule import Rule

PROJECT = "tandem"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# ------------------------------------------------------------------------------------------------- generation


@hookspec
def tandem_models() -> list[ModelBuilder]:  # type: ignore[empty-body]
    """Model builders: what turns a checkpoint into a running model.

    Used when the manifest's `model.plugin` names one. Failing stops the start: nothing can be served without it.
    """


@hookspec
def tandem_drafters() -> list[Drafter]:  # type: ignore[empty-body]
    """Drafters: guess the next tokens so that the model can verify several in one pass.

    Used for each generation while the manifest's `drafters` lists them. They can cost time, never change a token.
    """


@hookspec
def tandem_choosers() -> list[Chooser]:  # type: ignore[empty-body]
    """Choosers: decide which drafters are asked and which of their guesses are worth verifying.

    The first that the manifest's `choosers` lists is used for every generation that drafts.
    """


@hookspec
def tandem_quantizations() -> list[Quantization]:  # type: ignore[empty-body]
    """Quantizations: ways to store a checkpoint's weights in fewer bits, and to compute with them.

    Asked in the manifest's order when a builder loads a checkpoint that says it is quantised.
    """


@hookspec
def tandem_caches() -> list[Cache]:  # type: ignore[empty-body]
    """Cache tiers: keep the state of sequences so that a prompt's known beginning is not read again.

    Asked for the longest match before each prefill; offered the sequence at its grid lines and ends.
    """


@hookspec
def tandem_formats() -> list[Format]:  # type: ignore[empty-body]
    """Formats: how a model family writes its reasoning and its tool calls.

    The first in the manifest's order that fits the model's chat template is used.
    """


# -------------------------------------------------------------------------------------------------- conductor


@hookspec
def tandem_rules() -> list[Rule]:  # type: ignore[empty-body]
    """Monitor rules: stand at a safe point of the generation, look, and may act.

    Called at the safe point of the rule for each request while the manifest's `rules` lists them.
    """


@hookspec
def tandem_stages() -> list[Stage]:  # type: ignore[empty-body]
    """Classifier stages: tell the router what kind of turn this is (preview)."""


@hookspec
def tandem_deciders() -> list[Decider]:  # type: ignore[empty-body]
    """Decision models: answer choice, score and yes-or-no questions about a state (preview)."""


@hookspec
def tandem_narrators() -> list[Narrator]:  # type: ignore[empty-body]
    """Narrators: write the lines that tell a waiting reader what goes on (preview)."""


# ----------------------------------------------------------------------------------------------------- server


@hookspec
def tandem_clients() -> list[Client]:  # type: ignore[empty-body]
    """Client shapes: recognise which program sent a request.

    Asked in the manifest's order for each request to a generation route.
    """


@hookspec
def tandem_routes() -> list[Routes]:  # type: ignore[empty-body]
    """HTTP routes that a feature adds to the server. Built once, when the server starts."""


# ----------------------------------------------------------------------------------------------------- the kinds


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of part. `plural` is its section in the manifest, `noun` its word in `tandem new`."""

    plural: str
    noun: str
    for_builders: bool = False
    """The enabled parts of this kind are handed to the model's builder (`Checkpoint.parts`)."""

    @property
    def hook(self) -> str:
        return f"tandem_{self.plural}"

    @property
    def group(self) -> str:
        return f"tandem.{self.plural}"


KINDS: tuple[Kind, ...] = (
    Kind("models", "model"),
    Kind("drafters", "drafter"),
    Kind("choosers", "chooser"),
    Kind("quantizations", "quantization", for_builders=True),
    Kind("caches", "cache"),
    Kind("rules", "rule"),
    Kind("stages", "stage"),
    Kind("deciders", "decider"),
    Kind("clients", "client"),
    Kind("formats", "format"),
    Kind("narrators", "narrator"),
    Kind("routes", "route"),
)
