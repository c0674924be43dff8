"""The rule `reasoning_history`, calibrated: what may be said again, and what is said once too often.

    python benchmarks/reasoning_history.py [--sweep] [--files 60] [--seed 1]

* `alone`: healthy texts (those of `reasoning_loops.py`) as reasoning, with nothing before them.
* The other healthy ones have a source of 400 to 800 words in the conversation, a text or code of this machine: it is
  quoted while it is talked about; quoted and then written out once with changes, in 2 or in 10 of 100 words; quoted
  though two messages have it; or an earlier reasoning has quoted it.
* The loops: a third and further passes over the source, with changes in so many of 100 words; the same thoughts as in
  three earlier turns, with changes; and pieces of 128 to 400 tokens over and over with changed words, which
  `reasoning_loop` finds late or never.

`closed` counts the reasonings that the rule closes; `words` is how many words of the loop were written by then (the
median). The last table says what the rules about reasoning cost. `--sweep` makes the other tables over a grid of the
rule's parameters.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import reasoning_loops
from reasoning_loops import found_texts, made_texts, show, swaps, tokenizer, unit

REMARKS = (
    "Let me look at this part once more before I say anything about it.",
    "Here the names are not what I expected from the question.",
    "This is where the change has to go, as far as I can see.",
    "I wonder whether anybody else depends on it.",
    "That is clear enough, so what follows matters more.",
    "Now the next part.",
)


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    messages: list[dict[str, Any]]
    reasoning: str
    begins: int
    """Characters before the loop; all of them when there is none."""


def changed(text: str, percent: int, chance: random.Random) -> str:
    """So many of 100 words are others."""
    words = re.findall(r"\w+", text) or ["x"]
    return re.sub(r"\w+", lambda m: chance.choice(words) + "_" if chance.random() * 100 < percent else m[0], text)


def talked_about(text: str, chance: random.Random) -> str:
    """The text, with a remark between its parts."""
    lines = text.splitlines()
    parts = ["\n".join(lines[i : i + 8]) for i in range(0, len(lines), 8)]
    return "\n".join(f"{chance.choice(REMARKS)}\n{part}" for part in parts)


def healthy(sources: Sequence[str], alone: Sequence[str], chance: random.Random) -> Iterator[Case]:
    for text in alone:
        yield Case("alone", [], text, len(text))
    for source in sources:
        tool: dict[str, Any] = {"role": "tool", "content": source}
        quoted = talked_about(source, chance)
        thought = {"role": "assistant", "content": "I looked at it.", "reasoning_content": quoted}
        for kind, messages, text in (
            ("quoted", [tool], quoted),
            ("quoted, in two messages", [tool, tool], quoted),
            ("quoted, and in an earlier turn", [tool, thought], quoted),
            ("quoted and edited, 2 %", [tool], f"{quoted}\nSo I write:\n{changed(source, 2, chance)}"),
            ("quoted and edited, 10 %", [tool], f"{quoted}\nSo I write:\n{changed(source, 10, chance)}"),
        ):
            yield Case(kind, messages, text, len(text))


def loops(sources: Sequence[str], chance: random.Random) -> Iterator[Case]:
    encode = tokenizer().encode
    for source in sources:
        tool: dict[str, Any] = {"role": "tool", "content": source}
        for percent in (0, 2, 5, 10):
            passes = [changed(source, percent, chance) for _ in range(5)]
            head = "\n".join(passes[:2])
            yield Case(f"third pass, {percent} %", [tool], head + "\n" + "\n".join(passes[2:]), len(head))
            thoughts = [
                {"role": "assistant", "content": f"Step {n}.", "reasoning_content": changed(source, percent, chance)}
                for n in range(3)
            ]
            yield Case(f"thoughts of three turns, {percent} %", thoughts, changed(source, percent, chance), 0)
    for length, percent, _ in itertools.product((128, 256, 400), (5, 10, 20), range(8)):
        piece = unit(chance.choice(sources), length, encode, chance)
        copies = itertools.islice(swaps(percent / 100)(piece, chance), 24)
        yield Case(f"piece of {length} tokens, {percent} %", [], "".join(copies), 0)


def course(case: Case, params: dict[str, Any], block: int = 24) -> tuple[float, float | None]:
    """(the highest share of old words, words of the loop when it reached the limit)."""
    from tandem.plugins.rules.reasoning_history import History, tandem_rules
    from tandem.testing.rules import Stand, request

    stand = Stand(tandem_rules()[0], event=request(case.messages), **params)
    history, highest, words = History(stand.request, stand.params), 0.0, None
    for start in range(0, len(case.reasoning), block):
        if history.read(case.reasoning[start : start + block], start // 4):
            words = float(len(case.reasoning[case.begins : start + block].split()))
        highest = max(highest, history.share)
    return highest, words


def table(cases: Sequence[Case], params: dict[str, Any]) -> None:
    rows = []
    for kind in dict.fromkeys(case.kind for case in cases):
        courses = [course(case, params) for case in cases if case.kind == kind]
        words = [place for _, place in courses if place is not None]
        highest = sorted(share for share, _ in courses)
        rows.append(
            [
                kind,
                str(len(courses)),
                str(len(words)),
                f"{statistics.median(words):.0f}" if words else "-",
                f"{statistics.median(highest):.2f}",
                f"{highest[-1]:.2f}",
            ]
        )
    show(["reasoning", "cases", "closed", "words", "share: median", "highest"], rows)


def table_of_costs() -> None:
    """CPU time of this thread, so that what else the machine does counts little."""
    from tandem.core.plugin import BlockEvent
    from tandem.plugins.rules import reasoning_history, reasoning_length, reasoning_loop
    from tandem.plugins.rules.reasoning_history.conversation import Conversation
    from tandem.testing.rules import Stand, request

    text = "\n".join(reasoning_loops.manual())
    rows = []
    for size in (100_000, 400_000):
        conversation, slices = Conversation([{"role": "user", "content": text[:size]}], 4, size), []
        while not conversation.complete:
            slices.append(spent(conversation.step))
        most, all_ = max(slices) * 1e3, sum(slices) * 1e3
        rows.append([f"a conversation of {size:,} characters", f"{all_:.1f} ms", f"{most:.2f} ms a slice at most"])
    for module in (reasoning_loop, reasoning_history, reasoning_length):
        for tokens in (1, 8):
            stand, each = Stand(module.tandem_rules()[0], event=request()), []
            for start in range(0, 200_000, 4 * tokens):
                event = BlockEvent(
                    inside=True,
                    new_ids=[start * 7919 % 49_999 + place for place in range(tokens)],
                    new_reasoning=text[start : start + 4 * tokens],
                    reasoning_tokens=start // 4,
                )
                each.append(spent(stand.check, event) * 1e6)
            mean, high = statistics.fmean(each), sorted(each)[len(each) * 99 // 100]
            name = module.__name__.rpartition(".")[2]
            rows.append([f"`{name}`, a block of {tokens}", f"{mean:.1f} us", f"{high:.0f} us for the dearest of 100"])
    show(["cost", "all, or the mean", ""], rows)


def spent(work: Callable[..., Any], *given: Any) -> float:
    start = time.thread_time()
    work(*given)
    return time.thread_time() - start


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--files", type=int, default=60, help="files of each kind of text")
    reader.add_argument("--seed", type=int, default=1)
    reader.add_argument("--sweep", action="store_true")
    chosen = reader.parse_args()
    chance = random.Random(chosen.seed)
    found = list(found_texts(chosen.files, chance))
    texts = [text[:30_000] for kind, text in found if kind != "licence"]
    alone = [*chance.sample(texts, min(200, len(texts))), *(text for _, text in made_texts(chance))]
    sources = []
    for text in chance.sample(texts, len(texts)):
        lines = text.splitlines()
        words = list(itertools.accumulate(len(re.findall(r"[^\W\d]{2,}", line)) for line in lines))
        size = chance.randrange(400, 800)
        if words and words[-1] > size and max(map(len, lines)) < 300:
            sources.append("\n".join(line for line, count in zip(lines, words, strict=True) if count <= size))
    sources = sources[:40]
    start = time.perf_counter()
    good, bad = list(healthy(sources, alone, chance)), list(loops(sources, chance))
    shapes: list[dict[str, Any]] = [{}]
    if chosen.sweep:
        shapes = [
            {"order": order, "stretch": stretch, "passes": passes}
            for order, stretch, passes in itertools.product((3, 4, 6), (192, 256, 384), (2, 3))
        ]
    for params in shapes:
        print(f"\n{params or 'as shipped'}")
        table(good, params)
        table(bad, params)
    table_of_costs()
    print(f"\n{time.perf_counter() - start:.0f} s; tokens are those of {reasoning_loops.checkpoint().name}")


if __name__ == "__main__":
    main()
