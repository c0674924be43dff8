"""Images at the door: what clients send as `image_url` parts, fetched behind a fence, checked, and decoded in time."""

from tandem.api.images.door import LEFT_OUT_HEADER, ImageDoor, ImagesOutcome
from tandem.api.images.errors import BadImage, ImageError
from tandem.api.images.fetch import Fetcher, HttpsFetcher
from tandem.api.images.limits import Limits
from tandem.api.images.parts import IMAGE_PART, LEFT_OUT_PART, find_images

__all__ = [
    "IMAGE_PART",
    "LEFT_OUT_HEADER",
    "LEFT_OUT_PART",
    "BadImage",
    "Fetcher",
    "HttpsFetcher",
    "ImageDoor",
    "ImageError",
    "ImagesOutcome",
    "Limits",
    "find_images",
]
