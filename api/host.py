"""What a plugin may ask of the running platform (`tandem.core.plugin.Host`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from typing import Any

from tandem.api.errors import ApiError
from tandem.api.generate import generations
from tandem.api.plain import Choices
from tandem.api.readers import FieldError
from tandem.api.record import Record
from tandem.api.request import read_chat
from tandem.api.service import Service
from tandem.core.engine.request import Refused

CLIENT = "host"
"""The client's name on a plugin's own generations."""


class ServedHost:
    """The platform as a plugin sees it while it is served."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def served_name(self) -> str | None:
        return self._service.served_name

    def plugins(self) -> list[dict[str, Any]]:
        return self._service.platform.records()

    async def generate(self, messages: Seq[Mapping[str, Any]], *, max_tokens: int = 256, **sampling: Any) -> str:
        """One answer's text. Runs on the server's event loop; dropped in the engine when the caller is cancelled.

        Raises ValueError for a wrong argument, RuntimeError when the engine can't take or finish the request.
        """
        service = self._service
        try:
            service.check_open()
            vocab_size = service.model().tokenizer.vocab_size
            body = {**sampling, "messages": [dict(message) for message in messages], "max_tokens": max_tokens}
            ask = read_chat(body, vocab_size, service.defaults)
            work = generations(service, ask, [await service.chat_prompt(ask)], "messages", CLIENT)
            record = Record("-", "host", CLIENT, None, stream=False)
            choices = Choices(
                service.engine, work[:1], width=1, patience_s=service.options["queue_timeout_s"], record=record
            )
            done = await choices.run()
        except FieldError as error:
            raise ValueError(str(error)) from None
        except (ApiError, Refused) as error:
            raise RuntimeError(str(error)) from None
        record.reason = done[0].reason
        service.ended(record)
        return done[0].text
