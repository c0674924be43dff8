"""From an encoded image to RGB pixels."""

from __future__ import annotations

from io import BytesIO

# Pillow knows a format once its module is imported; without these five it would import them all at the first image.
from PIL import (  # noqa: F401
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    WebPImagePlugin,
)

from tandem.api.images.errors import BadImage
from tandem.api.images.header import Header


def decode(data: bytes, header: Header) -> Image.Image:
    """The image in RGB: the first frame of an animation, transparency laid over white.

    This is what the checkpoint's image processor makes of an image that Pillow has opened. So the pixels stay as they
    are stored: an orientation note in the file's EXIF data turns nothing, and colour profiles are not applied.

    `header` was read from the same bytes, within the limits. Only its format's decoder gets to see them, and a file
    that turns out to hold another size than it declared is refused before its pixels are decoded. Raises BadImage.
    """
    try:
        with Image.open(BytesIO(data), formats=[header.format]) as image:
            if image.size == (header.width, header.height):
                return _rgb(image)
    except MemoryError:
        raise
    except Exception:  # a broken file comes out of the decoders as errors of every kind, Pillow's own warnings included
        raise BadImage(f"is a {header.format} that can't be decoded: it is broken or cut short") from None
    raise BadImage(f"is a {header.format} of another size than the {header.width} by {header.height} that it declares")


def _rgb(image: Image.Image) -> Image.Image:
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    colours = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), colours).convert("RGB")
