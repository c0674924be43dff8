"""What is wrong with an image."""

from __future__ import annotations

from tandem.api.readers import FieldError


class ImageError(FieldError):
    """A content part that can't be served. `param` is the part's path inside the body; the message is fit for a 400."""


class BadImage(Exception):
    """An image that can't be read, said by a step that does not know the part. The text goes on after its path."""

    def at(self, param: str) -> ImageError:
        """The same, of the part at `param`."""
        return ImageError(param, f"{param} {self}")
