"""The vision tower: pictures to rows that stand in the prompt like embedded tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tandem.core.plugin import ModelError
from tandem.core.plugin.vision import ImageProcessor, Picture
from tandem.plugins._ops.rope import Rotary, rotate
from tandem.plugins.models._hybrid.config import VisionConfig
from tandem.plugins.models._hybrid.picture_rows import PictureRows
from tandem.plugins.models._hybrid.weights import Linear, Loader

EPS = 1e-6
"""Of every layer norm."""
THETA = 10_000.0
"""The base of the rotary angles; no checkpoint says another one."""
KEPT_BYTES = 256 * 2**20
SLICE = 8192
"""Rows that one step of an MLP takes: bounds what it holds in between, 67 MiB for Qwen3.8-27B in bfloat16."""


class VisionTower:
    """A vision transformer over the patches of one picture at a time, and a merger of 2 x 2 patches into a row.

    Each patch is embedded, gets a learned position, and goes through pre-norm blocks of full attention with a rotary
    position on two axes and an MLP. All rows of a picture are made at once, when they are first asked for, and kept.
    Not safe for several threads: the thread that computes owns it.
    """

    def __init__(
        self, loader: Loader, config: VisionConfig, processor: ImageProcessor, kept_bytes: int = KEPT_BYTES
    ) -> None:
        """`kept_bytes` is how much room the rows of pictures may take; the latest picture's are kept in any case.

        Raises ModelError when the checkpoint lacks a tensor or its processor cuts pictures another way.
        """
        _check(loader, config, processor)
        self.processor = processor
        self._config = config
        self._device, self._dtype = loader.device, loader.dtype
        size = config.hidden
        # The patches don't overlap, so the convolution is a product with each flattened patch.
        self._patch = loader.tensor("visual.patch_embed.proj.weight").view(size, config.patch_numbers)
        self._patch_bias = loader.tensor("visual.patch_embed.proj.bias")
        side = int(config.positions**0.5)
        self._positions = loader.tensor("visual.pos_embed.weight", torch.float32).view(side, side, size)
        self._rotary = Rotary(THETA, size // config.heads // 2, None, loader.device)
        self._blocks = [_block(loader, config, index) for index in range(config.depth)]
        merged = size * config.merge**2
        self._norm = _Norm.load(loader, "visual.merger.norm")
        self._merge = loader.linear("visual.merger.linear_fc1", (merged, merged), bias=True)
        self._out = loader.linear("visual.merger.linear_fc2", (config.out_hidden, merged), bias=True)
        self.kept = PictureRows(kept_bytes)
        """The rows of the last pictures. Emptied by whoever needs the memory."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        linears = [self._merge, self._out]
        own = [self._patch, self._patch_bias, self._positions, self._norm.weight, self._norm.bias]
        for block in self._blocks:
            linears += [block.qkv, block.project, block.widen, block.narrow]
            own += [block.before.weight, block.before.bias, block.between.weight, block.between.bias]
        return sum(linear.nbytes for linear in linears) + sum(tensor.nbytes for tensor in own)

    @torch.inference_mode()
    def rows(self, picture: Picture) -> torch.Tensor:
        """What stands in the prompt for a picture: `[picture.rows, out_hidden]` in the model's number type.

        Row i is merged patch i, from left to right and top to bottom. Don't change it: it is kept for the next asking.
        """
        if (kept := self.kept.get(picture.id)) is not None:
            return kept
        rows = self._compute(picture)
        self.kept.put(picture.id, rows)
        return rows

    def _compute(self, picture: Picture) -> torch.Tensor:
        _, height, width = picture.grid
        patches = torch.from_numpy(self.processor.pixel_values(picture)).to(self._device, self._dtype)
        x = F.linear(patches, self._patch, self._patch_bias)
        x = x + self._positions_of(height, width).to(x.dtype)
        cos, sin = self._turns(height, width)
        for block in self._blocks:
            x = x + self._attend(block, block.before(x), cos, sin)
            x = x + _mlp(block.widen, block.narrow, block.between(x), "tanh")
        # The patches of one row lie side by side already.
        return _mlp(self._merge, self._out, self._norm(x).view(picture.rows, -1), "none")

    def _attend(self, block: _Block, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Full attention of all patches `x` `[n, hidden]` among each other."""
        query, key, value = block.qkv(x).view(len(x), 3, self._config.heads, -1).unbind(1)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        query, key, value = (each.transpose(0, 1)[None] for each in (query, key, value))
        seen = F.scaled_dot_product_attention(query, key, value)
        return block.project(seen[0].transpose(0, 1).reshape(len(x), -1))

    def _positions_of(self, height: int, width: int) -> torch.Tensor:
        """The learned positions of a grid, `[height * width, hidden]` float32 in merge-block order.

        The table's square grid is stretched over the picture so that the corners meet, and read between its points in
        proportion to their nearness.
        """
        table = self._positions
        for axis, count in ((0, height), (1, width)):
            low, high, part = _between(table.shape[axis], count, table.device)
            part = part.view([-1 if axis == each else 1 for each in range(3)])
            table = table.index_select(axis, low) * (1 - part) + table.index_select(axis, high) * part
        return table.flatten(0, 1)[self._order(height, width)]

    def _turns(self, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine, each `[n, head_dim / 2]` in merge-block order: half of a head's pairs turn by the patch's
        row, half by its column."""
        order = self._order(height, width)
        tables = (self._rotary.tables(axis) for axis in (order // width, order % width))
        (row_cos, row_sin), (column_cos, column_sin) = tables
        return torch.cat([row_cos, column_cos], -1), torch.cat([row_sin, column_sin], -1)

    def _order(self, height: int, width: int) -> torch.Tensor:
        """For each patch in merge-block order its place from left to right and top to bottom, `[n]`."""
        merge = self._config.merge
        places = torch.arange(height * width, device=self._device)
        blocks = places.view(height // merge, merge, width // merge, merge)
        return blocks.transpose(1, 2).reshape(-1)


class _Norm:
    """A layer norm with weight and bias."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.weight, self.bias = weight, bias

    @classmethod
    def load(cls, loader: Loader, name: str) -> _Norm:
        return cls(loader.tensor(f"{name}.weight"), loader.tensor(f"{name}.bias"))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, EPS)


@dataclass(frozen=True, slots=True)
class _Block:
    """The weights of one block."""

    before: _Norm
    """Of the attention's input."""
    qkv: Linear
    project: Linear
    between: _Norm
    """Of the MLP's input."""
    widen: Linear
    narrow: Linear


def _block(loader: Loader, config: VisionConfig, index: int) -> _Block:
    name, size = f"visual.blocks.{index}", config.hidden
    return _Block(
        before=_Norm.load(loader, f"{name}.norm1"),
        qkv=loader.linear(f"{name}.attn.qkv", (3 * size, size), bias=True),
        project=loader.linear(f"{name}.attn.proj", (size, size), bias=True),
        between=_Norm.load(loader, f"{name}.norm2"),
        widen=loader.linear(f"{name}.mlp.linear_fc1", (config.mlp, size), bias=True),
        narrow=loader.linear(f"{name}.mlp.linear_fc2", (size, config.mlp), bias=True),
    )


def _mlp(widen: Linear, narrow: Linear, x: torch.Tensor, gelu: str) -> torch.Tensor:
    """`narrow(gelu(widen(x)))`, some rows at a time; `gelu` is torch's word for its approximation."""
    parts = [narrow(F.gelu(widen(part), approximate=gelu)) for part in x.split(SLICE)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _between(side: int, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where `count` points that span `side` grid points lie: the point below, the point above, and the part of the way
    between them, each `[count]`."""
    at = torch.linspace(0, side - 1, count, device=device)
    low = at.floor().long().clamp(max=side - 1)
    return low, (low + 1).clamp(max=side - 1), at - low


def _check(loader: Loader, config: VisionConfig, processor: ImageProcessor) -> None:
    """Raises ModelError when the processor's patches are not the tower's."""
    sizes = {
        "patch_size": (processor.patch_size, config.patch),
        "temporal_patch_size": (processor.temporal_patch_size, config.temporal),
        "merge_size": (processor.merge_size, config.merge),
        "channels": (len(processor.mean), config.channels),
    }
    for name, (cut, read) in sizes.items():
        if cut != read:
            raise ModelError(
                f"{loader.folder.path}: the image processor has {name} {cut} (preprocessor_config.json), the vision "
                f"tower {read} (vision_config); they must be equal"
            )
