"""Does a client cope with an odd stream? Run `tandem serve scripted`, put your own client in the place of `read`.

The scripted model writes exactly what the message tells it to: a character in two halves, a pause, a tag split in the
middle, and an end that the token limit forces.
"""

import json
import os
import sys

from openai import OpenAI

SCRIPT = [
    "Hello ",
    {"hex": "f09f"},
    {"hex": "9880"},
    {"sleep_ms": 300},
    " <to",
    "ol_call",
    "> is only text. ",
    "and on ",
]
WANTED = "Hello \N{GRINNING FACE} <tool_call> is only text. and on and on and"


def read(base_url: str, message: str, max_tokens: int) -> tuple[str, str | None]:
    """The whole text and the finish reason, as the client under test sees them."""
    client = OpenAI(base_url=base_url, api_key="none")
    text, finish = "", None
    for chunk in client.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": message}], max_tokens=max_tokens, stream=True
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return text, finish


text, finish = read(
    os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    json.dumps({"script": SCRIPT, "end": False}),
    max_tokens=len(WANTED.encode()),
)
if (text, finish) != (WANTED, "length"):
    sys.exit(f"the client read {text!r} with the finish reason {finish}")
print("The client copes.")
