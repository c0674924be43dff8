"""How the scripted model reads and writes: a byte a token, a few marks, and its chat template."""

from __future__ import annotations

import re

END, SYSTEM, USER, ASSISTANT, TOOL = range(256, 261)
SPECIALS = {"<|end|>": END, "<|system|>": SYSTEM, "<|user|>": USER, "<|assistant|>": ASSISTANT, "<|tool|>": TOOL}
VOCAB = 261
IMAGE, IMAGE_MARK = VOCAB, "<|image|>"
"""The placeholder, one id more, of a model that reads pictures."""

ROLES = frozenset({SYSTEM, USER, ASSISTANT, TOOL})

OPEN, CLOSE = "<think>", "</think>"
CLOSE_BYTES = CLOSE.encode()
TOOLS_HEAD = "Tools: ["
TEMPLATE = """\
{%- macro written(text, own) -%}
{{ text if own else text | replace("<|", "<\\\\u007c") }}
{%- endmacro -%}
{%- macro shown(content, own) -%}
{%- if content is string -%}
{{ written(content, own) }}
{%- else -%}
{%- for part in content or [] -%}
{{ "<|image|>" if part.type == "image" else written(part.text, own) }}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- if tools %}<|system|>Tools: {{ tools | tojson }}
A call is written as <tool_call>
<function=NAME>
<parameter=KEY>
VALUE
</parameter>
</function>
</tool_call><|end|>{% endif -%}
{%- for message in messages -%}
<|{{ message.role }}|>{{ shown(message.content, message.role == "assistant") }}
{%- for call in message.tool_calls or [] %}<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments | items %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>
{%- set said = messages | selectattr("role", "equalto", "user") | map(attribute="content") | list | last or "" -%}
{%- if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% elif enable_thinking is defined or "</think>" in shown(said, true) %}<think>
{% endif -%}
{%- endif -%}
"""
"""A turn is opened inside the reasoning when the script closes it, or when the request turns thinking on.

A mark in a message's text is no mark: it is written as JSON escapes it, which a script reads as the same text.
"""


class ByteTokenizer:
    """One token a byte, and a few specials for the turns; with `vision` one more for pictures."""

    eos_ids = frozenset({END})

    def __init__(self, vision: bool = False) -> None:
        self._specials = {**SPECIALS, IMAGE_MARK: IMAGE} if vision else SPECIALS
        self._split = re.compile("(" + "|".join(map(re.escape, self._specials)) + ")")
        self.vocab_size = 256 + len(self._specials)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self._split.split(text):
            if part in self._specials:
                ids.append(self._specials[part])
            else:
                ids.extend(part.encode("utf-8", "surrogatepass"))
        return ids

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise IndexError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        return bytes((token,)) if token < 256 else b""
