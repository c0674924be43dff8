"""Checkpoints as Hugging Face directories: `config.json`, safetensors, `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import ModelError
from tandem.plugins.models.llama.config import from_hf
from tandem.plugins.models.llama.source import FLOAT_FORMATS, Source, pairs_together

if TYPE_CHECKING:
    import torch

    from tandem.plugins.models.llama.tokenizer import TextTokenizer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class HfFolder(Source):
    """A directory as `save_pretrained` writes it, in one safetensors file or several."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "config.json").is_file():
            raise ModelError(
                f"{path}: this directory has no config.json; a Hugging Face checkpoint has config.json, "
                f"{WEIGHTS} (or {INDEX} with its shards) and tokenizer.json"
            )
        data = read_json(path / "config.json")
        self.config = from_hf(data, path / "config.json")
        self.name = str(data.get("_name_or_path") or path.resolve().name)
        self._eos = data.get("eos_token_id")
        self._tokenizer_config = self._optional_json("tokenizer_config.json")
        self.template = self._template()
        self.template_vars = self._template_vars()
        self._files = self._open_files()
        self._where, self._shapes, self._formats = self._headers()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def format(self, name: str) -> str:
        return self._formats[name]

    def tensor(self, name: str) -> torch.Tensor:
        value: torch.Tensor = self._where[name].get_tensor(name)
        if ".q_proj." in name:
            return pairs_together(value, self.config.heads)
        if ".k_proj." in name:
            return pairs_together(value, self.config.kv_heads)
        return value

    def ignores(self, name: str) -> bool:
        return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and self.config.tied)

    def tokenizer(self) -> TextTokenizer:
        from tandem.plugins.models.llama.tokenizer import from_file

        path = self.path / "tokenizer.json"
        if not path.is_file():
            raise ModelError(
                f"{self.path}: there is no tokenizer.json; a tokenizer in another format must be converted to it "
                "(transformers writes it with `save_pretrained`)"
            )
        eos = self._optional_json("generation_config.json").get("eos_token_id", self._eos)
        eos_ids = [eos] if isinstance(eos, int) else eos or []
        return from_file(path, self.config.vocab_size, eos_ids, self.template_vars.get("eos_token"))

    # ------------------------------------------------------------------------------------------------ texts

    def _optional_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        return read_json(path) if path.is_file() else {}

    def _template(self) -> str | None:
        path = self.path / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        template = self._tokenizer_config.get("chat_template")
        if isinstance(template, list):  # several named templates: `default` is the one for chats
            named = {entry.get("name"): entry.get("template") for entry in template}
            template = named.get("default")
        return template

    def _template_vars(self) -> dict[str, str]:
        found = {}
        for source in (self._optional_json("special_tokens_map.json"), self._tokenizer_config):
            for key in SPECIAL_TOKENS:
                token = source.get(key)
                if isinstance(token, dict):
                    token = token.get("content")
                if isinstance(token, str):
                    found[key] = token
        return found

    # ---------------------------------------------------------------------------------------------- weights

    def _open_files(self) -> dict[str, Any]:
        """The safetensors files by name, opened."""
        if (self.path / WEIGHTS).is_file():
            names = [WEIGHTS]
        elif (self.path / INDEX).is_file():
            weight_map = read_json(self.path / INDEX).get("weight_map")
            if not isinstance(weight_map, dict):
                raise ModelError(f"{self.path / INDEX}: there is no weight_map; it must name the file of each tensor")
            names = sorted(set(weight_map.values()))
        else:
            raise ModelError(
                f"{self.path}: this directory has no {WEIGHTS} and no {INDEX}; "
                "weights in other formats must be converted to safetensors"
            )
        if absent := [name for name in names if not (self.path / name).is_file()]:
            raise ModelError(f"{self.path / INDEX}: it names files that are not here: {', '.join(absent)}")
        return {name: _open_safetensors(self.path / name) for name in names}

    def _headers(self) -> tuple[dict[str, Any], dict[str, tuple[int, ...]], dict[str, str]]:
        where, shapes, formats = {}, {}, {}
        for file in self._files.values():
            for name in file.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                header = file.get_slice(name)
                where[name], shapes[name], formats[name] = file, tuple(header.get_shape()), header.get_dtype()
        if odd := [f"{name} ({kind})" for name, kind in formats.items() if kind not in FLOAT_FORMATS]:
            raise ModelError(
                f"{self.path}: these tensors hold no floating-point numbers: {', '.join(odd)}; "
                f"supported are {', '.join(FLOAT_FORMATS)}"
            )
        return where, shapes, formats


def _open_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path}: this is no whole safetensors file ({error}); copy or download it again") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises ModelError with the file and the place."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(f"{path}: this is no readable JSON file ({error})") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path}: this holds a JSON {type(data).__name__}; it must be an object")
    return data
