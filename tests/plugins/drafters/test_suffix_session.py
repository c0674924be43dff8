from __future__ import annotations

import itertools
import os
import random
import stat
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence as Seq
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tandem.core.engine.drafting import FixedCut
from tandem.core.engine.drafts import Drafts
from tandem.core.engine.generation import Generation, Phase
from tandem.core.engine.request import Generate
from tandem.core.engine.round import run_round
from tandem.core.plugin import DraftSession, DraftStart, DraftTree
from tandem.plugins.drafters import suffix
from tandem.plugins.drafters.suffix.layout import documents
from tandem.plugins.drafters.suffix.order import Run
from tandem.plugins.drafters.suffix.session import LONGEST_ORDER, Limits, Recent, SuffixSession
from tandem.plugins.drafters.suffix.store import LEAST, Store
from tandem.plugins.drafters.suffix.vocabulary import vocabulary_hash
from tandem.plugins.drafters.suffix.votes import going_on, spread

VOCABULARY = b"v" * 32
EVERYTHING = Limits(min_order=1, max_depth=4, branch_top_k=99, max_samples=10_000, min_q=0.0)


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store(None, VOCABULARY, 1 << 20)
    yield store
    store.close()


def remembering(store: Store, texts: Seq[Seq[int]]) -> Store:
    for text in texts:
        store.add(text)
    store.settle()
    return store


def propose(store: Store, text: Seq[int], limits: Limits = EVERYTHING, limit: int = 10_000) -> DraftTree | None:
    session = SuffixSession(store, limits, keep=False)
    session.extend(text[:-1])
    return session.propose(text[-1], limit)


def paths_of(tree: DraftTree | None) -> dict[tuple[int, ...], float]:
    paths: list[tuple[int, ...]] = []
    if tree is None:
        return {}
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert len(set(paths)) == len(paths), "a path stands twice"
    return dict(zip(paths, tree.q, strict=True))


def naive(texts: Seq[Seq[int]], text: Seq[int], limits: Limits) -> dict[tuple[int, ...], float]:
    """All paths that followed the longest match, with the product of vote shares and chances of going on."""
    places: list[tuple[int, Seq[int]]] = []
    for one in texts:
        for end in range(1, len(one)):
            length = 0
            while length < min(LONGEST_ORDER, end, len(text)) and one[end - 1 - length] == text[-1 - length]:
                length += 1
            places.append((length, one[end : end + limits.max_depth]))
    best = max((length for length, _ in places), default=0)
    if best < limits.min_order:
        return {}
    voters = [tuple(what) for length, what in places if length == best]
    found: dict[tuple[int, ...], float] = {}
    for path in sorted({voter[:n] for voter in voters for n in range(1, len(voter) + 1)}, key=len):
        above, behind = [sum(v[: len(p)] == p for v in voters) for p in (path[:-1], path)]
        found[path] = found.get(path[:-1], 1.0) * behind / above * (1 - 3 / (best + len(path) + 2) / above**0.25)
    return found


texts_of_few_words = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=50), min_size=1, max_size=6)


@settings(max_examples=100)
@given(texts_of_few_words, st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 5))
def test_the_tree_is_that_of_a_search_through_everything(
    texts: list[list[int]], text: list[int], min_order: int
) -> None:
    store = remembering(Store(None, VOCABULARY, LEAST * 8), texts)
    limits = Limits(min_order, 4, 99, 10_000, 0.0)
    tree = paths_of(propose(store, text, limits))
    store.close()
    expected = naive(texts, text, limits)
    assert tree.keys() == expected.keys()
    assert all(tree[path] == pytest.approx(expected[path]) for path in expected)


@settings(max_examples=60)
@given(
    texts_of_few_words,
    st.lists(st.integers(0, 2), min_size=1, max_size=20),
    st.integers(1, 12),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.1, 0.3]),
)
def test_limits_leave_the_likeliest_nodes(
    texts: list[list[int]], text: list[int], limit: int, branches: int, min_q: float
) -> None:
    store = remembering(Store(None, VOCABULARY, LEAST * 8), texts)
    tree = propose(store, text, Limits(1, 4, branches, 10_000, min_q), limit)
    whole = paths_of(propose(store, text, Limits(1, min(4, limit), 99, 10_000, 0.0)))
    store.close()
    found = paths_of(tree)
    assert len(found) <= limit
    assert all(whole[path] == q >= min_q for path, q in found.items())
    assert all(q <= found.get(path[:-1], 1.0) for path, q in found.items())
    children: dict[tuple[int, ...], int] = {}
    for path in found:
        children[path[:-1]] = children.get(path[:-1], 0) + 1
    assert all(count <= branches for count in children.values())
    if branches == 3 and whole:  # as many as there are tokens
        rest = [q for path, q in whole.items() if path not in found and q >= min_q]
        assert not rest or (len(found) == limit and max(rest) <= min(found.values()))


def test_a_continuation_ends_with_its_document(store: Store) -> None:
    remembering(store, [[1, 2, 3, 4], [5, 6, 7, 8]])
    assert list(paths_of(propose(store, [1, 2]))) == [(3,), (3, 4)]
    assert propose(store, [3, 4]) is None


def test_a_longer_match_wins_over_many_shorter_ones(store: Store) -> None:
    remembering(store, [[9, 1, 2, 3, 50], *[[8, 1, 2, 3, 60]] * 5])
    assert list(paths_of(propose(store, [9, 1, 2, 3]))) == [(50,)]
    assert list(paths_of(propose(store, [7, 1, 2, 3]))) == [(60,), (50,)]


def test_a_match_is_compared_further_than_places_are_sorted(store: Store) -> None:
    common = list(range(100, 120))
    remembering(store, [[1, *common, 50], *[[2, *common, 60]] * 9, [3, *common, 70]])
    tree = propose(store, [1, *common])
    assert list(paths_of(tree)) == [(50,)]
    assert tree is not None
    assert tree.source == "suffix:long"


@pytest.mark.parametrize(
    ("length", "source"), [(3, "short"), (5, "middle"), (8, "middle"), (9, "long"), (31, "long"), (40, "whole")]
)
def test_the_source_says_how_long_the_match_is(store: Store, length: int, source: str) -> None:
    text = list(range(10, 10 + length))
    remembering(store, [[1, *text, 99]])
    tree = propose(store, [2, *text])
    assert tree is not None
    assert tree.source == f"suffix:{source}"


def test_a_sure_continuation_goes_to_the_full_depth(store: Store) -> None:
    remembering(store, [list(range(200))])
    tree = propose(store, list(range(40)), Limits(3, 16, 3, 64, 0.02), 31)
    assert tree is not None
    assert tree.tokens == list(range(40, 56))
    assert tree.parents == list(range(-1, 15))


def test_no_more_places_are_looked_at_than_asked_for(store: Store) -> None:
    remembering(store, [[1, 2, 3, 10 + i] for i in range(100)])
    assert len(paths_of(propose(store, [1, 2, 3], Limits(1, 4, 99, 16, 0.0)))) == 16


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 30))
def test_samples_are_spread_over_everything(counts: list[int], most: int) -> None:
    chosen = spread(counts, most)
    flat = [sum(counts[:group]) + index for group, indices in enumerate(chosen) for index in indices]
    assert all(0 <= index < count for indices, count in zip(chosen, counts, strict=True) for index in indices)
    assert len(flat) == len(set(flat)) == min(most, sum(counts))
    widest = -(-sum(counts) // most) if sum(counts) else 1
    assert all(b - a <= widest for a, b in itertools.pairwise(flat))


def test_a_longer_match_and_more_places_are_likelier_to_go_on() -> None:
    by_order = [going_on(order, 1) for order in range(1, 48)]
    by_voters = [going_on(4, voters) for voters in range(1, 64)]
    for chances in (by_order, by_voters):
        assert chances == sorted(set(chances))
        assert 0 < chances[0] < chances[-1] < 1


@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_an_order_that_is_wrong_proposes_nothing_that_did_not_follow(shuffling: random.Random, min_order: int) -> None:
    texts = [[shuffling.randrange(6) for _ in range(20)] for _ in range(4)]
    store = remembering(Store(None, VOCABULARY, LEAST), texts)
    for run in store.view:
        shuffling.shuffle(places := list(run.places))
        store.view = (Run(run.text, run.start, run.end, memoryview(array("I", places))),)
        for text in texts:
            query = text[:10]
            for path in paths_of(propose(store, query, Limits(min_order, 4, 99, 3, 0.0))):
                words = [*query[-min_order:], *path]
                assert any(words == one[at : at + len(words)] for one in texts for at in range(len(one)))
    store.close()


# ------------------------------------------------------------------------------------------------- what is kept


def session_over(store: Store, prompt: Seq[int], answer: Seq[int], **options: Any) -> None:
    session = SuffixSession(store, EVERYTHING, options.get("keep", True), options.get("recent"))
    session.extend(prompt)
    for start in range(0, len(answer), 3):
        session.extend(answer[start : start + 3])
    session.close()
    store.settle()


def test_the_answer_is_kept_and_the_prompt_is_not(store: Store) -> None:
    session_over(store, range(100), range(200, 220))
    assert store.documents() == [list(range(200, 220))]


def test_nothing_is_kept_of_a_generation_that_says_so(store: Store) -> None:
    recent = Recent()
    session_over(store, range(100), range(200, 220), keep=False)
    session_over(store, range(100), range(200, 220), keep=False, recent=recent)
    session_over(store, range(100), range(300, 320), recent=recent)
    assert store.documents() == [[*range(100), *range(300, 320)]]


def test_a_very_short_answer_is_not_kept(store: Store) -> None:
    session_over(store, range(100), range(7))
    assert store.documents() == []


def test_of_a_prompt_that_goes_on_only_the_new_part_is_kept(store: Store) -> None:
    recent = Recent()
    first, answer, second = list(range(50)), list(range(100, 110)), list(range(200, 230))
    session_over(store, first, answer, recent=recent)
    session_over(store, [*first, *answer, *second], range(300, 310), recent=recent)
    assert store.documents() == [[*first, *answer], [*second, *range(300, 310)]]


def test_a_generation_that_fails_before_its_answer_keeps_nothing(store: Store) -> None:
    SuffixSession(store, EVERYTHING, True, Recent()).close()
    store.settle()
    assert store.documents() == []


def test_a_long_prompt_costs_nothing(store: Store) -> None:
    session = SuffixSession(store, EVERYTHING, keep=True)
    session.extend(range(100_000_000))  # a range is not read but at its end
    assert session.propose(1, 31) is None


# ------------------------------------------------------------------------------------------------------ the part


class Letters:
    vocab_size = 30
    eos_ids = frozenset({0})

    def __init__(self, first: bytes = b"a") -> None:
        self._first = first

    def encode(self, text: str) -> list[int]:
        return [ord(c) - 96 for c in text]

    def token_bytes(self, token: int) -> bytes:
        if token > 27:
            raise IndexError(token)
        return b"" if token == 0 else bytes([self._first[0] + token - 1])


def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Letters | None = None, **given: Any) -> Any:
    monkeypatch.setenv("TANDEM_STATE_DIR", str(tmp_path))
    (part,) = suffix.tandem_drafters()
    options = {name: schema["default"] for name, schema in part.options.items()} | {"max_tokens": 65_536} | given
    return part.build(options, SimpleNamespace(tokenizer=tokenizer or Letters()))  # type: ignore[arg-type]


def answered(opener: Callable[[DraftStart], DraftSession], answer: Seq[int], keep_text: bool = True) -> DraftSession:
    session = opener(DraftStart(SimpleNamespace(length=3), keep_text))  # type: ignore[arg-type]
    session.extend([1, 2, 3])
    session.extend(answer)
    session.close()
    store = session._store  # type: ignore[attr-defined]
    store.settle()
    return session


def test_the_part_has_a_default_and_a_sentence_for_each_option() -> None:
    (part,) = suffix.tandem_drafters()
    assert part.name == "suffix"
    assert all(option["description"].endswith(".") and "default" in option for option in part.options.values())
    assert part.options["max_tokens"]["default"] * 4 == 192 * 2**20


def test_a_new_server_drafts_what_an_earlier_one_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opener = build(tmp_path, monkeypatch)
    answered(opener, range(5, 25))
    secret = answered(opener, [26, 25, 24, 23, 22, 21, 20, 19, 18, 17], keep_text=False)
    secret._store.close()  # type: ignore[attr-defined]

    opener = build(tmp_path, monkeypatch)
    session = answered(opener, [])
    session.extend([9, 10])
    tree = session.propose(11, 4)
    assert tree is not None
    assert tree.tokens == [12, 13, 14, 15]
    session.extend([26, 25])
    assert session.propose(24, 4) is None
    session._store.close()  # type: ignore[attr-defined]


def test_each_tokenizer_has_a_store_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = answered(build(tmp_path, monkeypatch), range(5, 25))
    first._store.close()  # type: ignore[attr-defined]
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with caplog.at_level("INFO", logger="tandem.drafters.suffix"):
        other = answered(build(tmp_path, monkeypatch, Letters(b"b")), [])
    assert other._store.documents() == []  # type: ignore[attr-defined]
    other._store.close()  # type: ignore[attr-defined]
    assert {file: file.read_bytes() for file in before} == before
    assert f"left alone: {tmp_path / 'suffix' / vocabulary_hash(Letters()).hex()[:16]}" in caplog.text


def test_the_folders_are_their_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "suffix" / vocabulary_hash(Letters()).hex()[:16]).mkdir(mode=0o755, parents=True)
    session = answered(build(tmp_path, monkeypatch), range(20))
    folders = [tmp_path / "suffix", *(path for path in (tmp_path / "suffix").rglob("*") if path.is_dir())]
    assert len(folders) == 2
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    session._store.close()  # type: ignore[attr-defined]


def test_without_persistence_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = answered(build(tmp_path, monkeypatch, persist=False), range(20))
    assert session._store.documents() == [list(range(20))]  # type: ignore[attr-defined]
    assert not list(tmp_path.rglob("*"))
    session._store.close()  # type: ignore[attr-defined]


def test_a_state_directory_that_can_not_be_made_leaves_the_store_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    session = answered(build(tmp_path / "file", monkeypatch), range(20))
    assert session._store.documents() == [list(range(20))]  # type: ignore[attr-defined]
    assert "lives in memory only" in caplog.text
    session._store.close()  # type: ignore[attr-defined]


def test_the_store_is_closed_when_its_server_lets_go_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opener = build(tmp_path, monkeypatch)
    session = answered(opener, range(20))
    store = session._store  # type: ignore[attr-defined]
    assert store._thread.is_alive()
    del opener
    assert not store._thread.is_alive()


def test_what_was_written_last_is_on_the_disk_when_the_process_ends(tmp_path: Path) -> None:
    """And when it is killed, all but what was still on its way."""
    code = """
import os, signal, sys
from types import SimpleNamespace
from tandem.core.plugin import DraftStart
from tandem.plugins.drafters import suffix

class Letters:
    vocab_size = 5
    def token_bytes(self, token):
        return bytes([65 + token])

(part,) = suffix.tandem_drafters()
options = {name: schema["default"] for name, schema in part.options.items()}
opener = part.build(options, SimpleNamespace(tokenizer=Letters()))
for i in range(5):
    session = opener(DraftStart(None))
    session.extend([1])
    session.extend([i] * 10)
    session.close()
if sys.argv[1] == "kill":
    session._store.settle()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    for how in ("end", "kill"):
        state = tmp_path / how
        subprocess.run(
            [sys.executable, "-c", code, how], env={**os.environ, "TANDEM_STATE_DIR": str(state)}, timeout=60
        )
        (file,) = state.rglob("*.log")
        assert documents(file.read_bytes()) == [[i] * 10 for i in range(5)]


def test_hashes_tell_vocabularies_apart() -> None:
    assert vocabulary_hash(Letters()) == vocabulary_hash(Letters())
    assert vocabulary_hash(Letters()) != vocabulary_hash(Letters(b"b"))
    longer = Letters()
    longer.vocab_size = 31
    assert vocabulary_hash(longer) != vocabulary_hash(Letters())


# ------------------------------------------------------------------------------------------------- a whole answer


def test_an_answer_told_again_takes_fewer_passes_and_is_the_same_text(store: Store) -> None:
    from tandem.plugins.models.scripted import tandem_models

    (builder,) = tandem_models()
    reply = (
        "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness"
    )
    options = {name: schema.get("default") for name, schema in builder.options.items()} | {"reply": reply}
    model = builder.build(None, options, lambda what, done, total: None)
    prompt = model.tokenizer.encode("<|user|>Say it.<|end|><|assistant|>")

    def run(drafts: Drafts) -> Generation:
        generation = Generation(Generate(prompt, 200), model, drafts=drafts, chooser=FixedCut(), own_draft=False)
        while generation.phase is not Phase.DONE:
            run_round(model, [generation])
        return generation

    def failed(name: str, reason: str) -> None:
        raise AssertionError(reason)

    limits = Limits(3, 16, 3, 64, 0.02)
    opener = [("suffix", lambda start: SuffixSession(store, limits, start.keep_text))]
    plain = run(Drafts())
    first = run(Drafts(opener, failed))
    store.settle()
    again = run(Drafts(opener, failed))
    assert plain.output == first.output == again.output
    assert bytes(plain.output).decode() == reply
    assert first.stats.draft_tokens == 0
    assert again.stats.draft_accepted > len(reply) * 0.8
    assert again.stats.rounds < plain.stats.rounds / 4


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files where /proc shows them")
def test_closing_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        session = answered(build(tmp_path, monkeypatch), range(20))
        session._store.close()  # type: ignore[attr-defined]
        del session
    assert len(os.listdir("/proc/self/fd")) <= before + 1
