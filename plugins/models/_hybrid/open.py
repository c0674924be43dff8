"""From a checkpoint's directory to the model, for every family: all but the decoder and its draft head."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from tandem.core.plugin import Checkpoint, ModelError, Options, Progress, Vision
from tandem.core.plugin.vision import ImageProcessor
from tandem.plugins.models._hf.folder import Folder
from tandem.plugins.models._hybrid import device, plan, workspace
from tandem.plugins.models._hybrid.config import read_config
from tandem.plugins.models._hybrid.model import About, Decoder, Drafting, HybridModel, Sight
from tandem.plugins.models._hybrid.vision import VisionTower
from tandem.plugins.models._hybrid.weights import Loader

PREPROCESSOR = "preprocessor_config.json"
LAYOUT = 1
"""Raised with every change of what a sequence keeps."""


Parts = Callable[[Loader, plan.Plan, Progress], tuple[Decoder, Drafting | None]]
"""A family's own part of loading: the decoder, and multi-token prediction where the plan has it."""


def load(checkpoint: Checkpoint, options: Options, progress: Progress, family: str, parts: Parts) -> HybridModel:
    """Read a checkpoint whole; `progress` is called in a thread of its own. Raises ModelError."""

    def work() -> HybridModel:
        loader = open_checkpoint(checkpoint, options, family)
        found = plan.check(loader, met(loader, options))
        said = about(loader, found, kept_bytes(options))
        with torch.inference_mode():
            decoder, drafting = parts(loader, found, progress)
            seeing = sight(loader, kept_bytes(options)) if found.vision else None
        return HybridModel(decoder, said, drafting, seeing)

    return device.in_passing_thread(work)


def describe(checkpoint: Checkpoint, options: Options, family: str) -> Mapping[str, Any]:
    """What `load` would load, from the headers of the files. Raises ModelError as it does for what they show."""
    loader = open_checkpoint(checkpoint, options, family)
    return facts(loader, plan.check(loader, met(loader, options)), kept_bytes(options))


def met(loader: Loader, options: Options) -> Options:
    """The options, with multi-token prediction of several layers left out, or refused where it is asked for."""
    mtp = loader.config.mtp
    if mtp is None or mtp.layers == 1 or options["mtp"] == "off":
        return options
    if options["mtp"] == "on":
        raise ModelError(
            f"{loader.folder.path / 'config.json'}: the multi-token prediction has {mtp.layers} layers; the draft head "
            "has one. The option `mtp: off` goes on without it"
        )
    return {**options, "mtp": "off"}


def open_checkpoint(checkpoint: Checkpoint, options: Options, family: str) -> Loader:
    """The directory, ready to load from. Raises ModelError, also for a model of another family."""
    if not checkpoint.path.is_dir():
        raise ModelError(
            f"{checkpoint.path}: this is a file; the builder reads a Hugging Face directory, with config.json, "
            "safetensors and tokenizer.json"
        )
    folder = Folder(checkpoint.path)
    where = checkpoint.path / "config.json"
    config = read_config(folder.config, where)
    if config.family != family:
        raise ModelError(f"{where}: this is a {config.family} model; the builder of that name loads it")
    return Loader(folder, config, checkpoint.quantizations, *device.choose(options))


def about(loader: Loader, found: plan.Plan, image_room: int) -> About:
    """What the loaded model says about itself."""
    folder, config = loader.folder, loader.config
    said = plan.facts(loader, found)
    return About(
        name=folder.name,
        max_len=config.max_len,
        tokenizer=folder.tokenizer(config.vocab_size, list(config.eos)),
        template=folder.template,
        template_vars=folder.template_vars,
        facts=facts(loader, found, image_room),
        fingerprint=_fingerprint(folder.path, f"{config} {sorted(said.items(), key=str)}"),
    )


def facts(loader: Loader, found: plan.Plan, image_room: int) -> dict[str, Any]:
    """What there is to say about the checkpoint, what it takes to run it included. `image_room` bytes are for the rows
    of pictures."""
    drawn = loader.folder.recommended_sampling
    own = {"recommended_sampling": drawn} if drawn else {}
    return {**plan.facts(loader, found), **workspace.facts(loader, found, image_room), **own}


def kept_bytes(options: Options) -> int:
    """How much room the rows of pictures have."""
    return int(options["image_rows_mib"] * 2**20)


def sight(loader: Loader, image_room: int) -> Sight:
    """The vision tower and its processor. Raises ModelError for a processor that is missing or another one."""
    config = loader.config.vision
    assert config is not None, "the config has no vision tower"
    where = loader.folder.path / PREPROCESSOR
    if not where.is_file():
        raise ModelError(
            f"{where}: there is no such file; it says how pictures are resized for the vision tower. "
            "The option `vision: off` goes on without pictures"
        )
    try:
        processor = ImageProcessor.from_config(loader.folder.json(PREPROCESSOR))
    except ValueError as error:
        raise ModelError(f"{where}: {error}") from error
    tower = VisionTower(loader, config, processor, image_room)
    return Sight(tower, Vision(processor, loader.config.image_token, tower.kept), config.merge)


def _fingerprint(path: Path, held: str) -> str:
    """Changes with the checkpoint's files, as far as their names, sizes and times tell, and with how they are held."""
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(path.iterdir())]
    return hashlib.sha256(f"{LAYOUT} {held} {files}".encode()).hexdigest()
