"""The image parts of a conversation, as the client sent it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any

from tandem.api.images.errors import ImageError
from tandem.api.readers import shown
from tandem.core.plugin.vision import Picture

IMAGE_PART: Mapping[str, Any] = {"type": "image"}
"""What stands in a message for an image that the prompt shows; chat templates write their placeholder for it. It has
the `id` of its picture besides: two conversations with other pictures are not the same."""

LEFT_OUT_PART: Mapping[str, Any] = {
    "type": "text",
    "text": "[an older image stood here; only the newest images of this conversation are shown]",
}
"""What stands for one that was left out. Never changes, so a prompt's head stays the same from turn to turn."""

SYSTEM = ("system", "developer")
WITH_IMAGES = ("user", "assistant", "tool")

OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("video_url", "input_video", "video"), "a video"),
    **dict.fromkeys(("input_audio", "audio_url", "audio"), "audio"),
    **dict.fromkeys(("file", "input_file"), "a file"),
}
"""Content that no model here reads, by the part's type."""


@dataclass(frozen=True, slots=True)
class ImagePart:
    """One `image_url` part."""

    message: int
    part: int
    url: str

    @property
    def param(self) -> str:
        return f"messages[{self.message}].content[{self.part}].image_url"

    @property
    def url_param(self) -> str:
        return f"{self.param}.url"


def find_images(messages: Seq[Any], *, vision: bool = True) -> list[ImagePart]:
    """The images, in the conversation's order. Nothing is fetched or decoded.

    Raises ImageError for an image without a URL, an image in a system message, a part of a kind that is not read, and,
    without `vision`, any image. What else is wrong with a message is left for its reader to say; such parts are passed
    over. `detail` has no effect: an image is always read at its own resolution.
    """
    return list(_walk(messages, vision))


def _walk(messages: Seq[Any], vision: bool) -> Iterator[ImagePart]:
    reads = "text and images" if vision else "text only"
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if role in (*SYSTEM, *WITH_IMAGES) else None
        for number, part in enumerate(content if isinstance(content, list) else ()):
            place = f"messages[{index}].content[{number}]"
            kind = part.get("type") if isinstance(part, dict) else None
            if not isinstance(kind, str):
                continue
            if kind in OTHERS:
                raise ImageError(f"{place}.type", f"{place}.type is {kind}, {OTHERS[kind]}; the model reads {reads}")
            if kind in ("image", "input_image"):
                raise ImageError(f"{place}.type", f"{place}.type is {kind}; an image is an image_url part here")
            if kind != "image_url":
                continue
            if not vision:
                raise ImageError(place, f"{place} is an image; the model reads {reads}")
            if role in SYSTEM:
                raise ImageError(place, f"{place} is an image in a {role} message; move it to a user message")
            yield ImagePart(index, number, _url(part.get("image_url"), f"{place}.image_url"))


def _url(value: Any, param: str) -> str:
    if not isinstance(value, dict):
        raise ImageError(param, f"{param} must be an object with a url, not {shown(value)}")
    url = value.get("url")
    if not isinstance(url, str):
        raise ImageError(f"{param}.url", f"{param}.url must be a string, not {shown(url)}")
    return url


def replaced(messages: Seq[Any], images: Seq[ImagePart], pictures: Seq[Picture]) -> list[Any]:
    """The messages with `IMAGE_PART` for the last of the `images`, whose `pictures` these are, and `LEFT_OUT_PART` for
    those before. The originals stay as they are, and messages without an image are the same objects."""
    left_out = len(images) - len(pictures)
    out = list(messages)
    for number, image in enumerate(images):
        if out[image.message] is messages[image.message]:
            original = messages[image.message]
            out[image.message] = {**original, "content": list(original["content"])}
        part = {**IMAGE_PART, "id": pictures[number - left_out].id} if number >= left_out else dict(LEFT_OUT_PART)
        out[image.message]["content"][image.part] = part
    return out
