"""What an image may cost the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one server."""

    max_images: int = 16
    max_image_rows: int = 65536
    max_bytes: int = 20 * MIB
    """Encoded, checked while they come in."""
    max_pixels: int = 64_000_000
    """Declared by the header, checked before anything is decoded."""
    https: bool = True
    https_private: bool = False
    fetch_timeout_s: float = 15.0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The limits that checked `IMAGE_OPTIONS` say."""
        return cls(
            max_images=options["max_images"],
            max_image_rows=options["max_image_rows"],
            max_bytes=int(options["image_max_mb"] * MIB),
            max_pixels=options["image_max_decode_pixels"],
            https=options["image_https"],
            https_private=options["image_https_private"],
            fetch_timeout_s=options["image_fetch_timeout_s"],
        )
