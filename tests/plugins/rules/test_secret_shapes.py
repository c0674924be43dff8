from __future__ import annotations

import json
import re
import string
import time

import pytest
from hypothesis import example, given, strategies as st

from tandem.plugins.rules.secret_mask.shapes import LONGEST_TEXT, secrets_in

KEY = "".join(
    f"{line}\n"
    for line in (
        "-----BEGIN RSA PRIVATE KEY-----",
        "Proc-Type: 4,ENCRYPTED",
        "",
        "MIIEpAIBAAKCAQEA7bq98A7fkyJeKx6Yu0vXH2k8mPzq1rTgW3nLwE5dXh9QfZbs",
        "J4cR0tN2vG6yUeA1oKpS8iDmF3xBhTqWzLCV5jYnM7rQgE9kPaXuHs2dO6wIfZ4l",
        "Zm9vYmFyYmF6cXV4",
        "-----END RSA PRIVATE KEY-----",
    )
)
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4fwpMeJf36P"


@pytest.mark.parametrize(
    ("text", "secret", "shown", "kind"),
    [
        ("key: sk-abc123", "sk-abc123", "sk-[redacted]", "api_key"),
        ("OPENAI_API_KEY=sk-proj-aB3_x9-Yz", "sk-proj-aB3_x9-Yz", "sk-[redacted]", "api_key"),
        ("stripe rk_live_51Habc", "rk_live_51Habc", "rk_live_[redacted]", "api_key"),
        ("remote: ghp_" + "a1B2" * 9, "ghp_" + "a1B2" * 9, "ghp_[redacted]", "service_token"),
        ("AKIAIOSFODNN7ABCDEFG", "AKIAIOSFODNN7ABCDEFG", "AKIA[redacted]", "service_token"),
        ("Authorization: Bearer abc.123-xyz", "abc.123-xyz", "[redacted]", "bearer"),
        ("curl -H 'Authorization: Basic dXNlcjpwYXNz'", "dXNlcjpwYXNz", "[redacted]", "basic"),
        (f"cookie {JWT}; path", JWT, "[redacted]", "jwt"),
        ("postgres://app:s3cr3t!x@db:5432/app", "s3cr3t!x", "[redacted]", "url"),
        ("redis://:hunter@cache", "hunter", "[redacted]", "url"),
        ("Server=db;User Id=sa;Password=Passw0rd!;", "Passw0rd!", "[redacted]", "assigned"),
        ('password = "correcthorse"', "correcthorse", "[redacted]", "assigned"),
        ("'client_secret': 'Q7w-e8r'", "Q7w-e8r", "[redacted]", "assigned"),
        ('{"password": "hunter2"}', "hunter2", "[redacted]", "assigned"),
        ('os.environ["API_TOKEN"] = "abc123def"', "abc123def", "[redacted]", "assigned"),
        ('apiKey: string = "q1w2e3r4"', "q1w2e3r4", "[redacted]", "assigned"),
        ("DB_PASSWORD=hunter2\nUSER=x", "hunter2", "[redacted]", "assigned"),
        ("export SECRET=ab12cd", "ab12cd", "[redacted]", "assigned"),
        ("DB_PASS: tr0ub4dor.", "tr0ub4dor", "[redacted]", "assigned"),
        ("https://x.org/?token=ab12cd&page=2", "ab12cd", "[redacted]", "assigned"),
        ("The PIN is 4711.", "4711", "[redacted]", "pin"),
        ('"pin": "123456"', "123456", "[redacted]", "pin"),
    ],
)
def test_a_secret_is_found_and_its_kind_s_prefix_stays(text: str, secret: str, shown: str, kind: str) -> None:
    found = secrets_in(text)
    assert secret in found
    assert (found[secret].shown, found[secret].kind) == (shown, kind)
    assert set(found) == {secret}


@pytest.mark.parametrize(
    "text",
    [
        "We pay with bearer tokens and basic authorization.",
        "token = tokenizer(text)",
        "X_TOKEN = int(os.environ2['x'])",
        "MAX_TOKENS=128000",
        "max_tokens: 4096, password_length = 12",
        "The password is stored hashed; the secret lies in the salt.",
        "password: str = None",
        'password = ""',
        'password = "password"',
        'password_field = "new_password"',
        "token: int64",
        "secret = config.v2.secret",
        "token = tok2id[x]",
        "password = get_pw2()",
        "PASSWORD=${DB_PASSWORD_2}",
        'token = "{token1}"',
        'api_key="your-api-key-123"',
        "secret: /run/secrets/db_1",
        "token_type: bearer",
        'Token: "#cd5c5c"',
        '{"input_token": "NextToken", "output_token": "Marker"}',
        "task-abc123 and risk-a1b2c3",
        "sk-learn is a package",
        "https://user:password@host/",
        "http://host:8080/a@b",
        "Pinned to 2024; spin 1234; pin 2024-01-02; pin 12",
        "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA\n-----END PUBLIC KEY-----",
        "",
    ],
)
def test_prose_code_and_plain_numbers_are_no_secret(text: str) -> None:
    assert secrets_in(text) == {}


def test_each_line_of_a_private_key_is_a_secret() -> None:
    found = secrets_in(f"cat key.pem\n{KEY}$ ")
    assert set(found) == set(KEY.split("\n")[3:6])
    assert {secret.kind for secret in found.values()} == {"private_key"}


def test_a_private_key_that_the_tool_cut_off_is_one_all_the_same() -> None:
    assert len(secrets_in(KEY[:165])) == 2


def test_the_strings_of_a_json_result_are_decoded() -> None:
    text = json.dumps({"output": 'PASSWORD="a/b\\c1"\nTOKEN=ab12cd\n', "env": {"api_key": "k\u00e4y12345"}})
    assert "\\u00e4" in text
    assert set(secrets_in(text)) >= {"ab12cd", "k\u00e4y12345"}


def test_broken_and_deep_json_is_read_as_text() -> None:
    assert set(secrets_in('{"a\\n": "password=hunter2"')) == {"hunter2"}
    assert set(secrets_in("[" * 100_000 + "\\ password=hunter2 ")) == {"hunter2"}


def test_a_letter_that_is_longer_in_lower_case_moves_nothing() -> None:
    assert set(secrets_in("İİİİ password=hunter2 İ")) == {"hunter2"}


@given(
    st.text(string.ascii_letters + string.digits, min_size=6, max_size=40), st.text(max_size=20), st.text(max_size=20)
)
@example("a00000", "", "")
def test_a_quoted_password_with_a_digit_is_found_among_anything(value: str, before: str, behind: str) -> None:
    value = "q" + value + "7"
    assert value in secrets_in(f"{before}\nPASSWORD='{value}'\n{behind}")


@given(st.text(max_size=300))
def test_every_secret_is_one_run_of_the_text(text: str) -> None:
    for secret in secrets_in(f"password={text} token: '{text}'"):
        assert not re.search(r"\s", secret)
        assert secret in f"password={text} token: '{text}'"


@pytest.mark.parametrize(
    "text",
    [
        "password" * 50_000,
        "password=" + "a" * 300_000,
        "eyJ" * 100_000,
        "://" * 100_000,
        "token: " + "a " * 150_000,
        "-----BEGIN PRIVATE KEY-----" * 10_000,
        "bearer bearer " * 20_000,
        "token:" + " " * 200_000,
        "password='" + "access_key" * 48 + "x' " + "secret=" * 20_000,
    ],
    ids=range(9),
)
def test_no_text_takes_long(text: str) -> None:
    text = text[:LONGEST_TEXT]
    begun = time.perf_counter()
    secrets_in(text)
    assert time.perf_counter() - begun < 5, "it grows faster than the text"


def test_reading_ends_when_the_time_is_up() -> None:
    text = "password=hunter2 " * 10_000
    assert secrets_in(text, until=time.perf_counter() - 1) == {}
