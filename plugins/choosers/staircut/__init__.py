"""StairCut: draft trees are merged, and cut at the node count that brings the most tokens a second."""

from __future__ import annotations

from tandem.core.plugin import Chooser, Choosing, Model, Options, hookimpl, option

TANDEM_API = ">=0.2,<0.3"

DOC = """\
Verifies as many drafted nodes as bring the most tokens a second, at prices measured on this machine.

Every count of nodes is tried, of each drafter's tree and of all merged, and the one with the most expected tokens for
the time of its pass is verified; where none beats a plain step, nothing is. What a pass costs is measured at start by
its number of rows, learned from every later pass, and kept in a file for the next start. How far each drafter's
probabilities can be trusted is learned from what the model accepted. A drafter that costs more time than it saves is
asked only rarely.
"""


def build(options: Options, model: Model) -> Choosing:
    """Read the prices, or measure them."""
    from tandem.plugins.choosers.staircut.shared import prepare

    return prepare(options, model)


@hookimpl
def tandem_choosers() -> list[Chooser]:
    return [
        Chooser(
            name="staircut",
            doc=DOC,
            build=build,
            options={
                "max_nodes": option(
                    "integer", "The most drafted nodes that one pass verifies.", 31, minimum=1, maximum=31
                ),
                "margin": option(
                    "number",
                    "How much faster than a plain step a drafted round must promise to be, as a share.",
                    0.02,
                    minimum=0,
                    maximum=1,
                ),
                "exploration": option(
                    "number",
                    "The share of decoding time that each drafter and each source may cost for being tried although it"
                    " does not seem to pay; 0 gives up for good what was wrong once.",
                    0.005,
                    minimum=0,
                    maximum=0.5,
                ),
                "memory": option(
                    "integer",
                    "Verified steps of one source and band of probability after which older ones count half.",
                    1000,
                    minimum=10,
                ),
                "measure_s": option(
                    "number", "About how many seconds the measuring of passes at start may take.", 2.0, minimum=0
                ),
                "remeasure": option(
                    "boolean", "Measure at start even where the price file fits this machine and model.", False
                ),
                "price_file": option(
                    ["string", "null"],
                    "Where prices are kept: a path, `auto` for a file in the state directory named after machine and"
                    " model, null for nowhere.",
                    "auto",
                    minLength=1,
                ),
            },
        )
    ]
