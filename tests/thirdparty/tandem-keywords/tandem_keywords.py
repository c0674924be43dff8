"""A classifier stage: counts words of each class in the user's last message."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from tandem.core.plugin import Host, Options, Stage, Turn, hookimpl, option

TANDEM_API = ">=0.2,<0.3"

WORDS = {
    "code": ["bug", "class", "code", "compile", "error", "function", "python", "test"],
    "writing": ["email", "essay", "letter", "poem", "rewrite", "story", "summary", "translate"],
}


def last_user_text(messages: tuple[Mapping[str, Any], ...]) -> str:
    content = next((m.get("content") for m in reversed(messages) if m.get("role") == "user"), None)
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content or [])


def build(options: Options, host: Host) -> Callable[[Turn], Mapping[str, float] | None]:
    classes = {name: {word.lower() for word in words} for name, words in options["words"].items()}

    def classify(turn: Turn) -> Mapping[str, float] | None:
        """Shares of the words found, one more for each class so that none is ruled out; None without any word."""
        said = re.findall(r"\w+", last_user_text(turn.messages).lower())
        found = {name: sum(word in classes.get(name, ()) for word in said) for name in turn.classes}
        if not any(found.values()):
            return None
        total = sum(found.values()) + len(found)
        return {name: (count + 1) / total for name, count in found.items()}

    return classify


@hookimpl
def tandem_stages() -> list[Stage]:
    return [
        Stage(
            name="keywords",
            doc="Tells the kind of a turn by the words in it.",
            options={
                "words": option(
                    "object",
                    "Class name -> the words that speak for it.",
                    WORDS,
                    additionalProperties={"type": "array", "items": {"type": "string"}},
                )
            },
            build=build,
        )
    ]
