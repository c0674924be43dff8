"""The conductor: the rules' safe points and the journal of what they decided."""

from tandem.core.conductor.journal import Entry, Journal
from tandem.core.conductor.supervisor import Supervisor, Watch

__all__ = ["Entry", "Journal", "Supervisor", "Watch"]
