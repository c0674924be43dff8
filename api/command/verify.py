"""`tandem verify-exactness`: prove on this checkpoint that drafts change no token."""

from __future__ import annotations

import logging
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tandem.api.command.manifests import read_manifest, reported, set_option

if TYPE_CHECKING:
    from rich.table import Table

    from tandem.core.engine.exactness import Outcome

PROMPTS = (
    "The history of the lighthouse begins long before electric light. The first keepers",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    'The records, one JSON object a line:\n{"name": "Ada", "year": 1815}\n{"name": "Alan", "year": 1912}\n{"name":',
    "Shopping list:\n- two apples\n- two pears\n- two plums\n- two apples\n- two pears\n-",
    "Question: What is the capital of France?\nAnswer: Paris.\nQuestion: What is the capital of Italy?\nAnswer:",
    "Repeat after me: the quick brown fox jumps over the lazy dog. The quick brown fox",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "Dear neighbours, we would like to invite you all to the garden on Sunday, where",
)


KINDS = ("drafters", "choosers")


@click.command("verify-exactness")
@click.argument("manifest", default="default")
@set_option
@click.option("--tokens", default=24, show_default=True, type=click.IntRange(min=1), help="How many each run writes.")
@click.option(
    "--tie-nats",
    type=click.FloatRange(min=0),
    help="How far logits may be moved for a difference to be a near tie. [default: 0.125]",
)
@click.option(
    "--logprob-nats",
    type=click.FloatRange(min=0),
    help="How far a log-probability may be from plain decoding's. [default: 0.5]",
)
@click.option(
    "--prompts",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with one prompt a line.",
)
@click.option("--way", "ways", multiple=True, metavar="NAME", help="Run this way only. May be given several times.")
@click.option("--case", "names", multiple=True, metavar="NAME", help="Ask this case only. May be given several times.")
def verify_command(
    manifest: str,
    overrides: tuple[str, ...],
    tokens: int,
    tie_nats: float | None,
    logprob_nats: float | None,
    file: Path | None,
    ways: tuple[str, ...],
    names: tuple[str, ...],
) -> None:
    """Run prompts with wrong, half-right and the served drafters and compare with plain decoding.

    Every first difference must be a near tie, and every log-probability that of plain decoding; otherwise the
    command fails with exit code 1.
    """
    import torch
    from rich.console import Console

    from tandem.api.command.progress import progress_bar
    from tandem.core.engine.exactness import LOGPROB_NATS, SERVED, TAGS, TIE_NATS, default_cases, verify, ways_of
    from tandem.core.engine.notation import notation_of
    from tandem.core.kernel import assemble

    log = logging.getLogger("tandem")
    click.get_current_context().call_on_close(partial(log.setLevel, log.level))
    log.setLevel(logging.CRITICAL)  # what goes wrong is in the table
    gap = TIE_NATS if tie_nats is None else tie_nats
    off = LOGPROB_NATS if logprob_nats is None else logprob_nats
    console = Console()
    with reported(), progress_bar() as progress:
        platform = assemble(read_manifest(manifest, overrides), progress=progress)
    model = platform.model
    if model is None:
        raise click.ClickException(f"the manifest `{manifest}` has no model section, so there is nothing to verify")
    if threads := platform.manifest.section("server")["torch_threads"]:
        torch.set_num_threads(threads)
    texts = [line for line in file.read_text("utf-8").splitlines() if line.strip()] if file else list(PROMPTS)
    prompts = [model.tokenizer.encode(text) for text in texts]
    if not prompts or not all(prompts):
        raise click.ClickException("there is nothing to run: the file has no line with a token in it")
    with reported():
        drafters = platform.build("drafters", model)
        choosers = platform.build("choosers", model) if drafters and (not ways or SERVED in ways) else []
    choosing = choosers[0][1] if choosers else None
    cases = {case.name: case for case in default_cases(model.tokenizer)}
    _check_names("--case", names, list(cases))
    known = [way.name for way in ways_of(model, drafters, choosing)]
    if drafters and SERVED not in known and platform.active("choosers"):
        known.append(SERVED)  # its chooser measures for seconds, and is not built to be run under another name
    _check_names("--way", ways, known)
    tags = notation_of(platform, model).tags or TAGS
    console.print(f"{model.name}: {len(prompts)} prompts, {tokens} tokens each", markup=False)
    failed: list[str] = []
    with console.status("running ...") as status:
        outcomes = verify(
            model,
            prompts,
            drafters,
            choosing=choosing,
            max_tokens=tokens,
            cases=[case for name, case in cases.items() if not names or name in names],
            only=ways or None,
            tags=tags,
        )
        for case, group in groupby(outcomes, key=lambda outcome: outcome.case):
            table = _table(case)
            for outcome in group:
                status.update(f"{case}: {outcome.way} done ...")
                failed += _add(table, outcome, gap, off)
            console.print(table)
    left_out = [record for record in platform.records() if record["state"] == "failed" and record["kind"] in KINDS]
    platform.close()
    for record in left_out:
        console.print(
            f"{record['kind']}.{record['name']} is left out: {record['reason']}", markup=False, soft_wrap=True
        )
    for line in failed:
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    if failed:
        raise SystemExit(1)
    console.print(f"Drafts change no token: every difference, if any, is a tie within {gap:g} nats.")


def _check_names(option: str, given: tuple[str, ...], known: list[str]) -> None:
    for name in given:
        if name not in known:
            raise click.ClickException(f"{option} {name!r} is not known here; there are: {', '.join(map(repr, known))}")


def _table(case: str) -> Table:
    from rich.table import Table

    table = Table(title=f"\n{case}", box=None, header_style="bold", title_justify="left", title_style="bold")
    table.add_column("way", min_width=16)
    for heading in ("identical", "near ties", "tokens a round", "accepted", "drift, nats"):
        table.add_column(heading, justify="right")
    return table


def _add(table: Table, outcome: Outcome, gap: float, off: float) -> list[str]:
    """A row of the table, and a line for each failure."""
    bad = outcome.failures(gap)
    passed = outcome.passed(gap, off)
    table.add_row(
        outcome.way,
        f"{outcome.identical}/{outcome.prompts}",
        str(len(outcome.differences) - len(bad)),
        f"{outcome.tokens / max(1, outcome.rounds):.2f}",
        f"{outcome.accepted}/{outcome.drafted}" if outcome.drafted else "-",
        "-" if outcome.drift is None else f"{outcome.drift:.1e}",
        style=None if passed else "red",
    )
    head = f"{outcome.case}, {outcome.way}: "
    lines = [
        f"{head}prompt {d.prompt} parts from plain decoding at token {d.position}, {d.nats:.3f} nats away" for d in bad
    ]
    lines += [head + fault for fault in outcome.faults]
    if outcome.drift is not None and outcome.drift > off:
        lines.append(f"{head}a log-probability is {outcome.drift:.3f} nats off")
    return lines
