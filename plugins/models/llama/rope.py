"""Rotary positions: which angles a model turns its queries and keys by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import ModelError

if TYPE_CHECKING:
    import torch

KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class Rope:
    """The angle of pair i of a head at position p is `p * frequencies()[i]`, in radians."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int = 8192

    @classmethod
    def from_hf(cls, data: Mapping[str, Any], where: Path) -> Rope:
        """From `rope_parameters`, or from `rope_theta` and `rope_scaling` of older configs."""
        given: dict[str, Any] = {}
        for key in ("rope_scaling", "rope_parameters"):
            given.update(data.get(key) or {})
        kind = given.get("rope_type", given.get("type", "default"))
        if kind not in KINDS:
            raise ModelError(f"{where}: the rope type is {kind!r}; supported are {', '.join(KINDS)}")
        if given.get("partial_rotary_factor", data.get("partial_rotary_factor", 1.0)) != 1.0:
            raise ModelError(f"{where}: a partial_rotary_factor other than 1 is not supported")
        needed = {
            "default": (),
            "linear": ("factor",),
            "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        }[kind]
        if missing := [key for key in needed if not isinstance(given.get(key), int | float)]:
            raise ModelError(f"{where}: rope type {kind!r} needs numbers for {', '.join(missing)}")
        return cls(
            theta=float(given.get("rope_theta", data.get("rope_theta", 10000.0))),
            kind=kind,
            factor=float(given.get("factor", 1.0)) if kind != "default" else 1.0,
            low_freq_factor=float(given.get("low_freq_factor", 1.0)),
            high_freq_factor=float(given.get("high_freq_factor", 4.0)),
            original_max_len=int(given.get("original_max_position_embeddings", 8192)),
        )

    @classmethod
    def from_gguf(cls, fields: Mapping[str, Any], architecture: str, where: Path) -> Rope:
        """From GGUF metadata. Llama 3's scaling is no metadata there: its divisors come as the tensor `rope_freqs`."""
        prefix = f"{architecture}.rope."
        kind = fields.get(prefix + "scaling.type", "none")
        if kind not in ("none", "linear"):
            raise ModelError(f"{where}: the rope type is {kind!r}; supported in a GGUF are none and linear")
        theta = float(fields.get(prefix + "freq_base", 10000.0))
        if kind == "none":
            return cls(theta=theta)
        return cls(theta=theta, kind="linear", factor=float(fields.get(prefix + "scaling.factor", 1.0)))

    def frequencies(self, head_dim: int, divisors: torch.Tensor | None = None) -> torch.Tensor:
        """Radians per position of each pair, `[head_dim / 2]` float32; `divisors` are a GGUF's own scaling."""
        import torch

        base = 1.0 / self.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        if divisors is not None:
            return base / divisors.float()
        if self.kind == "linear":
            return base / self.factor
        if self.kind == "llama3":
            return self._llama3(base)
        return base

    def _llama3(self, base: torch.Tensor) -> torch.Tensor:
        """Llama 3.1's scaling: long waves are stretched by `factor`, short ones kept, the band between blended."""
        import torch

        turns = self.original_max_len * base / (2 * math.pi)  # full turns within the original context
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = keep.clamp(0.0, 1.0)
        return torch.lerp(base / self.factor, base, keep)


class RotaryTable:
    """The turns `exp(i * angle)` of every position so far asked for, `[positions, head_dim / 2]` complex64."""

    def __init__(self, frequencies: torch.Tensor, max_len: int) -> None:
        self._frequencies = frequencies
        self._max_len = max_len
        self._table = self._turns(min(max_len, 1024))

    def upto(self, length: int) -> torch.Tensor:
        """A table of at least `length` positions."""
        if length > self._table.shape[0]:
            self._table = self._turns(min(self._max_len, max(length, 2 * self._table.shape[0])))
        return self._table

    def _turns(self, length: int) -> torch.Tensor:
        import torch

        angles = torch.outer(torch.arange(length, dtype=torch.float32), self._frequencies)
        return torch.polar(torch.ones_like(angles), angles)
