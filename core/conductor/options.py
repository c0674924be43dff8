"""The options of the manifest's `conductor` section."""

from __future__ import annotations

from tandem.core.conductor.roster import MODES
from tandem.core.plugin.part import option

CONDUCTOR_OPTIONS = {
    "mode": option(
        "string",
        "What rules may do: `raw` (none is asked), `shadow` (all are asked and journaled, nothing is done) or `on`.",
        "on",
        enum=list(MODES),
    ),
    "policy": option(
        ["string", "null"],
        "The tasks of the session monitor: the name of a shipped policy or a file; `null` makes each rule that is on a "
        "task of its own name.",
        None,
    ),
    "documents": option(
        ["string", "null"],
        "The folder that keeps the versions of profiles, settings and policy; `auto` is `conductor` in the state "
        "directory, `null` leaves them as they are shipped.",
        "auto",
    ),
    "rule_budget_ms": option(
        "number", "How long one check of a rule may take; a longer one is journaled.", 20, exclusiveMinimum=0
    ),
    "watch_s": option(
        "number",
        "How often the rules that watch from outside look at the sessions, in seconds; 0 is never.",
        30,
        minimum=0,
    ),
    "notify_url": option(
        ["string", "null"],
        "Where a rule's push goes: its text is sent there with POST. `null` sends none.",
        None,
        pattern="^https?://",
    ),
    "notify_token_file": option(
        ["string", "null"], "A file with the token that a push carries as `Authorization: Bearer`.", None
    ),
    "max_sessions": option("integer", "How many sessions are remembered.", 256, minimum=1),
    "acts_per_request": option("integer", "The most acts of rules in one request.", 4, minimum=0),
    "acts_per_session_hour": option("integer", "The most acts of rules in one session's hour.", 30, minimum=0),
    "journal": option(
        ["string", "null"],
        "The SQLite file that keeps what rules decided; `auto` is `conductor.sqlite` in the state directory, `null` "
        "keeps the last decisions in memory only.",
        "auto",
    ),
    "journal_days": option("number", "How long the file keeps a decision, in days.", 30, exclusiveMinimum=0),
}
