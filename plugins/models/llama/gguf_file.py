"""Checkpoints as GGUF files: metadata, tensors in any quantisation the `gguf` library reads, and the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import ModelError
from tandem.plugins.models.llama.config import from_gguf
from tandem.plugins.models.llama.source import Groups, Source

if TYPE_CHECKING:
    import numpy as np
    import torch

    from tandem.plugins.models._hf.tokenizer import TextTokenizer

MAGIC = b"GGUF"
GLOBAL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
DIVISORS = "rope_freqs.weight"
CODES_PER_GROUP = 32


class GgufFile(Source):
    """One GGUF file. Its weights stay on disk (memory-mapped) until they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        reader = _open(path)
        self._fields = {key: field.contents() for key, field in reader.fields.items()}
        self._tensors = {hf_name(tensor.name): tensor for tensor in reader.tensors}
        self._shapes = {
            name: tuple(int(size) for size in reversed(tensor.shape)) for name, tensor in self._tensors.items()
        }
        stored = {tensor.name: self._shapes[hf_name(tensor.name)] for tensor in reader.tensors}
        self.config = from_gguf(self._fields, stored, path)
        self.name = str(self._fields.get("general.name") or path.stem)
        self.template = self._fields.get("tokenizer.chat_template")
        self.template_vars = self._template_vars()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def format(self, name: str) -> str:
        return str(self._tensors[name].tensor_type.name)

    def tensor(self, name: str) -> torch.Tensor:
        import gguf
        import numpy as np
        import torch

        stored = self._tensors[name]
        if self.format(name) == "BF16":
            bits = np.ascontiguousarray(stored.data).view(np.uint16).reshape(self._shapes[name])
            return torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)
        try:
            values = gguf.dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path}: {name} is stored as {self.format(name)}, which the gguf library can't read"
            ) from error
        if not values.flags.writeable:  # the values of an F32 tensor are still the mapped file
            values = values.copy()
        return torch.from_numpy(values.astype(np.float32, copy=False)).reshape(self._shapes[name])

    def groups(self, name: str) -> Groups | None:
        """Q4_0 and Q4_1 blocks hold 32 numbers: float16 scale d, for Q4_1 a float16 minimum m, 16 bytes of codes."""
        import numpy as np
        import torch

        kind = self.format(name)
        if kind not in ("Q4_0", "Q4_1"):
            return None
        rows, columns = self._shapes[name]
        blocks = np.ascontiguousarray(self._tensors[name].data).reshape(rows, columns // CODES_PER_GROUP, -1)
        scale = _half_floats(blocks[..., 0:2])
        if kind == "Q4_0":  # weight = d * (code - 8)
            zero, packed = torch.zeros_like(scale), blocks[..., 2:]
        else:  # weight = d * code + m
            zero, packed = _half_floats(blocks[..., 2:4]) + 8 * scale, blocks[..., 4:]
        codes = np.concatenate([packed & 15, packed >> 4], axis=-1)  # low halves are columns 0-15, high ones 16-31
        return Groups(torch.from_numpy(codes.reshape(rows, columns)), scale, zero)

    def rope_divisors(self) -> torch.Tensor | None:
        return self.tensor(DIVISORS) if DIVISORS in self._tensors else None

    def ignores(self, name: str) -> bool:
        return name == DIVISORS and self._shapes[name] == (self.config.head_dim // 2,)

    def tokenizer(self) -> TextTokenizer:
        from tandem.plugins.models._hf.tokenizer import from_gguf_fields

        return from_gguf_fields(self._fields, self.config.vocab_size, self.path)

    def _template_vars(self) -> dict[str, str]:
        tokens = self._fields.get("tokenizer.ggml.tokens") or []
        keys = {
            "bos_token": "tokenizer.ggml.bos_token_id",
            "eos_token": "tokenizer.ggml.eos_token_id",
            "unk_token": "tokenizer.ggml.unknown_token_id",
            "pad_token": "tokenizer.ggml.padding_token_id",
        }
        return {
            name: tokens[self._fields[key]]
            for name, key in keys.items()
            if isinstance(self._fields.get(key), int) and 0 <= self._fields[key] < len(tokens)
        }


def _half_floats(pairs: np.ndarray) -> torch.Tensor:
    """`[..., 2]` bytes as float16 numbers -> `[...]` float32."""
    import numpy as np
    import torch

    return torch.from_numpy(np.ascontiguousarray(pairs).view(np.float16)[..., 0].astype(np.float32))


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; names without one stay as they are."""
    stem, _, kind = name.rpartition(".")
    if stem in GLOBAL_NAMES:
        return f"{GLOBAL_NAMES[stem]}.{kind}"
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if found and found[2] in LAYER_NAMES:
        return f"model.layers.{found[1]}.{LAYER_NAMES[found[2]]}.{kind}"
    return name


def _open(path: Path) -> Any:
    import gguf

    with path.open("rb") as file:
        start = file.read(len(MAGIC))
    if start != MAGIC:
        raise ModelError(
            f"{path}: this is no GGUF file (it starts with {start!r} instead of {MAGIC!r}); "
            "`checkpoint` must be a GGUF file or a Hugging Face directory"
        )
    try:
        return gguf.GGUFReader(path)
    except Exception as error:  # the reader trusts the file: a torn one fails wherever it happens to end
        raise ModelError(f"{path}: this GGUF file is torn or damaged ({error}); copy or download it again") from error
