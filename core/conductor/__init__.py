"""The conductor: the rules' safe points and the journal of what they decided."""

from tandem.core.conductor.conductor import Conductor
from tandem.core.conductor.journal import Entry, Journal, Query
from tandem.core.conductor.roster import MODES, ON, RAW, SHADOW, Caps, Post, Roster, lowest
from tandem.core.conductor.sessions import Sessions, SessionState
from tandem.core.conductor.supervisor import Act, Plan, Supervisor, Verdict, Watch

__all__ = [
    "MODES",
    "ON",
    "RAW",
    "SHADOW",
    "Act",
    "Caps",
    "Conductor",
    "Entry",
    "Journal",
    "Plan",
    "Post",
    "Query",
    "Roster",
    "SessionState",
    "Sessions",
    "Supervisor",
    "Verdict",
    "Watch",
    "lowest",
]
