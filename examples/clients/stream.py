"""A streamed chat: python stream.py "Name three rivers."

Reads OPENAI_BASE_URL; without it the server is looked for on this machine.
"""

import os
import sys

from openai import OpenAI

question = sys.argv[1] if len(sys.argv) > 1 else "Name three rivers."
client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"), api_key="none")
model = client.models.list().data[0].id

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": question}],
    stream=True,
    stream_options={"include_usage": True},
)
usage = None
for chunk in stream:
    usage = chunk.usage or usage
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
if usage is not None:
    print(f"{model}: {usage.prompt_tokens} tokens read, {usage.completion_tokens} written", file=sys.stderr)
