"""Images inside their own URLs."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, strategies as st
from image_site import data_url

from tandem.api.images import BadImage
from tandem.api.images.data_url import read_data_url


@given(st.binary(max_size=200), st.sampled_from(["png", "jpeg", "svg+xml", "x", "png;charset=utf-8", "webp;a=b;c=d"]))
def test_the_bytes_come_out_whatever_the_type_says(data: bytes, subtype: str) -> None:
    assert read_data_url(data_url(data, subtype), 1000) == data


def test_case_and_line_breaks_don_t_matter() -> None:
    body = base64.encodebytes(bytes(range(256))).decode()
    assert read_data_url("DATA:IMAGE/PNG;BASE64," + body.replace("\n", "\r\n "), 256) == bytes(range(256))


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64",
        "data:image/png,abcd",
        "data:image/svg+xml;utf8,<svg/>",
        "data:text/plain;base64,YQ==",
        "data:;base64,YQ==",
        "data:image/png;base64;a=b,YQ==",
        "data:,",
    ],
)
def test_another_kind_of_data_url_is_refused(url: str) -> None:
    with pytest.raises(BadImage, match=r"must be data:image/\.\.\.;base64, and the image's bytes in base64"):
        read_data_url(url, 1000)


@pytest.mark.parametrize("body", ["YQ", "YQ=", "Y", "YQ==YQ==", "Y=Q=", "Y!==", "YQ-_", "YQ%3D%3D", "Ÿ===", "===="])
def test_broken_base64_is_refused(body: str) -> None:
    with pytest.raises(BadImage, match="holds broken base64"):
        read_data_url(f"data:image/png;base64,{body}", 1000)


@pytest.mark.parametrize("size", [996, 997, 998, 999, 1000])
def test_the_limit_itself_is_taken_with_and_without_line_breaks(size: int) -> None:
    body = base64.encodebytes(bytes(size)).decode()
    for text in (body, body.replace("\n", "")):
        assert len(read_data_url(f"data:image/png;base64,{text}", 1000)) == size


@pytest.mark.parametrize("size", [1001, 1002, 1003, 5000])
def test_more_than_the_limit_is_refused(size: int) -> None:
    with pytest.raises(BadImage, match=r"is more than 0\.000953674 MB"):
        read_data_url(data_url(bytes(size)), 1000)
