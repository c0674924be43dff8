"""Llama checkpoints as Hugging Face directories: `config.json`, safetensors, `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.core.plugin import ModelError
from tandem.plugins.models._hf.folder import Folder
from tandem.plugins.models.llama.config import from_hf
from tandem.plugins.models.llama.source import FLOAT_FORMATS, Source, pairs_together

if TYPE_CHECKING:
    import torch

    from tandem.plugins.models._hf.tokenizer import TextTokenizer


class HfFolder(Source):
    """A directory as `save_pretrained` writes it, in one safetensors file or several."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = Folder(path)
        self.config = from_hf(self._folder.config, path / "config.json")
        self.name = self._folder.name
        self.template = self._folder.template
        self.template_vars = self._folder.template_vars
        self.recommended_sampling = self._folder.recommended_sampling
        self._weights = self._folder.weights
        if odd := [f"{name} ({kind})" for name, kind in self._weights.formats.items() if kind not in FLOAT_FORMATS]:
            raise ModelError(
                f"{path}: these tensors hold no floating-point numbers: {', '.join(odd)}; "
                f"supported are {', '.join(FLOAT_FORMATS)}"
            )

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._weights.shapes

    def format(self, name: str) -> str:
        return self._weights.formats[name]

    def tensor(self, name: str) -> torch.Tensor:
        value = self._weights.tensor(name)
        if ".q_proj." in name:
            return pairs_together(value, self.config.heads)
        if ".k_proj." in name:
            return pairs_together(value, self.config.kv_heads)
        return value

    def ignores(self, name: str) -> bool:
        return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and self.config.tied)

    def tokenizer(self) -> TextTokenizer:
        return self._folder.tokenizer(self.config.vocab_size, self._folder.config.get("eos_token_id"))
