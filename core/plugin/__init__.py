"""Everything that a plugin author imports. What is exported here is public and covered by `API_VERSION`."""

from tandem.core.plugin.cache import Cache, CacheTier, Match, Moment
from tandem.core.plugin.client import Client, ClientMatch
from tandem.core.plugin.decision import Decider, DecisionModel, Narrator, Question, Stage, Turn
from tandem.core.plugin.drafter import Drafter, DraftSession, DraftTree
from tandem.core.plugin.format import AnswerFormat, AnswerParser, CallPart, Format, TextPart
from tandem.core.plugin.hookspecs import KINDS, Kind, hookimpl
from tandem.core.plugin.host import (
    AnswerEnd,
    AnswerEvent,
    CallDelta,
    ContentDelta,
    Host,
    ReasoningDelta,
    RequestError,
    Waiting,
)
from tandem.core.plugin.model import (
    Block,
    Caps,
    Checkpoint,
    Model,
    ModelBuilder,
    ModelError,
    Progress,
    Sequence,
    Tokenizer,
)
from tandem.core.plugin.part import Options, Part, option
from tandem.core.plugin.route import HttpRoute, Routes
from tandem.core.plugin.rule import (
    Action,
    ActionKind,
    BlockEvent,
    FinishEvent,
    RequestEvent,
    Rule,
    SafePoint,
    Supervision,
    Task,
)
from tandem.core.plugin.tools import Tool, allowed_types, is_text, typed
from tandem.core.plugin.version import API_VERSION

__all__ = [
    "API_VERSION",
    "KINDS",
    "Action",
    "ActionKind",
    "AnswerEnd",
    "AnswerEvent",
    "AnswerFormat",
    "AnswerParser",
    "Block",
    "BlockEvent",
    "Cache",
    "CacheTier",
    "CallDelta",
    "CallPart",
    "Caps",
    "Checkpoint",
    "Client",
    "ClientMatch",
    "ContentDelta",
    "Decider",
    "DecisionModel",
    "DraftSession",
    "DraftTree",
    "Drafter",
    "FinishEvent",
    "Format",
    "Host",
    "HttpRoute",
    "Kind",
    "Match",
    "Model",
    "ModelBuilder",
    "ModelError",
    "Moment",
    "Narrator",
    "Options",
    "Part",
    "Progress",
    "Question",
    "ReasoningDelta",
    "RequestError",
    "RequestEvent",
    "Routes",
    "Rule",
    "SafePoint",
    "Sequence",
    "Stage",
    "Supervision",
    "Task",
    "TextPart",
    "Tokenizer",
    "Tool",
    "Turn",
    "Waiting",
    "allowed_types",
    "hookimpl",
    "is_text",
    "option",
    "typed",
]
