"""The conductor: the rules' safe points and the journal of what they decided."""

from tandem.core.conductor.acts import Act, Plan, Verdict
from tandem.core.conductor.conductor import Conductor
from tandem.core.conductor.config import Config, Documents, UnknownDocument, check_policy
from tandem.core.conductor.documents import Conflict, Store, StoreError, Version
from tandem.core.conductor.journal import Entry, Journal, Query
from tandem.core.conductor.policy import Policy
from tandem.core.conductor.profiles import Profile, UnknownProfile
from tandem.core.conductor.roster import MODES, ON, RAW, SHADOW, Caps, Post, Roster, lowest
from tandem.core.conductor.sessions import Sessions, SessionState
from tandem.core.conductor.supervisor import Supervisor, Watch

__all__ = [
    "MODES",
    "ON",
    "RAW",
    "SHADOW",
    "Act",
    "Caps",
    "Conductor",
    "Config",
    "Conflict",
    "Documents",
    "Entry",
    "Journal",
    "Plan",
    "Policy",
    "Post",
    "Profile",
    "Query",
    "Roster",
    "SessionState",
    "Sessions",
    "Store",
    "StoreError",
    "Supervisor",
    "UnknownDocument",
    "UnknownProfile",
    "Verdict",
    "Version",
    "Watch",
    "check_policy",
    "lowest",
]
