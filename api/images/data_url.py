"""An image inside its own URL: `data:image/png;base64,...` (RFC 2397)."""

from __future__ import annotations

import base64
import binascii
import re

from tandem.api.images.errors import BadImage
from tandem.api.images.limits import MIB

_HEAD = re.compile(r"data:image/[^;,]*(?:;[^;,]*)*?;base64\Z", re.IGNORECASE)
_BLANKS = str.maketrans("", "", " \t\r\n")


def read_data_url(url: str, max_bytes: int) -> bytes:
    """The bytes. The media type says nothing here that the bytes don't say better, so any image type is taken.

    Raises BadImage for another kind of data URL, for broken base64 (blanks between lines are none) and for too much.
    """
    head, comma, body = url.partition(",")
    if not comma or not _HEAD.match(head):
        raise BadImage("must be data:image/...;base64, and the image's bytes in base64")
    if len(body) * 3 // 4 > max_bytes:
        body = body.translate(_BLANKS)
        if len(body) // 4 * 3 - body[-2:].count("=") > max_bytes:
            raise too_large(max_bytes)
    try:
        return base64.b64decode(body.translate(_BLANKS).encode("ascii"), validate=True)
    except UnicodeEncodeError:
        raise BadImage("holds broken base64: a character that base64 does not have") from None
    except binascii.Error as error:
        raise BadImage(f"holds broken base64: {str(error)[:1].lower()}{str(error)[1:]}") from None


def too_large(max_bytes: int) -> BadImage:
    return BadImage(f"is more than {max_bytes / MIB:g} MB")
