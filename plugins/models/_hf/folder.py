"""A checkpoint directory as `save_pretrained` writes it: JSON files, the chat template, the tokenizer, safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import ModelError

if TYPE_CHECKING:
    import torch

    from tandem.plugins.models._hf.tokenizer import TextTokenizer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SAMPLING = ("temperature", "top_p", "top_k", "min_p")
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Folder:
    """The directory, opened: small files are read, weights are not."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError when this is no checkpoint directory or one of its files is broken."""
        self.path = path
        if not (path / "config.json").is_file():
            raise ModelError(
                f"{path}: this directory has no config.json; a Hugging Face checkpoint has config.json, "
                f"{WEIGHTS} (or {INDEX} with its shards) and tokenizer.json"
            )
        self.config = read_json(path / "config.json")
        self.name = str(self.config.get("_name_or_path") or path.resolve().name)
        self._tokenizer_config = self.json("tokenizer_config.json")

    def json(self, name: str) -> dict[str, Any]:
        """The object in the file `name`; empty when there is no such file."""
        path = self.path / name
        return read_json(path) if path.is_file() else {}

    @cached_property
    def template(self) -> str | None:
        """The chat template, from its own file or from the tokenizer's config."""
        path = self.path / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        template = self._tokenizer_config.get("chat_template")
        if isinstance(template, list):  # several named templates: `default` is the one for chats
            named = {entry.get("name"): entry.get("template") for entry in template}
            template = named.get("default")
        return template

    @cached_property
    def template_vars(self) -> Mapping[str, str]:
        """The special tokens by the names that templates know them by."""
        found = {}
        for source in (self.json("special_tokens_map.json"), self._tokenizer_config):
            for key in SPECIAL_TOKENS:
                token = source.get(key)
                if isinstance(token, dict):
                    token = token.get("content")
                if isinstance(token, str):
                    found[key] = token
        return found

    @cached_property
    def recommended_sampling(self) -> dict[str, float]:
        """How the checkpoint's makers would draw tokens, by `generation_config.json`; empty where it says greedy."""
        told = self.json("generation_config.json")
        found = {name: told[name] for name in SAMPLING if isinstance(told.get(name), int | float)}
        return {} if told.get("do_sample") is False or found.get("temperature") == 0 else found

    def tokenizer(self, vocab_size: int, eos: int | list[int] | None) -> TextTokenizer:
        """`eos` (what the model's config says) ends a generation where the generation config says nothing."""
        from tandem.plugins.models._hf.tokenizer import from_file

        path = self.path / "tokenizer.json"
        if not path.is_file():
            raise ModelError(
                f"{self.path}: there is no tokenizer.json; a tokenizer in another format must be converted to it "
                "(transformers writes it with `save_pretrained`)"
            )
        eos = self.json("generation_config.json").get("eos_token_id", eos)
        eos_ids = [eos] if isinstance(eos, int) else eos or []
        return from_file(path, vocab_size, eos_ids, self.template_vars.get("eos_token"))

    @cached_property
    def weights(self) -> Weights:
        """The safetensors files, their headers read. Raises ModelError for what is absent or broken."""
        return Weights(self.path)


class Weights:
    """All tensors of a directory's safetensors files, read one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._where: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Name -> shape as stored."""
        self.formats: dict[str, str] = {}
        """Name -> how its numbers are stored, in the words of safetensors: `F32`, `BF16`, `F8_E4M3`, `U8`, `I64`."""
        for file in self._open_files():
            for name in file.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                header = file.get_slice(name)
                self._where[name] = file
                self.shapes[name], self.formats[name] = tuple(header.get_shape()), header.get_dtype()

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in its own number type. KeyError when there is none of this name."""
        value: torch.Tensor = self._where[name].get_tensor(name)
        return value

    def part(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows `start` to `stop` of the first dimension, without reading the others."""
        value: torch.Tensor = self._where[name].get_slice(name)[start:stop]
        return value

    def _open_files(self) -> list[Any]:
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
        return [_open_safetensors(self.path / name) for name in names]


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
