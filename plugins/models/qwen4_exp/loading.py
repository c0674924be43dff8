"""From a checkpoint's directory to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tandem.core.plugin import Checkpoint, ModelError, Options, Progress
from tandem.plugins.models._hybrid import device, plan
from tandem.plugins.models._hybrid.model import Drafting, HybridModel
from tandem.plugins.models._hybrid.open import about, facts, kept_bytes, open_checkpoint, sight
from tandem.plugins.models._hybrid.weights import Loader
from tandem.plugins.models.qwen4_exp.decoder import Decoder
from tandem.plugins.models.qwen4_exp.mtp import MtpNet

FAMILY = "qwen4_exp"


def load(checkpoint: Checkpoint, options: Options, progress: Progress) -> HybridModel:
    """Read the checkpoint whole, its n-gram table excepted; `progress` is called in a thread of its own.

    Raises ModelError.
    """

    def work() -> HybridModel:
        loader = open_checkpoint(checkpoint, options, FAMILY)
        found = plan.check(loader, met(loader, options))
        with torch.inference_mode():
            decoder = Decoder(loader, progress)
            drafting = Drafting(MtpNet(loader), post_norm=False) if found.mtp else None
            seeing = sight(loader, kept_bytes(options)) if found.vision else None
        return HybridModel(decoder, about(loader, found, kept_bytes(options)), drafting, seeing)

    return device.in_passing_thread(work)


def describe(checkpoint: Checkpoint, options: Options) -> Mapping[str, Any]:
    """What `load` would load, from the headers of the files."""
    loader = open_checkpoint(checkpoint, options, FAMILY)
    return facts(loader, plan.check(loader, met(loader, options)), kept_bytes(options))


def met(loader: Loader, options: Options) -> Options:
    """The options, with multi-token prediction of several layers left out, or refused where it is asked for."""
    mtp = loader.config.mtp
    if mtp is None or mtp.layers == 1 or options["mtp"] == "off":
        return options
    if options["mtp"] == "on":
        raise ModelError(
            f"{loader.folder.path / 'config.json'}: mtp_num_hidden_layers is {mtp.layers}; the draft head has one "
            "layer. The option `mtp: off` goes on without it"
        )
    return {**options, "mtp": "off"}
