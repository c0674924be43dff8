"""The one way in for images: from a client's messages to messages with placeholders, and the pictures for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from tandem.api.images.data_url import read_data_url
from tandem.api.images.decode import decode
from tandem.api.images.errors import BadImage, ImageError
from tandem.api.images.fetch import Fetcher, HttpsFetcher
from tandem.api.images.header import Header, read_header
from tandem.api.images.keeping import Keeping
from tandem.api.images.limits import Limits
from tandem.api.images.parts import ImagePart, find_images, replaced
from tandem.api.readers import shown
from tandem.core.plugin.vision import ImageProcessor, Picture

LEFT_OUT_HEADER = "X-Tandem-Images-Left-Out"
"""The response header that says how many images were left out, when any were."""
DOWNLOADS = 4
"""Downloads of one request at a time."""
DECODERS = 2
"""Images decoded at a time, by all requests: one of 64 million pixels takes up to a gigabyte meanwhile."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ImagesOutcome:
    """A conversation whose images are ready."""

    messages: Any
    """The client's messages with a placeholder part for each image, or the fixed text for one that was left out."""
    pictures: tuple[Picture, ...] = ()
    """One for each placeholder, in their order."""
    left_out: int = 0
    """How many images, the conversation's oldest, are not shown."""


@dataclass(slots=True)
class _Encoded:
    """An image that was read but not decoded."""

    part: ImagePart
    data: bytes
    header: Header
    rows: int


class ImageDoor:
    """Takes the images of chat requests. One for a server; all calls come from its event loop."""

    def __init__(
        self, processor: ImageProcessor | None, limits: Limits | None = None, fetcher: Fetcher | None = None
    ) -> None:
        """`processor` is the model's; None for a model that reads text only, which refuses every image."""
        self._processor = processor
        self._limits = limits or Limits()
        self._fetcher: Fetcher = fetcher or HttpsFetcher(self._limits)
        self._threads = ThreadPoolExecutor(DECODERS, thread_name_prefix="image")

    def close(self) -> None:
        """End the decoding threads, after what they are at."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def take(self, messages: Any) -> ImagesOutcome:
        """Fetch, check and decode the images of `messages`, which are as the client sent them, checked or not.

        Images over the caps are left out, oldest first (`Keeping`); those are not decoded, and not even fetched where
        that can be known before. Raises ImageError, naming the part, for what can't be served.
        """
        parts = find_images(messages, vision=self._processor is not None) if isinstance(messages, list) else []
        if not parts or self._processor is None:
            return ImagesOutcome(messages)
        newest = [part for part in parts if part.message == len(messages) - 1]
        if len(newest) > self._limits.max_images:
            raise self._over(
                newest[self._limits.max_images],
                f"is one of {len(newest)} images in the newest message; the limit is {self._limits.max_images}",
            )
        last = await self._read_all(newest, self._processor)
        kept, left_out = await self._earlier(parts, last, self._processor)
        pictures = await _in_order(self._decoded(encoded, self._processor) for encoded in kept)
        return ImagesOutcome(replaced(messages, parts, pictures), tuple(pictures), left_out)

    async def _earlier(
        self, parts: Seq[ImagePart], last: list[_Encoded], processor: ImageProcessor
    ) -> tuple[list[_Encoded], int]:
        """All images that stay, in order, and how many don't. `last` are the newest message's."""
        room = self._limits.max_image_rows
        for encoded in last:
            room -= encoded.rows
            if room < 0:
                raise self._over(
                    encoded.part,
                    f"brings the images of the newest message to {self._limits.max_image_rows - room} prompt rows; "
                    f"the limit is {self._limits.max_image_rows}",
                )
        keeping = Keeping(len(parts), len(last), max_images=self._limits.max_images, room=room)
        seen = last[::-1]
        while asked := keeping.ask(processor.max_rows):
            for encoded in await self._read_all([parts[index] for index in asked], processor):
                keeping.weigh(encoded.rows)
                seen.append(encoded)
        return seen[: len(parts) - keeping.left_out][::-1], keeping.left_out

    def _over(self, part: ImagePart, sentence: str) -> ImageError:
        return ImageError(part.param, f"{part.param} {sentence}")

    async def _read_all(self, parts: Iterable[ImagePart], processor: ImageProcessor) -> list[_Encoded]:
        free = asyncio.Semaphore(DOWNLOADS)

        async def read(part: ImagePart) -> _Encoded:
            async with free:
                return await self._read(part, processor)

        return await _in_order(read(part) for part in parts)

    async def _read(self, part: ImagePart, processor: ImageProcessor) -> _Encoded:
        """The bytes of one image and what its header says."""
        try:
            data = await self._bytes(part.url)
            header = read_header(data, self._limits.max_pixels)
            return _Encoded(part, data, header, _rows(header, processor))
        except BadImage as error:
            raise error.at(part.url_param) from None

    async def _bytes(self, url: str) -> bytes:
        scheme, colon, _ = url[:32].partition(":")
        if colon and scheme.lower() == "data":
            return await self._thread(lambda: read_data_url(url, self._limits.max_bytes))
        if colon and scheme.lower() == "https":
            return await self._fetcher.fetch(url)
        said = f"has the scheme {shown(scheme)}" if colon else "has no scheme"
        raise BadImage(f"{said}; an image is an https:// or a data:image/...;base64, URL")

    async def _decoded(self, encoded: _Encoded, processor: ImageProcessor) -> Picture:
        data, encoded.data = encoded.data, b""  # so that a request holds each image in one form only
        try:
            return await self._thread(lambda: processor.picture(decode(data, encoded.header)))
        except BadImage as error:
            raise error.at(encoded.part.url_param) from None

    async def _thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _rows(header: Header, processor: ImageProcessor) -> int:
    try:
        return processor.rows(header.width, header.height)
    except ValueError as error:
        raise BadImage(str(error)) from None


async def _in_order(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order. When several fail, the first in order is raised, after all have ended: which image an
    error names does not depend on the network's mood."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
