"""From a checkpoint's directory to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.core.plugin import Checkpoint, Options, Progress
from tandem.plugins.models._hybrid import open as opened
from tandem.plugins.models._hybrid.model import Drafting, HybridModel
from tandem.plugins.models._hybrid.plan import Plan
from tandem.plugins.models._hybrid.weights import Loader
from tandem.plugins.models.qwen3_5.decoder import Decoder
from tandem.plugins.models.qwen3_5.mtp import MtpNet

FAMILY = "qwen3_5"


def load(checkpoint: Checkpoint, options: Options, progress: Progress) -> HybridModel:
    """Read the checkpoint whole; `progress` is called in a thread of its own. Raises ModelError."""
    post_norm = options["mtp_hidden"] == "post_norm"

    def parts(loader: Loader, found: Plan, progress: Progress) -> tuple[Decoder, Drafting | None]:
        decoder = Decoder(loader, progress)
        return decoder, Drafting(MtpNet(loader, post_norm), post_norm) if found.mtp else None

    return opened.load(checkpoint, options, progress, FAMILY, parts)


def describe(checkpoint: Checkpoint, options: Options) -> Mapping[str, Any]:
    """What `load` would load, from the headers of the files."""
    return opened.describe(checkpoint, options, FAMILY)
