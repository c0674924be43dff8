"""Formats, headers and pixels, against Pillow and the checkpoint's image processor."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from image_site import encoded
from PIL import Image, ImageSequence

from tandem.api.images import BadImage
from tandem.api.images.decode import decode
from tandem.api.images.header import MAX_SEGMENTS, Header, read_header

LIMIT = 64_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


def picture(mode: str, size: tuple[int, int] = (23, 17), seed: int = 0) -> Image.Image:
    """Noise in any mode; the alpha of such as have one is noise too."""
    random = np.random.default_rng(seed)
    if mode == "I;16":
        return Image.fromarray(random.integers(0, 65536, size[::-1], np.uint16))
    if mode == "P":
        return picture("RGB", size, seed).quantize(40)
    if mode == "1":
        return picture("L", size, seed).convert("1")
    bands = [Image.fromarray(random.integers(0, 256, size[::-1], np.uint8)) for _ in Image.new(mode, (1, 1)).getbands()]
    return Image.merge(mode, bands) if len(bands) > 1 else bands[0]


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    out = BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def read(data: bytes, limit: int = LIMIT) -> Image.Image:
    return decode(data, read_header(data, limit))


SAMPLES: dict[str, bytes] = {
    "png rgb": saved(picture("RGB"), "PNG"),
    "png alpha": saved(picture("RGBA"), "PNG"),
    "png grey": saved(picture("L"), "PNG"),
    "png grey alpha": saved(picture("LA"), "PNG"),
    "png grey 16": saved(picture("I;16"), "PNG"),
    "png bits": saved(picture("1"), "PNG"),
    "png palette": saved(picture("P"), "PNG"),
    "png palette, one colour clear": saved(picture("P"), "PNG", transparency=3),
    "png palette, an alpha for each colour": saved(picture("P"), "PNG", transparency=bytes(range(0, 240, 6))),
    "png rgb, one colour clear": saved(Image.new("RGB", (9, 5), "red"), "PNG", transparency=(255, 0, 0)),
    "jpeg": saved(picture("RGB"), "JPEG"),
    "jpeg grey": saved(picture("L"), "JPEG"),
    "jpeg cmyk": saved(picture("CMYK"), "JPEG"),
    "jpeg progressive": saved(picture("RGB", (300, 200)), "JPEG", progressive=True, quality=40),
    "jpeg with a profile": saved(picture("RGB"), "JPEG", icc_profile=bytes(200_000)),
    "webp": saved(picture("RGB"), "WEBP"),
    "webp lossless": saved(picture("RGBA"), "WEBP", lossless=True),
    "webp alpha": saved(picture("RGBA"), "WEBP"),
    "gif": saved(picture("P"), "GIF"),
    "gif, one colour clear": saved(picture("P"), "GIF", transparency=5),
    "gif grey": saved(picture("L"), "GIF"),
    "bmp": saved(picture("RGB"), "BMP"),
    "bmp palette": saved(picture("P"), "BMP"),
    "bmp bits": saved(picture("1"), "BMP"),
    "bmp alpha": saved(picture("RGBA"), "BMP"),
}


@pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES)
def test_a_header_says_what_pillow_finds(data: bytes) -> None:
    with Image.open(BytesIO(data)) as image:
        assert read_header(data, LIMIT) == Header(str(image.format), *image.size)


@pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES)
def test_pixels_are_what_the_checkpoints_processor_makes_of_the_opened_file(data: bytes) -> None:
    from transformers.image_transforms import convert_to_rgb

    with Image.open(BytesIO(data)) as image:
        wanted = convert_to_rgb(image, return_numpy=True)
    found = read(data)
    assert found.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(found), wanted)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation_is_read(form: str) -> None:
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "lime", "blue")]
    data = saved(frames[0], form, save_all=True, append_images=frames[1:], duration=50)
    with Image.open(BytesIO(data)) as image:
        assert len(list(ImageSequence.Iterator(image))) == 3
    red, green, blue = read(data).getpixel((5, 5))  # type: ignore[misc]
    assert red > 240 > 15 > green + blue


def test_an_orientation_note_turns_nothing() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    assert read(saved(picture("RGB", (30, 10)), "JPEG", exif=exif)).size == (30, 10)


def test_a_bmp_with_rows_from_the_top_is_read() -> None:
    data = bytearray(saved(picture("RGB", (6, 4)), "BMP"))
    data[22:26] = struct.pack("<i", -4)
    upside_down = read(bytes(data)).transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    np.testing.assert_array_equal(np.asarray(upside_down), np.asarray(picture("RGB", (6, 4))))


def test_a_bmp_with_the_old_header_is_read() -> None:
    pixels = bytes([10, 20, 30, 0])  # one pixel, blue first, and its row's padding
    data = b"BM" + struct.pack("<IIIIHHHH", 26 + len(pixels), 0, 26, 12, 1, 1, 1, 24) + pixels
    assert read(data).getpixel((0, 0)) == (30, 20, 10)


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "data",
    [
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7",
        saved(picture("RGB"), "TIFF"),
        saved(picture("RGB"), "PPM"),
        saved(picture("RGB"), "ICO"),
        b"RIFF\x04\0\0\0WAVEfmt ",
        b"<html>not found</html>",
        b"\0",
    ],
)
def test_another_format_is_refused(data: bytes) -> None:
    with pytest.raises(BadImage, match="in none of the formats that are read: PNG, JPEG, WEBP, GIF, BMP"):
        read_header(data, LIMIT)


def test_nothing_is_refused_as_empty() -> None:
    with pytest.raises(BadImage, match="is empty"):
        read_header(b"", LIMIT)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int) -> bytes:
    """A file that declares a size and holds next to nothing."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


BOMBS = {
    "png": png(8001, 8000),
    "png, the largest": png(2**31 - 1, 2**31 - 1),
    "jpeg": b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc2\x00\x11\x08"
    + struct.pack(">HH", 8001, 8000)
    + bytes(10)
    + b"\xff\xda",
    "gif": b"GIF89a" + struct.pack("<HH", 65535, 65535) + bytes(3),
    "bmp": b"BM" + bytes(12) + struct.pack("<Iii", 40, 8001, -8000),
    "webp extended": b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0" + bytes(4) + b"\xff\xff\xff" * 2,
    "webp lossless": b"RIFF\0\0\0\0WEBPVP8L\x0a\0\0\0\x2f" + struct.pack("<I", (1 << 28) - 1),
    "webp lossy": b"RIFF\0\0\0\0WEBPVP8 \x0a\0\0\0\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 16383, 16383),
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_a_header_that_declares_too_many_pixels_is_refused_without_decoding(data: bytes) -> None:
    with pytest.raises(BadImage, match=r"whose header declares \d+ by \d+ pixels; the most are 64000000 in all"):
        read_header(data, LIMIT)


def test_the_pixel_limit_itself_is_taken_and_one_more_is_not() -> None:
    assert read_header(png(8000, 8000), LIMIT) == Header("PNG", 8000, 8000)
    with pytest.raises(BadImage, match="declares 8000 by 8000 pixels; the most are 63999999 in all"):
        read_header(png(8000, 8000), LIMIT - 1)


@pytest.mark.parametrize("form", FORMATS)
def test_no_decoder_but_the_declared_formats_sees_the_bytes(form: str) -> None:
    data = encoded(form)
    other = "PNG" if form != "PNG" else "BMP"
    assert decode(data, Header(form, 8, 6)).size == (8, 6)
    with pytest.raises(BadImage, match=f"is a {other} that can't be decoded"):
        decode(data, Header(other, 8, 6))


def test_a_file_that_holds_fewer_pixels_than_it_declares_is_broken() -> None:
    with pytest.raises(BadImage, match="is a PNG that can't be decoded: it is broken or cut short"):
        read(png(4000, 3000))


def test_a_gif_with_a_frame_larger_than_its_screen_is_refused() -> None:
    data = bytearray(saved(picture("P", (40, 30)), "GIF"))
    data[6:10] = struct.pack("<HH", 4, 3)
    with pytest.raises(BadImage, match="is a GIF of another size than the 4 by 3 that it declares"):
        read(bytes(data))


@pytest.mark.parametrize("form", FORMATS)
def test_an_image_without_pixels_is_refused(form: str) -> None:
    data = bytearray(encoded(form))
    place, size = {"PNG": (16, 8), "GIF": (6, 4), "BMP": (18, 8), "JPEG": (0, 0), "WEBP": (26, 4)}[form]
    place, size = place or data.index(b"\xff\xc0") + 5, size or 4
    data[place : place + size] = bytes(size)
    with pytest.raises(BadImage, match=f"is a {form} without pixels: its header declares 0 by 0"):
        read_header(bytes(data), LIMIT)


@pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES)
def test_a_file_cut_anywhere_is_refused_or_whole(data: bytes) -> None:
    whole = np.asarray(read(data))
    for end in {*range(60), *range(60, len(data), max(1, len(data) // 40))}:
        try:
            image = read(data[:end])
        except BadImage:
            continue
        np.testing.assert_array_equal(np.asarray(image), whole)  # nothing but the file's tail was missing


@settings(max_examples=300)
@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_a_damaged_file_gives_pixels_or_a_refusal_and_nothing_else(name: str, draw: st.DataObject) -> None:
    data = bytearray(SAMPLES[name])
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, min(len(data), 400) - 1))] = draw.draw(st.integers(0, 255))
    try:
        header = read_header(bytes(data), 1_000_000)
        image = decode(bytes(data), header)
    except BadImage:
        return
    assert image.size == (header.width, header.height)
    assert image.mode == "RGB"


@settings(max_examples=300)
@given(st.sampled_from([data[:12] for data in BOMBS.values()]), st.binary(max_size=60))
def test_a_header_of_noise_gives_a_size_or_a_refusal(start: bytes, noise: bytes) -> None:
    try:
        header = read_header(start + noise, LIMIT)
    except BadImage:
        return
    assert 0 < header.width * header.height <= LIMIT


def test_a_jpeg_of_endless_small_segments_is_given_up() -> None:
    start = b"\xff\xd8" + b"\xff\xfe\x00\x02" * (MAX_SEGMENTS + 5)
    with pytest.raises(BadImage, match="is a JPEG whose header is broken or cut short"):
        read_header(start + encoded("JPEG")[2:], LIMIT)
