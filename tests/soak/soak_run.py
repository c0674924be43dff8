"""The run: several clients at once, and what is checked when they are done."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak_plan import Ask, Visit
from soak_server import Held, WatchedServer
from soak_wire import Got, Wire, said

from tandem.core.engine.ledger import read

CLIENTS = 8
ASIDE = "aside"
"""The session of what is asked before and after the soak."""
AGAIN = 50
"""How often one comes back that will leave in the middle of its answer."""
AGAIN_S = 0.02
"""A client that finds the queue full comes back after this long."""


@dataclass
class Seen:
    """What one request came to."""

    ask: Ask
    refusals: int = 0
    """503s before it was taken."""
    got: Got | None = None
    seconds: float = 0.0
    """From the first try to the last byte, or to the client's leaving."""


@dataclass
class Outcome:
    """What a whole run came to."""

    seen: list[Seen] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    """At the start and after each quarter."""
    stages: Counter[str] = field(default_factory=Counter)
    """Where those stood who left: `queue`, `prefill`, `decode`, `refused`, or `unseen` before the engine knew them."""
    before: int = 0
    """Requests that were made before it."""
    seconds: float = 0.0

    def summary(self) -> str:
        kinds = Counter(one.ask.kind for one in self.seen)
        refusals = sum(one.refusals for one in self.seen)
        held = self.held
        longest = sorted(self.seen, key=lambda one: -one.seconds)[:5]
        return "\n".join(
            [
                f"{len(self.seen)} requests in {self.seconds:.1f} s, {refusals} times refused",
                f"  {_listed(kinds)}",
                f"  who left stood in: {_listed(self.stages)}",
                f"  memory, MiB: {', '.join(f'{one.rss / 2**20:.1f}' for one in held)}",
                f"  Python objects: {', '.join(str(one.objects) for one in held)}",
                f"  threads: {', '.join(str(len(one.threads)) for one in held)}",
                f"  open descriptors: {', '.join(str(one.files) for one in held)}",
                f"  the longest, s: {', '.join(f'{one.ask.kind} {one.seconds:.2f}' for one in longest)}",
                f"  problems: {len(self.problems)}",
            ]
        )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def soak(
    server: WatchedServer,
    visits: Seq[Visit],
    outcome: Outcome,
    check: Callable[[Ask, Got], str | None] | None = None,
    clients: int = CLIENTS,
) -> None:
    """Make all visits, in quarters; the first is the warm-up. `check` says what is wrong with an answer, None for
    nothing."""
    server.idle()
    outcome.held.append(server.held())
    started = time.monotonic()
    for quarter in range(4):
        part = visits[len(visits) * quarter // 4 : len(visits) * (quarter + 1) // 4]
        _visit(server, part, outcome, check or wrong_answer, clients)
        server.idle()
        outcome.held.append(server.held())
    outcome.seconds = time.monotonic() - started


def _visit(
    server: WatchedServer,
    visits: Seq[Visit],
    outcome: Outcome,
    check: Callable[[Ask, Got], str | None],
    clients: int,
) -> None:
    waiting = deque(visits)

    def client() -> None:
        wire = Wire(server.address)
        while True:
            try:
                visit = waiting.popleft()
            except IndexError:
                break
            for ask in visit:
                one = Seen(ask)
                outcome.seen.append(one)
                began = time.monotonic()
                try:
                    problem = _made(wire, one, check)
                except Exception as error:  # a socket that is stuck, an answer that is none
                    problem = f"{type(error).__name__}: {error}"
                    wire = Wire(server.address)
                one.seconds = time.monotonic() - began
                if problem is not None:
                    outcome.problems.append(f"{ask.session} ({ask.kind}, {ask.path}): {problem}")
        wire.close()

    threads = [threading.Thread(target=client, name=f"client-{at}") for at in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _made(wire: Wire, one: Seen, check: Callable[[Ask, Got], str | None]) -> str | None:
    while True:
        one.got = got = wire.send(one.ask)
        if got.status != 503:
            break
        one.refusals += 1
        if one.ask.leave is not None:  # it may not have read all of it
            if one.ask.leave.stage != "text" or one.refusals > AGAIN:
                return None
            time.sleep(AGAIN_S)
            continue
        told = json.loads(got.content)["error"]["message"]
        if "places are busy" not in told:
            return f"503: {told}"
        time.sleep(AGAIN_S)
    if one.ask.leave is not None:
        return None if got.status in (0, 200) else f"status {got.status}: {got.content[:500]!r}"
    if got.status != one.ask.status:
        return f"status {got.status}, not {one.ask.status}: {got.content[:500]!r}"
    if got.status >= 400 and not json.loads(got.content)["error"]["message"]:
        return "an error without a message"
    return check(one.ask, got) if one.ask.said else None


def wrong_answer(ask: Ask, got: Got) -> str | None:
    """What the scripted model was told to write is what came, in the same choices."""
    found = said(ask, got)
    if found == ask.said:
        return None
    first = next((at for at, pair in enumerate(zip(found, ask.said, strict=False)) if pair[0] != pair[1]), None)
    if first is None:
        return f"{len(found)} choices, not {len(ask.said)}"
    return f"choice {first} differs\n    is:        {found[first]}\n    should be: {ask.said[first]}"


# ---------------------------------------------------------------------------------------------------- the ledger


def check_ledger(path: Path, outcome: Outcome, scripted: bool) -> list[str]:
    """Every request that the engine was asked for has its rows, and no other one has any.

    The scripted model has written a token for each byte that was shown, and ends nothing before its client leaves.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in read(path):
        rows.setdefault(row["session"], []).append(row)
    problems = []
    rows.pop(_hashed(ASIDE), None)
    for one in outcome.seen:
        found = rows.pop(_hashed(one.ask.session), [])
        refused = [row for row in found if row["reason"] == "refused"]
        ended = [row for row in found if row["reason"] != "refused"]
        if (problem := _wrong_rows(one, refused, ended, scripted)) is not None:
            told = [(row["reason"], row["detail"], row["completion_tokens"]) for row in found]
            problems.append(f"{one.ask.session} ({one.ask.kind}, {one.ask.path}): {problem}; the rows are {told}")
        if one.ask.leave is not None:
            outcome.stages["refused" if refused and not ended else _stage(ended)] += 1
    if rows:
        problems.append(f"{sum(map(len, rows.values()))} rows are of nobody: {list(rows.values())[:3]}")
    return problems


def _hashed(session: str) -> str:
    """A session's name as it stands in the ledger."""
    return hashlib.sha256(session.encode()).hexdigest()[:16]


def _wrong_rows(one: Seen, refused: list[dict[str, Any]], ended: list[dict[str, Any]], scripted: bool) -> str | None:
    ask, got = one.ask, one.got
    if not ask.generates:
        return "there are rows of what was no request" if refused or ended else None
    if ask.leave is not None:
        if len(ended) > 1 or len(refused) > max(1, one.refusals):
            return "more rows than requests"
        if got is not None and got.status == 200 and not ended:
            return "an answer that had begun has no row"
        over = {"abandoned"} if scripted else {"abandoned", "stop", "length"}
        return None if all(row["reason"] in over for row in ended) else "it was not abandoned"
    if len(refused) != one.refusals:
        return f"{len(refused)} rows of {one.refusals} refusals"
    if len(ended) != 1:
        return f"{len(ended)} rows of one answer"
    (row,) = ended
    if got is not None and row["reason"] != (told := said(ask, got)[0].finish):
        return f"its reader was told {told}"
    least = sum(len((choice.text + choice.reasoning).encode()) for choice in ask.said) if scripted else 1
    return None if row["completion_tokens"] >= least else "tokens are missing"


def _stage(ended: list[dict[str, Any]]) -> str:
    if not ended:
        return "unseen"
    if ended[0]["completion_tokens"]:
        return "decode"
    return "prefill" if ended[0]["prefill_ms"] else "queue"
