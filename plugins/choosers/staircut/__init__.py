"""StairCut: draft trees are merged, and cut at the node count that brings the most tokens a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tandem.core.plugin import Chooser, Choosing, Model, Options, TreeChooser, hookimpl

if TYPE_CHECKING:
    from tandem.plugins.choosers.staircut.chooser import StairCut

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Verifies as many drafted nodes as bring the most tokens a second, at prices measured on this machine.
"""


class Shared:
    """One StairCut for all generations."""

    def __init__(self, chooser: StairCut) -> None:
        self._chooser = chooser

    def open(self) -> TreeChooser:
        return self._chooser

    def report(self) -> Mapping[str, Any]:
        return {"verify_prices_ms": self._chooser.prices.report()}

    def close(self) -> None:
        return


def build(options: Options, model: Model) -> Choosing:
    """Measure the prices."""
    from tandem.plugins.choosers.staircut.chooser import StairCut
    from tandem.plugins.choosers.staircut.prices import Prices

    return Shared(StairCut(Prices.measured(model)))


@hookimpl
def tandem_choosers() -> list[Chooser]:
    return [Chooser(name="staircut", doc=DOC, build=build)]
