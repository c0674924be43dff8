"""From a picture to the vision tower's input: the Qwen image processor, with numpy and Pillow only.

The steps are those of the checkpoint's own processor (`preprocessor_config.json`), to the last bit of its Pillow
backend: the size is brought to multiples of one merged patch inside an area range, the picture is resampled
bicubically, each channel is normalised, and the pixels are laid out as patches. A picture is kept as the resized bytes
(3 KiB a prompt row); the patches, eight times as large in float32, are made when the tower asks for them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

MAX_ASPECT = 200
"""The longer side may be this many times the shorter one."""

PROCESSORS = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")
"""The values of `image_processor_type` that mean this processor."""

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One decoded picture at the size that the tower reads."""

    id: str
    """SHA-256 over the picture's own size and RGB bytes, before it was resized: equal pictures have equal ids,
    whatever file format they came in. The key of every cache that depends on the picture."""
    size: tuple[int, int]
    """Its own width and height, in pixels."""
    pixels: npt.NDArray[np.uint8]
    """`[height, width, 3]` RGB, resized; read-only."""
    grid: Grid
    """`(t, h, w)` in patches; t is 1 for a picture."""
    rows: int
    """Prompt rows: one for each merged patch."""


@dataclass(frozen=True, slots=True)
class ImageProcessor:
    """The Qwen image processor. Holds no state of a picture; safe to use from several threads."""

    min_pixels: int
    """The least area after resizing."""
    max_pixels: int
    """The largest area after resizing."""
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    patch_size: int = 16
    temporal_patch_size: int = 2
    """Frames in one patch; a picture is the same frame that often."""
    merge_size: int = 2
    """Patches along each side of a merged patch."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The processor that a `preprocessor_config.json` describes. Raises ValueError, naming the key, when it
        describes another one."""
        kind = config.get("image_processor_type")
        if kind not in PROCESSORS:
            raise ValueError(f"image_processor_type is {kind!r}; this processor is one of {', '.join(PROCESSORS)}")
        for key, served in _FIXED.items():
            if config.get(key, served) != served:
                raise ValueError(f"{key} is {config[key]!r}; this processor needs {served!r}")
        try:
            size = config["size"]
            processor = cls(
                min_pixels=int(size["shortest_edge"]),
                max_pixels=int(size["longest_edge"]),
                mean=tuple(map(float, config["image_mean"])),
                std=tuple(map(float, config["image_std"])),
                patch_size=int(config["patch_size"]),
                temporal_patch_size=int(config["temporal_patch_size"]),
                merge_size=int(config["merge_size"]),
            )
        except KeyError as error:
            raise ValueError(f"the key {error.args[0]!r} is missing") from None
        if not len(processor.mean) == len(processor.std) == 3:
            raise ValueError("image_mean and image_std must hold three numbers each, one for each channel")
        if not processor.factor**2 <= processor.min_pixels <= processor.max_pixels:
            raise ValueError(f"size must hold {processor.factor**2} <= shortest_edge <= longest_edge, areas in pixels")
        return processor

    @property
    def factor(self) -> int:
        """Pixels along each side of a merged patch; both sides of a resized picture are multiples of it."""
        return self.patch_size * self.merge_size

    @property
    def max_rows(self) -> int:
        """The most prompt rows that one picture can take."""
        return self.max_pixels // self.factor**2

    def grid(self, width: int, height: int) -> Grid:
        """`(1, h, w)` in patches for a picture of this size. Raises ValueError for one that is too narrow."""
        resized = smart_resize(width, height, self.factor, self.min_pixels, self.max_pixels)
        return 1, resized[1] // self.patch_size, resized[0] // self.patch_size

    def rows(self, width: int, height: int) -> int:
        """Prompt rows of a picture of this size, known before it is decoded. Raises ValueError as `grid` does."""
        return math.prod(self.grid(width, height)) // self.merge_size**2

    def picture(self, image: Image.Image) -> Picture:
        """Resize an image of mode RGB. Raises ValueError as `grid` does."""
        own = np.asarray(image)
        digest = hashlib.sha256(b"%dx%d:" % image.size)
        digest.update(own.data)
        grid = self.grid(*image.size)
        size = grid[2] * self.patch_size, grid[1] * self.patch_size
        pixels = np.asarray(image.resize(size, Image.Resampling.BICUBIC))
        return Picture(digest.hexdigest(), image.size, pixels, grid, math.prod(grid) // self.merge_size**2)

    def pixel_values(self, picture: Picture) -> npt.NDArray[np.float32]:
        """The tower's input: `[t * h * w, 3 * temporal_patch_size * patch_size ** 2]`.

        Patches come in merge-block order: block row, block column, row in the block, column in the block, so that the
        patches of one prompt row lie side by side. A patch is `(channel, frame, y, x)`, flattened.
        """
        side, merge, frames = self.patch_size, self.merge_size, self.temporal_patch_size
        _, height, width = picture.grid
        blocks = picture.pixels.reshape(height // merge, merge, side, width // merge, merge, side, 3)
        patches = blocks.transpose(0, 3, 1, 4, 6, 2, 5)  # [block row, block column, row, column, channel, y, x]
        values = np.empty((*patches.shape[:5], frames, side, side), np.float32)
        for channel, table in enumerate(self._tables()):
            values[:, :, :, :, channel] = table[patches[:, :, :, :, channel]][:, :, :, :, None]
        return values.reshape(height * width, -1)

    def _tables(self) -> npt.NDArray[np.float32]:
        """`[3, 256]` what each byte becomes in each channel: `(x / 255 - mean) / std`, rounded to float32 after the
        division and after each further step, as the reference rounds it."""
        scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
        mean, std = (np.array(values, np.float32)[:, None] for values in (self.mean, self.std))
        return (scaled - mean) / std


_FIXED: Mapping[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "resample": Image.Resampling.BICUBIC.value,
    "rescale_factor": 1 / 255,
}


def smart_resize(width: int, height: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """The width and height that a picture is resized to: multiples of `factor`, the area in the range where the
    rounding lets it, the aspect kept as well as that allows.

    Ties round to the even multiple, as Python rounds. Raises ValueError when one side is more than `MAX_ASPECT` times
    the other.
    """
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ValueError(f"is {width} by {height} pixels; one side may be at most {MAX_ASPECT} times the other")
    across, down = (round(side / factor) * factor for side in (width, height))
    if across * down > max_pixels:
        shrink = math.sqrt(width * height / max_pixels)
        across, down = (max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height))
    elif across * down < min_pixels:
        grow = math.sqrt(min_pixels / (width * height))
        across, down = (math.ceil(side * grow / factor) * factor for side in (width, height))
    return across, down
