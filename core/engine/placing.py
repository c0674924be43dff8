"""Who gets a place, and what it gets there: the rules by which requests share one machine, each a predicate.

`Admission` is the queue that asks them, `MemoryGate` adds whether there is room, `Turns` how the time is shared.

1. `is_ready`: a choice whose prompt another choice is reading waits for it.
2. `continues`: a request goes on with a conversation when it shares more with it than its own beginning, which every
   chat of a client has.
3. `waits_for_conversation`: while another request reads what it would have to read too, it waits for that, for a few
   seconds; then it takes a place as it is.
4. `precedence`: a turn goes before a side request, that before the server's own work; among equals, who came first.
5. `is_owed`: whom `PATIENCE` later arrivals have passed goes before all of them, whatever its rank.
6. `yields`: where no place is free, the server's own work gives its place up, and goes on when one is.
7. `fits_lane`, `lane_is_open`: where none is given up, a short request may be served in the side lane.
8. `most_running`: a place that memory can't fill is none.
9. `nodes_each`: those who write in one pass share its rows.

The bound that follows from 5: nobody sees more than `PATIENCE` later arrivals get what it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.core.engine.drafting import MAX_NODES
from tandem.core.engine.request import Rank

if TYPE_CHECKING:
    from tandem.core.engine.admission import Job

PATIENCE = 8
"""How many later arrivals may go before a request, because their rank is better."""
JOINT_ROWS = MAX_NODES + 1
"""Rows that write in one pass, drafts included: as many as a lone generation may have."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Which requests the side lane takes."""

    mode: str = "on"
    """`on`, `decode` (not while a prompt is read) or `off`."""
    prompt_max: int = 2048
    new_max: int = 64


# ---------------------------------------------------------------------------------------------------- who may start


def is_ready(job: Job) -> bool:
    """No other choice reads its prompt at the moment."""
    shared = job.request.shared
    return job.generation is not None or shared is None or shared.state is not None or not shared.reading


def continues(shared: int, head: int | None) -> bool:
    """The request goes on with a conversation with which it shares its first `shared` prompt tokens.

    `head` tokens reach through its own first user message. A system prompt and a list of tools are the same in every
    chat of a client, so who shares no more than that has a conversation of its own.
    """
    return head is not None and shared > head


def waits_for_conversation(shared: int, head: int | None, known: int, waited_s: float, limit_s: float) -> bool:
    """Another request reads what this one would have to read too, and has come to `known` of the `shared` tokens.

    To read them a second time takes as long as to wait for the first, which began earlier, and slows that one down.
    Bounded all the same: the other one may be held up by others.
    """
    return continues(shared, head) and known < shared and waited_s < limit_s


# ------------------------------------------------------------------------------------------------------ who is first


def is_owed(job: Job) -> bool:
    """It was passed often enough."""
    return job.passed >= PATIENCE


def precedence(job: Job) -> int:
    """The smallest goes first; equals in the order of their arrival."""
    return -1 if is_owed(job) else job.request.rank


def yields(holder: Job, to: Job) -> bool:
    """The holder gives its place to one that waits."""
    own = holder.request.rank is Rank.BACKGROUND and holder.lane is None
    return own and not is_owed(holder) and (to.request.rank is not Rank.BACKGROUND or is_owed(to))


# ------------------------------------------------------------------------------------------------------ the side lane


def fits_lane(job: Job, lane: Lane) -> bool:
    """It is short work: a question, not a turn of an agent or of somebody who thinks.

    A constraint is no obstacle: it was compiled before the request queued, and masks `new_max` tokens at most.
    """
    ask = job.request
    return (
        len(ask.prompt) <= lane.prompt_max
        and ask.max_tokens <= lane.new_max
        and not ask.images
        and ask.shared is None
        and not (ask.thinking is not None and ask.thinking.opened)
        and not (ask.calls is not None and ask.calls.wanted)
        and job.generation is None  # else it has begun in a place, with all that comes with one
    )


def lane_is_open(lane: Lane, running: Seq[Job]) -> bool:
    """One guest at a time, and none beside a prefill where the lane serves at decode steps only."""
    if lane.mode == "off" or any(job.lane is not None for job in running):
        return False
    return lane.mode == "on" or not any(is_reading(job) for job in running)


def is_reading(job: Job) -> bool:
    """Its prompt is not read yet."""
    return job.generation is not None and job.generation.reading


# ------------------------------------------------------------------------------------------------------- what it gets


def most_running(places: int, taken: int, held_back: bool) -> int:
    """How many requests may run at once now: as many as there are places, or no more than do already while memory
    keeps the next one back."""
    return taken if held_back and taken < places else places


def nodes_each(writing: int) -> int:
    """Drafted nodes that each of those who write in one pass may have: equal shares of `JOINT_ROWS`, roots included.

    One alone has them all, as if nothing were shared; more than `JOINT_ROWS` have none, and a row each.
    """
    return max(0, JOINT_ROWS // max(1, writing) - 1)
