"""From a client's messages to messages with placeholders and pictures."""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from image_site import data_url, encoded
from PIL import Image

from tandem.api.images import IMAGE_PART, LEFT_OUT_PART, BadImage, ImageDoor, ImageError, Limits
from tandem.api.images.limits import MIB
from tandem.api.readers import FieldError
from tandem.core.engine.options import IMAGE_OPTIONS
from tandem.core.plugin.vision import ImageProcessor

PROCESSOR = ImageProcessor(min_pixels=65536, max_pixels=16777216)
TINY = ImageProcessor(min_pixels=1024, max_pixels=4 * 1024)
"""At most 4 rows an image."""


class Shelf:
    """A fetcher that has some images at hand, and remembers who asked."""

    def __init__(self, images: Mapping[str, bytes]) -> None:
        self.images = images
        self.asked: list[str] = []
        self.at_once = self.most_at_once = 0

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        if url not in self.images:
            raise BadImage("can't be downloaded: its server answers 404")
        return self.images[url]


class Door:
    """A door whose images lie on a shelf."""

    def __init__(self, processor: ImageProcessor | None, images: Mapping[str, bytes], **limits: Any) -> None:
        self.shelf = Shelf(images)
        self.door = ImageDoor(processor, Limits(**limits), self.shelf)

    def take(self, *messages: Any) -> Any:
        return asyncio.run(self.door.take(list(messages)))

    def refusal(self, *messages: Any) -> ImageError:
        with pytest.raises(ImageError) as caught:
            self.take(*messages)
        assert str(caught.value).startswith(f"{caught.value.param} ")
        return caught.value


@pytest.fixture
def door() -> Iterator[Any]:
    doors = []

    def open_door(images: Mapping[str, bytes] | None = None, processor: Any = PROCESSOR, **limits: Any) -> Door:
        doors.append(Door(processor, images or {}, **limits))
        return doors[-1]

    yield open_door
    for each in doors:
        each.door.close()


def image(url: str = data_url(encoded()), **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def text(words: str = "Look.") -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def shown(messages: Any) -> list[str]:
    """The images of a rendered conversation: `shown` or `left out`, in order."""
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    images = [part for part in parts if part == LEFT_OUT_PART or part["type"] == IMAGE_PART["type"]]
    return ["left out" if part == LEFT_OUT_PART else "shown" for part in images]


# ------------------------------------------------------------------------------------------------- what is taken


def test_each_image_becomes_a_placeholder_and_a_picture_in_order(door: Any) -> None:
    url = "https://img.test/c.webp"
    opened = door({url: encoded("WEBP", (640, 480), (0, 0, 255))})
    call = {"id": "1", "type": "function", "function": {"name": "shot", "arguments": "{}"}}
    sent = [
        {"role": "system", "content": "Be brief."},
        user(text("a"), image(data_url(encoded("PNG", (100, 60), (255, 0, 0)))), text("b")),
        {
            "role": "assistant",
            "content": [image(data_url(encoded("BMP", (64, 64), (0, 255, 0))))],
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "1", "content": [image(url, detail="low")]},
    ]
    before = copy.deepcopy(sent)
    outcome = opened.take(*sent)
    assert sent == before
    first, second, third = ({**IMAGE_PART, "id": picture.id} for picture in outcome.pictures)
    assert outcome.messages == [
        sent[0],
        user(text("a"), first, text("b")),
        {"role": "assistant", "content": [second], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [third]},
    ]
    assert outcome.left_out == 0
    assert [picture.size for picture in outcome.pictures] == [(100, 60), (64, 64), (640, 480)]
    assert [picture.rows for picture in outcome.pictures] == [77, 64, 300]
    assert [tuple(picture.pixels[0, 0]) for picture in outcome.pictures[:2]] == [(255, 0, 0), (0, 255, 0)]


def test_the_same_picture_has_one_id_in_every_lossless_format(door: Any) -> None:
    forms = [("PNG", "RGB"), ("BMP", "RGB"), ("GIF", "P"), ("PNG", "RGBA")]
    urls = [data_url(encoded(form, colour=(0, 0, 0) if mode != "P" else 0, mode=mode)) for form, mode in forms[:2]]
    outcome = door().take(user(*map(image, urls), image(data_url(encoded("PNG", (8, 7), (0, 0, 0))))))
    first, second, other = (picture.id for picture in outcome.pictures)
    assert first == second != other


def test_messages_without_images_pass_untouched(door: Any) -> None:
    sent = [user(text()), {"role": "assistant", "content": None}]
    outcome = door().take(*sent)
    assert outcome.messages == sent
    assert outcome.pictures == ()


@pytest.mark.parametrize(
    "messages",
    [
        *(None, 3, "x", {}, [], [None], ["x"], [{}]),
        [{"role": "user"}],
        [{"role": [], "content": {}}],
        [{"role": "function", "content": [image()]}],
        [user(None, 3, {}, [])],
        [user({"type": "text"}, {"type": ["image_url"]}, {"type": "unknown"})],
    ],
)
def test_what_is_wrong_with_a_message_otherwise_is_left_to_its_reader(door: Any, messages: Any) -> None:
    assert asyncio.run(door().door.take(messages)).messages == messages


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("processor", [PROCESSOR, None])
@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("video_url", "a video"),
        ("input_video", "a video"),
        ("input_audio", "audio"),
        ("audio_url", "audio"),
        ("file", "a file"),
        ("input_file", "a file"),
    ],
)
def test_other_media_are_refused_by_name(door: Any, kind: str, word: str, processor: Any) -> None:
    error = door(processor=processor).refusal(user("x"), user(text(), {"type": kind, kind: {"url": "https://x"}}))
    assert error.param == "messages[1].content[1].type"
    reads = "text and images" if processor else "text only"
    assert str(error) == f"messages[1].content[1].type is {kind}, {word}; the model reads {reads}"


@pytest.mark.parametrize("kind", ["image", "input_image"])
def test_a_client_can_t_write_a_placeholder_itself(door: Any, kind: str) -> None:
    error = door().refusal(user({"type": kind}))
    assert str(error) == f"messages[0].content[0].type is {kind}; an image is an image_url part here"


@pytest.mark.parametrize("role", ["system", "developer"])
def test_an_image_in_a_system_message_is_refused(door: Any, role: str) -> None:
    error = door().refusal({"role": role, "content": [text(), image()]}, user(text()))
    assert error.param == "messages[0].content[1]"
    assert f"is an image in a {role} message; move it to a user message" in str(error)


def test_a_model_without_vision_refuses_an_image_by_name(door: Any) -> None:
    opened = door({"https://img.test/a.png": encoded()}, None)
    error = opened.refusal(user(text(), image("https://img.test/a.png")))
    assert str(error) == "messages[0].content[1] is an image; the model reads text only"
    assert opened.shelf.asked == []


@pytest.mark.parametrize(
    ("value", "param", "message"),
    [
        (None, "", "must be an object with a url, not null"),
        ("https://x", "", 'must be an object with a url, not "https://x"'),
        ({}, ".url", "must be a string, not null"),
        ({"url": 3}, ".url", "must be a string, not 3"),
    ],
)
def test_an_image_part_needs_its_url(door: Any, value: Any, param: str, message: str) -> None:
    error = door().refusal(user({"type": "image_url", "image_url": value}))
    assert error.param == f"messages[0].content[0].image_url{param}"
    assert message in str(error)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://img.test/a.png", 'has the scheme "http"; an image is an https:// or a data:image/...;base64, URL'),
        ("file:///etc/passwd", 'has the scheme "file"'),
        ("ftp://img.test/a.png", 'has the scheme "ftp"'),
        ("/etc/passwd", "has no scheme"),
        ("iVBORw0KGgo" + "A" * 100, "has no scheme"),
        ("", "has no scheme"),
        (" https://img.test/a.png", 'has the scheme " https"'),
        ("https://img.test/missing.png", "can't be downloaded: its server answers 404"),
        ("data:image/png;base64,!!!!", "holds broken base64"),
        ("data:image/png;base64,", "is empty"),
        ("data:text/plain;base64,YQ==", "must be data:image/...;base64,"),
        (data_url(b"%PDF-1.7 and so on"), "is in none of the formats that are read: PNG, JPEG, WEBP, GIF, BMP"),
        (data_url(encoded("TIFF"), "tiff"), "is in none of the formats that are read"),
        (data_url(encoded()[:50]), "is a PNG that can't be decoded: it is broken or cut short"),
        (data_url(encoded()[:20]), "is a PNG whose header is broken or cut short"),
        (data_url(encoded(size=(201, 1))), "is 201 by 1 pixels; one side may be at most 200 times the other"),
        (data_url(encoded(size=(1000, 1001))), "declares 1000 by 1001 pixels; the most are 1000000 in all"),
        (data_url(bytes(3 * MIB)), "is more than 2 MB"),
    ],
)
def test_a_bad_image_is_refused_at_its_place(door: Any, url: str, message: str) -> None:
    opened = door(max_bytes=2 * MIB, max_pixels=1_000_000)
    error = opened.refusal(
        {"role": "system", "content": "x"}, user(text()), user(image(), text(), image(url)), user("x")
    )
    assert isinstance(error, FieldError)
    assert error.param == "messages[2].content[2].image_url.url"
    assert message in str(error)
    assert len(str(error)) < 250


def test_the_first_of_several_bad_images_is_named_however_fast_the_others_fail(door: Any) -> None:
    error = door().refusal(user(image(), image("https://img.test/slow.png"), image("data:image/png;base64,!")))
    assert error.param == "messages[0].content[1].image_url.url"


def test_seventeen_images_in_the_newest_message_are_refused_at_the_first_over(door: Any) -> None:
    opened = door()
    error = opened.refusal(user(image()), user(text(), *[image("https://img.test/a.png")] * 17))
    assert error.param == "messages[1].content[17].image_url"
    assert "is one of 17 images in the newest message; the limit is 16" in str(error)
    assert opened.shelf.asked == []


def test_too_many_rows_in_the_newest_message_are_refused_at_the_first_over(door: Any) -> None:
    large = image(data_url(encoded(size=(640, 480))))
    opened = door(max_image_rows=700)
    assert opened.take(user(large, large)).left_out == 0
    error = opened.refusal(user(image()), user(large, text(), large, large, large))
    assert error.param == "messages[1].content[3].image_url"
    assert "brings the images of the newest message to 900 prompt rows; the limit is 700" in str(error)


def test_a_huge_header_is_refused_before_it_is_decoded(door: Any) -> None:
    data = bytearray(encoded())
    data[16:24] = (64_001).to_bytes(4, "big") + (1000).to_bytes(4, "big")
    error = door().refusal(user(image(data_url(bytes(data)))))
    assert "is a PNG whose header declares 64001 by 1000 pixels; the most are 64000000 in all" in str(error)


# ------------------------------------------------------------------------------------------------------ left out


def test_the_oldest_images_of_a_long_conversation_are_left_out_unfetched(door: Any) -> None:
    urls = [f"https://img.test/{number}.png" for number in range(17)]
    opened = door(dict.fromkeys(urls[8:], encoded()))
    outcome = opened.take(*(user(text(), image(url)) for url in urls))
    assert outcome.left_out == 8
    assert shown(outcome.messages) == ["left out"] * 8 + ["shown"] * 9
    assert len(outcome.pictures) == 9
    assert sorted(opened.shelf.asked) == sorted(urls[8:])
    assert outcome.messages[0] == user(text(), LEFT_OUT_PART)


def test_the_head_stays_the_same_for_as_long_as_a_step_lasts(door: Any) -> None:
    opened = door(processor=TINY)
    talk = [user(text(str(number)), image()) for number in range(40)]
    heads = [opened.take(*talk[:turn]) for turn in range(1, 41)]
    changes = [
        turn + 1 for turn, (before, after) in enumerate(pairwise(heads), 1) if after.messages[:turn] != before.messages
    ]
    assert changes == [17, 25, 33]


def test_rows_over_the_cap_leave_out_the_first_over_and_all_older(door: Any) -> None:
    sizes = {"https://img.test/a": (64, 64), "https://img.test/b": (32, 32), "https://img.test/c": (64, 64)}
    opened = door({url: encoded(size=size) for url, size in sizes.items()}, TINY, max_images=6, max_image_rows=13)
    a, b, c = sizes
    outcome = opened.take(*(user(image(url)) for url in (a, a, a, a, b, c)), user(text()))
    # c takes 4 rows, b takes 1 and two more of a 8, so the second a is the first over; a step is three images
    assert outcome.left_out == 3
    assert shown(outcome.messages) == ["left out"] * 3 + ["shown"] * 3
    assert [picture.rows for picture in outcome.pictures] == [4, 1, 4]
    assert opened.shelf.asked == [c, b, a, a, a]


def test_an_image_whose_rows_are_over_is_not_decoded(door: Any) -> None:
    cut = encoded(size=(64, 64))[:60]  # a header and too little behind it
    opened = door({"https://img.test/cut": cut}, TINY, max_images=2, max_image_rows=4)
    outcome = opened.take(user(image("https://img.test/cut")), user(image(data_url(encoded(size=(64, 64))))))
    assert outcome.left_out == 1


def test_few_downloads_of_a_request_run_at_a_time(door: Any) -> None:
    urls = [f"https://img.test/{number}.png" for number in range(16)]
    opened = door(dict.fromkeys(urls, encoded()))
    assert len(opened.take(user(*map(image, urls))).pictures) == 16
    assert opened.shelf.most_at_once == 4


TALKS = st.lists(st.lists(st.sampled_from([32, 64, 96]), max_size=4), min_size=1, max_size=8)
SQUARES = {side: image(data_url(encoded(size=(side, side)))) for side in (32, 64, 96)}


@settings(max_examples=60)
@given(TALKS, st.integers(4, 7), st.integers(16, 24))
def test_every_placeholder_has_its_picture_and_the_totals_obey_the_caps(
    talk: list[list[int]], cap: int, row_cap: int
) -> None:
    opened = Door(TINY, {}, max_images=cap, max_image_rows=row_cap)
    outcome = opened.take(*(user(*(SQUARES[side] for side in message)) for message in talk))
    opened.door.close()
    sides = [side for message in talk for side in message]
    assert [picture.size[0] for picture in outcome.pictures] == sides[outcome.left_out :]
    assert shown(outcome.messages) == ["left out"] * outcome.left_out + ["shown"] * len(outcome.pictures)
    assert len(outcome.pictures) <= cap
    assert sum(picture.rows for picture in outcome.pictures) <= row_cap
    assert len(outcome.pictures) >= len(talk[-1])


# ------------------------------------------------------------------------------------------------------- options


def test_the_limits_are_the_options_and_the_defaults_agree() -> None:
    assert Limits.of({name: each["default"] for name, each in IMAGE_OPTIONS.items()}) == Limits()


def test_pillow_itself_is_silent_up_to_the_largest_pixel_limit() -> None:
    assert Image.MAX_IMAGE_PIXELS is not None
    assert Limits().max_pixels < IMAGE_OPTIONS["image_max_decode_pixels"]["maximum"] <= Image.MAX_IMAGE_PIXELS


def test_a_door_without_a_fetcher_downloads_behind_the_fence(door: Any) -> None:
    opened = ImageDoor(PROCESSOR, Limits(https=False))
    with pytest.raises(ImageError, match="downloads are switched off here"):
        asyncio.run(opened.take([user(image("https://img.test/a.png"))]))
    opened.close()


def test_a_data_url_is_read_whatever_the_case_of_its_scheme(door: Any) -> None:
    body = base64.b64encode(encoded()).decode()
    assert len(door().take(user(image(f"DATA:image/PNG;base64,{body}"))).pictures) == 1
    assert Image.open(BytesIO(base64.b64decode(body))).size == (8, 6)
