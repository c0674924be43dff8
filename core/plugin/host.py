"""What a plugin may ask of the running platform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from typing import Any, Protocol


class Host(Protocol):
    """The narrow view of the platform that routes, stages and narrators get."""

    @property
    def served_name(self) -> str | None:
        """The served model's name; None without a model."""
        ...

    def plugins(self) -> list[dict[str, Any]]:
        """Every installed plugin with its state, as `GET /v1/plugins` lists them."""
        ...

    async def generate(self, messages: Seq[Mapping[str, Any]], *, max_tokens: int = 256, **sampling: Any) -> str:
        """Run one chat generation and return its whole text.

        `sampling` takes the request's own names (`temperature`, `seed`, `stop`, ...). Raises RuntimeError with the
        reason when the engine can't take or finish it. Waits in the same queue as every client.
        """
        ...
