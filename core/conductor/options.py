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
    "rule_budget_ms": option(
        "number", "How long one check of a rule may take; a longer one is journaled.", 20, exclusiveMinimum=0
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
