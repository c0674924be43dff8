"""A rule that limits how many answers a client may have in an hour, and a route that tells how many it had."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable

from tandem.core.plugin import (
    Action,
    Host,
    HttpRoute,
    Options,
    RequestEvent,
    Routes,
    Rule,
    SafePoint,
    Supervision,
    Task,
    hookimpl,
    option,
)

HOUR_S = 3600.0


class Quota:
    """The plugin. The rule runs on the engine's thread and the route on the event loop, so the counts have a lock."""

    TANDEM_API = ">=0.2,<0.3"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self.taken: dict[str, deque[float]] = defaultdict(deque)
        """Client -> when it took its answers of the last hour, the oldest first."""

    def count(self, client: str) -> int:
        """How many answers the client had in the last hour. The caller holds the lock."""
        times = self.taken[client]
        while times and self.clock() - times[0] >= HOUR_S:
            times.popleft()
        return len(times)

    def check(self, event: RequestEvent, task: Task, sup: Supervision) -> Action | None:
        """Before the prefill: one answer more, or a sentence in its place."""
        limit: int = task.params["answers"]
        with self.lock:
            if self.count(event.client) >= limit:
                return Action.give_up(
                    f"This client has had its {limit} answers of the hour.", reason=f"over {limit} answers an hour"
                )
            self.taken[event.client].append(self.clock())
        return None

    @hookimpl
    def tandem_rules(self) -> list[Rule]:
        return [
            Rule(
                "quota",
                at=SafePoint.SP4,
                check=self.check,
                params={"answers": option("integer", "How many answers a client may have in an hour.", 60, minimum=0)},
                doc="Limits how many answers a client may have in an hour.",
            )
        ]

    @hookimpl
    def tandem_routes(self) -> list[Routes]:
        return [Routes(name="quota", doc="Tells how many answers each client had in the last hour.", build=self.build)]

    def build(self, options: Options, host: Host) -> list[HttpRoute]:
        from starlette.requests import Request
        from starlette.responses import JSONResponse, Response

        async def tell(request: Request) -> Response:
            with self.lock:
                return JSONResponse({client: self.count(client) for client in sorted(self.taken)})

        return [HttpRoute("/v1/quota", tell, doc="Client -> answers in the last hour.")]


plugin = Quota()
