"""What the engine is asked to do for a request: one `Generate` for each choice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, replace

from tandem.api.errors import ApiError
from tandem.api.replay import Recorder
from tandem.api.request import ChatRequest, CompletionRequest, GenerationRequest, choice_seed
from tandem.api.service import Service
from tandem.api.structured import constraint_for, offered_tools
from tandem.api.thinking import budget
from tandem.api.watching import (
    asked_mode,
    begin_chat,
    begin_plain,
    document_of,
    hidden_closing,
    planned,
    profile_of,
    rewritten,
    sampled,
)
from tandem.core.conductor import ON, Plan, Watch
from tandem.core.engine.constraint import Recipe
from tandem.core.engine.request import Generate, Rank, SharedPrompt, Thinking
from tandem.core.plugin import ClientMatch, Tool

log = logging.getLogger("tandem.api")

NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Work:
    """What the engine is asked for one request."""

    requests: list[Generate]
    recorder: Recorder | None = None
    """Keeps the answers for the prompts in which they come back; None = they are not kept."""
    replayed: int = 0
    """Earlier turns that the prompt shows as the model wrote them."""
    watch: Watch | None = None
    """The request's supervision."""


async def chat_work(
    service: Service, ask: ChatRequest, client: ClientMatch, headers: Mapping[str, str] = NO_HEADERS
) -> Work:
    """The choices of a chat. Raises ApiError when the template refuses the messages, the prompt does not fit, or
    what the answer should be can't be turned into a constraint; FieldError for a header that is wrong."""
    notation, conductor = service.notation, service.conductor
    mode = asked_mode(headers)
    wanted = bool(ask.tools) and ask.tool_choice.mode != "none"
    profile = profile_of(conductor, headers, client, offers_tools=wanted)
    ask = await rewritten(conductor, ask, mode, profile)
    rendered = await service.chat_prompt(ask, raw=conductor.mode_of(mode, profile) != ON)
    room = _room(service, rendered.ids, ask, "messages")
    tools = offered_tools(ask.tools) if wanted else ()
    # Off the loop as well: the calls of a long conversation are many.
    watch = await asyncio.to_thread(
        begin_chat,
        conductor,
        ask,
        client,
        mode,
        profile,
        prompt_tokens=len(rendered.ids) - sum(map(len, rendered.hidden)),
        max_tokens=room,
        tools=tools,
        constrained=ask.document is not None,
        thinking=notation.opens(rendered.text),
    )
    plan = await planned(watch)
    thinks = plan.think is None or plan.think[0] > 0
    if plan.note or not thinks:
        rendered = await service.chat_prompt(ask, plan.note, thinks=thinks)
        room = _room(service, rendered.ids, ask, "messages")
    if plan.sampling is not None:
        ask = replace(ask, sampling=sampled(ask.sampling, plan.sampling, service.recommended_sampling))
    ask, constraint = await _constrained(service, ask, plan, tools)
    json_answer = ask.document is not None and ask.document.is_json
    may_spend = budget(ask.wish, room, service.answer_reserve, len(notation.closing), wants_reserve=json_answer)
    thinking = notation.thinking(
        rendered.text, may_spend, may_open=constraint is None and not rendered.continued and ask.wish.on is not False
    )
    thinking = hidden_closing(watch, thinking, asked=may_spend == ask.wish.cap)
    if thinks and plan.think is not None and thinking is not None:
        thinking = _limited(thinking, *plan.think, service)
    forced = ask.tool_choice.mode in ("required", "function")
    one_call = ask.parallel_tool_calls is False or (forced and ask.parallel_tool_calls is not True)
    first = Generate(
        prompt=rendered.ids,
        max_tokens=room,
        sampling=ask.sampling,
        stop=ask.stop,
        thinking=thinking,
        calls=notation.calls(tools, wanted=wanted, limit=1 if one_call else None),
        constraint=constraint,
        messages=ask.messages,
        client=client.kind,
        cache=ask.cache,
        images=rendered.images,
        keep_text=ask.keep_text,
        rank=rank_of(client),
        watch=watch,
        sentence=(plan.by, plan.give_up) if plan.give_up is not None else None,
        masks=plan.masks,
        hidden=service.hidden_turns,
        hidden_prompt=rendered.hidden,
        head=rendered.head,
    )
    recorder = service.recorder(ask, rendered, first.calls)
    return Work(_choices(first, ask.n), recorder, rendered.replayed, watch)


async def _constrained(
    service: Service, ask: ChatRequest, plan: Plan, tools: Seq[Tool]
) -> tuple[ChatRequest, Recipe | None]:
    """The request with what its answer is to be, and the constraint that makes it so.

    A rule's document stands where the client asked for none; one that can't be used is the rule's mistake, and leaves
    the answer free."""
    if ask.document is None and (document := document_of(plan)) is not None:
        documented = replace(ask, document=document)
        try:
            return documented, await _constraint(service, documented, tools)
        except ApiError as error:
            log.warning("a rule's document can't be used, and the answer is free: %s", error.message)
    return ask, await _constraint(service, ask, tools)


async def _constraint(service: Service, ask: ChatRequest, tools: Seq[Tool]) -> Recipe | None:
    """What constrains the answer, if anything. A large schema compiles for a while; streams go on meanwhile."""
    if ask.document is None and not (ask.tools and ask.tool_choice.mode != "none"):
        return None
    notation, parallel = service.notation, ask.parallel_tool_calls
    return await asyncio.to_thread(constraint_for, notation, ask.document, tools, ask.tool_choice, parallel)


def _limited(thinking: Thinking, tokens: int, text: str, service: Service) -> Thinking:
    """The reasoning with a task's limit, where the client's own is not lower."""
    if thinking.budget is not None and thinking.budget <= tokens:
        return thinking
    closer = thinking.tags[1]
    words = text if closer in text else f"{text.rstrip()}\n{closer}"
    closing = tuple(service.model().tokenizer.encode(f"\n{words.strip()}\n\n")) if text.strip() else thinking.closing
    return replace(thinking, budget=tokens, closing=closing, hide_closing="rule")


async def completion_work(
    service: Service, ask: CompletionRequest, client: ClientMatch, headers: Mapping[str, str] = NO_HEADERS
) -> Work:
    """For each prompt in order its choices. Raises ApiError when a prompt is empty or does not fit; FieldError for a
    header that is wrong."""
    work: list[Generate] = []
    mode = asked_mode(headers)
    profile = profile_of(service.conductor, headers, client)
    watch: Watch | None = None
    for plain in ask.prompts:
        ids = await service.plain_prompt(plain)
        room = _room(service, ids, ask, "prompt")
        watch = begin_plain(service.conductor, ask, client, mode, profile, len(ids), room)
        plan = await planned(watch)
        first = Generate(
            prompt=ids,
            max_tokens=room,
            sampling=ask.sampling,
            stop=ask.stop,
            client=client.kind,
            cache=ask.cache,
            rank=rank_of(client),
            watch=watch,
            sentence=(plan.by, plan.give_up) if plan.give_up is not None else None,
            masks=plan.masks,
        )
        work += _choices(first, ask.n)
    return Work(work, watch=watch)


OWN = "host"
"""The client kind of what the server's own parts generate (`Host.generate`)."""


def rank_of(client: ClientMatch) -> Rank:
    """Who goes first when several requests wait."""
    if client.kind == OWN:
        return Rank.BACKGROUND
    return Rank.TURN if client.side is None else Rank.SIDE


def _room(service: Service, ids: Seq[int], ask: GenerationRequest, param: str) -> int:
    if not ids:
        raise ApiError(400, "the prompt renders to no token", param=param)
    return service.fitting(len(ids), ask.max_tokens, param)


def _choices(first: Generate, n: int) -> list[Generate]:
    """`n` choices of one prompt, which is read once; each has a seed of its own."""
    shared = SharedPrompt() if n > 1 else None
    return [
        replace(
            first,
            sampling=replace(first.sampling, seed=choice_seed(first.sampling.seed, index)),
            shared=shared,
            watch=first.watch if index == 0 or first.watch is None else first.watch.fork(),
        )
        for index in range(n)
    ]
