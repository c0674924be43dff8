"""The supervision of a request: what rules see of it, and what their plan makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence as Seq
from dataclasses import replace

from tandem.api.documents import Document, structured_outputs
from tandem.api.readers import FieldError, Place
from tandem.api.request import ChatRequest, GenerationRequest
from tandem.core.conductor import MODES, Conductor, Plan, Profile, UnknownProfile, Watch
from tandem.core.conductor.history import calls_of_turn, past_calls
from tandem.core.engine.request import Sampling, Thinking
from tandem.core.plugin import ClientMatch, RequestEvent, SafePoint, Tool

MODE_HEADER = "x-tandem"
"""`raw`, `shadow` or `on`: lowers what rules may do in this request. Every answer says in which mode it was written."""

PROFILE_HEADER = "x-tandem-profile"
"""The profile that a request wants to be served under. Every answer says under which one it was."""

COMPACTION = "compaction"
"""The kind of side request that has the conversation summed up."""


def asked_mode(headers: Mapping[str, str]) -> str | None:
    """The mode that a request asks for; None when it does not. Raises FieldError for a word that is none."""
    value = headers.get(MODE_HEADER)
    if value is None:
        return None
    word = value.strip().lower()
    if word == "off":
        return MODES[0]
    if word not in MODES:
        raise FieldError("X-Tandem", f"X-Tandem must be one of {', '.join(MODES)}, not {value!r}")
    return word


def profile_of(
    conductor: Conductor, headers: Mapping[str, str], client: ClientMatch, *, offers_tools: bool = False
) -> Profile:
    """The profile of a request. Raises FieldError for the name of one that is not there."""
    value = headers.get(PROFILE_HEADER)
    try:
        asked = None if value is None else value.strip()
        return conductor.profile_of(client.kind, asked, offers_tools=offers_tools)
    except UnknownProfile as error:
        raise FieldError("X-Tandem-Profile", str(error)) from None


async def rewritten(conductor: Conductor, ask: ChatRequest, mode: str | None, profile: Profile) -> ChatRequest:
    """The request with its messages as the rules that act want them read. Rules are never asked on the event loop: one
    that hangs would hold up every stream."""
    if not conductor.rewrites(mode, profile):
        return ask
    messages = await asyncio.to_thread(conductor.rewritten, ask.messages, mode, profile)
    return replace(ask, messages=tuple(messages))


def begin_chat(
    conductor: Conductor,
    ask: ChatRequest,
    client: ClientMatch,
    mode: str | None,
    profile: Profile,
    *,
    prompt_tokens: int,
    max_tokens: int,
    tools: Seq[Tool],
    constrained: bool,
    thinking: bool,
) -> Watch:
    """The supervision of a chat request."""
    sessions = conductor.sessions
    # A side request leaves its session alone, but for the one that tells of a compaction, where the client says whose.
    joins = client.side is None or (client.side == COMPACTION and client.session is not None)
    key = sessions.key(client.kind, client.session, ask.messages) if joins else ""
    calls = past_calls(ask.messages)
    timed, new = sessions.begun(sessions.of(key), calls) if key else (tuple(calls), ())
    event = RequestEvent(
        messages=ask.messages,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        client=client.kind,
        tools=tuple(tools),
        tool_choice=ask.tool_choice.mode,
        n=ask.n,
        constrained=constrained or ask.tool_choice.mode in ("required", "function"),
        thinking=thinking,
        thinking_asked=ask.wish.on,
        budget=ask.wish.cap,
        sampling_asked=ask.sampling_asked,
        regenerated=ask.regenerated,
        side=client.side,
        session=key,
        calls=timed,
        turn_calls=calls_of_turn(ask.messages, timed),
        new_calls=new,
    )
    return conductor.begin(event, mode, profile)


def begin_plain(
    conductor: Conductor,
    ask: GenerationRequest,
    client: ClientMatch,
    mode: str | None,
    profile: Profile,
    prompt_tokens: int,
    room: int,
) -> Watch:
    """The supervision of one prompt of a plain completion."""
    event = RequestEvent((), prompt_tokens, room, client.kind, n=ask.n, sampling_asked=ask.sampling_asked)
    return conductor.begin(event, mode, profile)


async def planned(watch: Watch) -> Plan:
    """What the rules want before the prefill."""
    if not (watch.wants(SafePoint.SP4) or watch.wants(SafePoint.LABEL)):
        return Plan()
    return await asyncio.to_thread(watch.plan)


def document_of(plan: Plan) -> Document | None:
    """What the plan lets the answer be. A rule's document that is none counts as not given."""
    if plan.document is None:
        return None
    try:
        return structured_outputs(dict(plan.document), Place("rule", 0))
    except FieldError:
        return None


def sampled(sampling: Sampling, wanted: Mapping[str, float], otherwise: Mapping[str, float]) -> Sampling:
    """How tokens are drawn when a rule says so; `otherwise` are the settings where it names none."""
    settings = {**otherwise, **wanted}
    return replace(
        sampling,
        temperature=settings.get("temperature", sampling.temperature),
        top_p=settings.get("top_p", sampling.top_p),
        top_k=int(settings.get("top_k", sampling.top_k)),
        min_p=settings.get("min_p", sampling.min_p),
        seed=None,
    )


def hidden_closing(watch: Watch, thinking: Thinking | None, *, asked: bool) -> Thinking | None:
    """The client's own budget closes the reasoning with words that stay hidden where rules may act."""
    if thinking is None or thinking.budget is None or thinking.hide_closing or not watch.acting:
        return thinking
    return replace(thinking, hide_closing="client" if asked else "reserve")
