"""`tandem verify-exactness`: prove on this checkpoint that drafts change no token."""

from __future__ import annotations

from pathlib import Path

import click

from tandem.api.command.manifests import read_manifest, reported, set_option

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


@click.command("verify-exactness")
@click.argument("manifest", default="default")
@set_option
@click.option("--tokens", default=48, show_default=True, help="How many tokens each run writes.")
@click.option("--tie-nats", type=float, help="The largest lead (nats) that counts as a near tie. [default: 0.125]")
@click.option(
    "--prompts",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with one prompt a line.",
)
def verify_command(
    manifest: str, overrides: tuple[str, ...], tokens: int, tie_nats: float | None, file: Path | None
) -> None:
    """Run prompts with wrong, half-right and the served drafters and compare with plain decoding.

    Every first difference must be a near tie; otherwise the command fails with exit code 1.
    """
    from rich.console import Console
    from rich.table import Table

    from tandem.api.command.progress import progress_bar
    from tandem.core.engine.exactness import TIE_NATS, verify
    from tandem.core.kernel import assemble

    gap = TIE_NATS if tie_nats is None else tie_nats
    console = Console()
    with reported(), progress_bar() as progress:
        platform = assemble(read_manifest(manifest, overrides), progress=progress)
    if platform.model is None:
        raise click.ClickException(f"the manifest `{manifest}` has no model section, so there is nothing to verify")
    texts = [line for line in file.read_text().splitlines() if line.strip()] if file else list(PROMPTS)
    prompts = [platform.model.tokenizer.encode(text) for text in texts]
    table = Table("way", "sampling", "identical", "near ties", "failures", "tokens a round", title=platform.model.name)
    failed = 0
    with console.status("running ...") as status:
        drafters = platform.build("drafters", platform.model)
        for outcome in verify(platform.model, prompts, drafters, max_tokens=tokens):
            status.update(f"{outcome.sampling}: {outcome.way} done ...")
            bad = outcome.failures(gap)
            failed += len(bad)
            table.add_row(
                outcome.way,
                outcome.sampling,
                f"{outcome.identical}/{outcome.prompts}",
                str(len(outcome.differences) - len(bad)),
                ", ".join(f"prompt {d.prompt} token {d.position}: {d.lead:.3f}" for d in bad) or "0",
                f"{outcome.tokens / max(1, outcome.rounds):.2f}",
            )
    platform.close()
    console.print(table)
    if failed:
        console.print(
            f"[red]{failed} differences lead by more than {gap:g} nats: speculation changes tokens here.[/red]"
        )
        raise SystemExit(1)
    console.print(f"Drafts change no token: every difference, if any, is a tie within {gap:g} nats.")
