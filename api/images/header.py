"""What an image's first bytes say: its format and its size. Nothing is decoded here."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from tandem.api.images.errors import BadImage

MAX_SEGMENTS = 2000
"""Segments before a JPEG's pixels. The largest image has 320 full ones; a file of empty ones would cost seconds."""

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Header:
    """What the file declares."""

    format: str
    """`PNG`, `JPEG`, `WEBP`, `GIF` or `BMP`, as Pillow names them."""
    width: int
    height: int


def read_header(data: bytes, max_pixels: int) -> Header:
    """Raises BadImage for another format, a header that is cut short, no pixels at all, or more than `max_pixels`."""
    name, read = next(
        ((name, read) for name, magic, read in _FORMATS if magic.match(data)),
        (None, None),
    )
    if name is None or read is None:
        read_formats = ", ".join(name for name, _, _ in _FORMATS)
        raise BadImage(f"is in none of the formats that are read: {read_formats}" if data else "is empty")
    try:
        width, height = read(data)
    except (struct.error, IndexError):
        raise BadImage(f"is a {name} whose header is broken or cut short") from None
    if not width or not height:
        raise BadImage(f"is a {name} without pixels: its header declares {width} by {height}")
    if width * height > max_pixels:
        raise BadImage(
            f"is a {name} whose header declares {width} by {height} pixels; the most are {max_pixels} in all"
        )
    return Header(name, width, height)


def _png(data: bytes) -> Size:
    """The first chunk is IHDR: width and height, big-endian."""
    length, kind, width, height = struct.unpack_from(">I4sII", data, 8)
    return (width, height) if (length, kind) == (13, b"IHDR") else _broken()


def _jpeg(data: bytes) -> Size:
    """Segments, `FF marker length`, up to the scan (DA); a frame header (C0 to CF but C4, C8 and CC) has the size."""
    at, size = 2, None
    for _ in range(MAX_SEGMENTS):
        found = _MARKER.match(data, at)
        if found is None:
            break
        marker, at = data[found.end() - 1], found.end()
        if marker == 0xDA and size is not None:
            return size
        if marker in (0xD9, 0xDA):
            break
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:
            continue  # these have no length
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 3)
            size = width, height
        at += max(2, struct.unpack_from(">H", data, at)[0])
    return _broken()


def _gif(data: bytes) -> Size:
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _bmp(data: bytes) -> Size:
    """The old header (12 bytes) has 16-bit sizes; in the later ones a negative height means rows from the top."""
    (length,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if length == 12 else "<ii", data, 18)
    return (width, abs(height)) if width >= 0 else _broken()


def _webp(data: bytes) -> Size:
    """The first chunk is a lossy frame, a lossless frame or an extended header, each with the size its own way."""
    kind = data[12:16]
    if kind == b"VP8X":
        wide, high = int.from_bytes(_exactly(data, 24, 3), "little"), int.from_bytes(_exactly(data, 27, 3), "little")
        return wide + 1, high + 1
    if kind == b"VP8L":
        signature, bits = struct.unpack_from("<BI", data, 20)
        return ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1) if signature == 0x2F else _broken()
    start, width, height = struct.unpack_from("<3sHH", data, 23)
    return (width & 0x3FFF, height & 0x3FFF) if start == b"\x9d\x01\x2a" else _broken()


def _exactly(data: bytes, at: int, count: int) -> bytes:
    piece = data[at : at + count]
    return piece if len(piece) == count else _broken()


def _broken() -> NoReturn:
    raise IndexError


_MARKER = re.compile(rb"\xff+[^\xff]", re.DOTALL)

_FORMATS: tuple[tuple[str, re.Pattern[bytes], Callable[[bytes], Size]], ...] = (
    ("PNG", re.compile(rb"\x89PNG\r\n\x1a\n"), _png),
    ("JPEG", re.compile(rb"\xff\xd8\xff"), _jpeg),
    ("WEBP", re.compile(rb"RIFF.{4}WEBPVP8[ LX]", re.DOTALL), _webp),
    ("GIF", re.compile(rb"GIF8[79]a"), _gif),
    ("BMP", re.compile(rb"BM"), _bmp),
)
