"""The parts of the packages by themselves, against simple oracles; their own tests run in `test_packages.py`."""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from tandem.core.engine.prompt import Prompt
from tandem.core.plugin import Block, CallPart, DraftTree, Moment, Question, TextPart, Tool, Turn
from tandem.core.plugin.part import with_defaults

HERE = Path(__file__).parent


def module(name: str) -> ModuleType:
    path = HERE / f"tandem-{name.replace('_', '-')}" / f"tandem_{name}.py"
    spec = importlib.util.spec_from_file_location(f"tandem_{name}_alone", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


angle_json, bigram, keywords = module("angle_json"), module("bigram"), module("keywords")
elastic = module("elastic")
parrot, prefix_memory, wordcount = module("parrot"), module("prefix_memory"), module("wordcount")
row_int8 = module("row_int8")

tokens = st.lists(st.integers(0, 3), max_size=12)
texts = st.text(max_size=30)


# ------------------------------------------------------------------------------------------------------- format

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts | st.sampled_from(["</call>", '"}}</call>', "<call>", "\\"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def parsed(pieces: Sequence[str], cut: bool = False) -> tuple[str, list[tuple[str, Any]]]:
    """Text and calls of an answer that comes in pieces."""
    parser = angle_json.Parser()
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.end(cut)
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    calls = [part for part in parts if isinstance(part, CallPart)]
    assert [call.index for call in calls] == list(range(len(calls)))
    assert all(call.done for call in calls)
    return text, [(call.name, json.loads(call.arguments)) for call in calls]


@given(st.lists(st.tuples(texts, st.dictionaries(texts, json_values, max_size=3)), max_size=3), st.integers(1, 9))
def test_calls_come_back_whatever_their_arguments_hold(calls, size):
    answer = "".join(f"so: {angle_json.TaggedJson().render(*call)}" for call in calls)
    pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
    assert parsed(pieces) == ("so: " * len(calls), calls)


WRITTEN = ["<call>", "</call>", '{"name": "a"}', '{"name": 1}', "{", "}", '"', "\\", " ", "text", "<ca", "[]"]


@given(st.lists(st.sampled_from(WRITTEN), max_size=10), st.integers(1, 9))
def test_how_an_answer_is_split_changes_nothing_and_what_is_no_call_stays_text(words, size):
    answer = "".join(words)
    text, calls = parsed([answer])
    assert parsed([answer[start : start + size] for start in range(0, len(answer), size)]) == (text, calls)
    assert all(call == ("a", {}) for call in calls)
    if not calls:
        assert text == answer


def test_a_call_that_the_token_limit_cut_is_not_shown_as_text():
    answer = 'Wait. <call>{"name": "write", "arguments": {"text": "very lo'
    assert parsed([answer], cut=True) == ("Wait. ", [])
    assert parsed([answer], cut=False) == (answer, [])


def test_the_grammar_takes_the_offered_calls_and_no_others():
    import llguidance

    schema = {"type": "object", "properties": {"q": {"$ref": "#/$defs/t"}}, "$defs": {"t": {"type": "string"}}}
    notation = angle_json.TaggedJson()
    tools = [Tool("look", parameters=schema), Tool("go")]
    tokenizer = llguidance.LLTokenizer("byte")

    def takes(text: str, parallel: bool) -> bool:
        grammar = llguidance.LLMatcher.grammar_from_lark(notation.grammar(tools, parallel))
        matcher = llguidance.LLMatcher(tokenizer, grammar)
        data = list(text.encode())
        return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()

    look, go = notation.render("look", {"q": "é </call>"}), notation.render("go", {"far": True})
    assert takes(look, False)
    assert takes(look + go, True)
    assert not takes(look + go, False)
    assert not takes(notation.render("look", {"q": 1}), True)
    assert not takes(notation.render("stay", {}), True)
    assert not takes("Let me look.", True)


# ------------------------------------------------------------------------------------------------------ drafter


@given(tokens, st.integers(0, 3), st.integers(1, 10), st.floats(0, 1))
def test_a_draft_follows_the_most_frequent_pairs_and_never_grows_likelier(text, root, limit, min_q):
    pairs = bigram.Pairs(min_q)
    for start in range(0, len(text), 5):
        pairs.extend(text[start : start + 5])
    tree = pairs.propose(root, limit)
    if tree is None:
        return
    assert 1 <= len(tree) <= limit
    assert tree.parents == list(range(-1, len(tree) - 1))
    assert all(later <= earlier for earlier, later in zip([1.0, *tree.q], tree.q, strict=False))
    assert min(tree.q) >= min_q
    for before, after in zip([root, *tree.tokens], tree.tokens, strict=False):
        followers = [b for a, b in itertools.pairwise(text) if a == before]
        assert followers.count(after) == max(followers.count(other) for other in followers)


# ------------------------------------------------------------------------------------------------- quantization


@given(rows=st.integers(1, 4), out=st.integers(1, 5), columns=st.integers(1, 6), seed=st.integers(0, 2**31))
def test_a_packed_product_is_that_of_the_stored_codes_and_scales(rows, out, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-128, 128, (out, columns), dtype=torch.int8, generator=generator)
    scales = torch.rand(out, generator=generator)
    scheme = row_int8.open_scheme({}, {"quant_method": "row_int8"})
    stored = {"a.weight": codes, "a.weight_scale": scales}
    assert {name: tuple(value.shape) for name, value in stored.items()} == scheme.tensors("a", (out, columns))
    matrix = scheme.pack("a", (out, columns), stored.__getitem__, torch.device("cpu"))
    x = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    for row, got in zip(x.tolist(), matrix(x).tolist(), strict=True):
        for code, scale, value in zip(codes.tolist(), scales.tolist(), got, strict=True):
            assert value == pytest.approx(scale * sum(a * b for a, b in zip(row, code, strict=True)), abs=1e-9)


# ------------------------------------------------------------------------------------------------------ chooser


@given(st.integers(1, 31), st.lists(st.integers(0, 31), max_size=30))
def test_the_width_stays_within_bounds_and_what_is_verified_is_the_likeliest(most, rights):
    shared = elastic.Elastic(most)
    chooser = shared.open()
    chain = DraftTree(list(range(31)), list(range(-1, 30)), [0.9**depth for depth in range(1, 32)], "c")
    other = DraftTree([99], [-1], [0.01], "o")
    for right in rights:
        tree = chooser.choose([chain, other], context=5, others=0)
        assert 1 <= len(tree) <= most
        assert tree.tokens == list(range(len(tree)))
        chooser.learn(tree, range(min(right, len(tree))))
    assert shared.accepted <= shared.verified


# -------------------------------------------------------------------------------------------------------- cache


class ListSequence:
    """A sequence that is its tokens, a thousand bytes each."""

    def __init__(self, text: Sequence[int] = ()) -> None:
        self.text = list(text)

    @property
    def length(self) -> int:
        return len(self.text)

    @property
    def nbytes(self) -> int:
        return 1000 * len(self.text)

    def snapshot(self) -> list[int]:
        return list(self.text)

    def restore(self, snapshot: list[int]) -> None:
        self.text = list(snapshot)

    def trim(self, length: int) -> None:
        del self.text[length:]


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count


@given(st.lists(tokens.filter(len), max_size=10), tokens, st.integers(1, 30), st.booleans())
def test_the_tier_gives_back_the_longest_beginning_it_holds_within_its_budget(offered, prompt, room, trim):
    tier = prefix_memory.Prompts(budget=1000 * room, trim=trim, grid=1)
    for text in offered:
        tier.offer(Moment.GRID, text, ListSequence(text))
        tier.offer(Moment.PROMPT_END, text, ListSequence(text))
        assert tier.check() == []
        assert tier.stats()["bytes"] <= 1000 * room
    held = [list(entry) for entry in tier.entries]
    assert all(text in offered for text in held)
    usable = [shared(text, prompt) for text in held if trim or shared(text, prompt) == len(text)]
    match = tier.lookup(prompt)
    assert (match.length if match else 0) == max(usable, default=0)
    if match:
        sequence = tier.resume(match, ListSequence)
        assert sequence.text == prompt[: match.length]
        tier.clear()
        assert tier.resume(match, ListSequence) is None


def test_the_least_recently_used_prompt_is_dropped_first():
    tier = prefix_memory.Prompts(budget=2000, trim=True, grid=1)
    for text in ([1], [2]):
        tier.offer(Moment.PROMPT_END, text, ListSequence(text))
    assert tier.resume(tier.lookup([1]), ListSequence)
    tier.offer(Moment.PROMPT_END, [3], ListSequence([3]))
    assert list(tier.entries) == [(1,), (3,)]
    assert tier.shed(1) == 1000
    assert list(tier.entries) == [(3,)]


def test_a_model_with_a_grid_is_kept_at_its_lines_only():
    tier = prefix_memory.Prompts(budget=10**6, trim=False, grid=4)
    for length in (3, 4, 6, 8):
        tier.offer(Moment.GRID, list(range(length)), ListSequence(range(length)))
        tier.offer(Moment.PROMPT_END, list(range(length)), ListSequence(range(length)))
    assert [len(entry) for entry in tier.entries] == [4, 8]


# -------------------------------------------------------------------------------------------------------- model


def say(model, messages) -> str:
    """The greedy answer, one token a step, with a wrong sibling beside each."""
    ids = Prompt(model).chat(messages)
    sequence, answer = model.new_sequence(10_000), []
    (rows,) = model.forward([Block(sequence, ids, logits=[len(ids) - 1])])
    sequence.commit(range(len(ids)))
    token = int(rows[0].argmax())
    while token not in model.tokenizer.eos_ids:
        answer.append(token)
        (rows,) = model.forward([Block(sequence, [token ^ 1, token], parents=[-1, -1], logits=[1])])
        sequence.commit([1])
        token = int(rows[0].argmax())
    return b"".join(model.tokenizer.token_bytes(token) for token in answer).decode()


@given(texts.filter(lambda text: text.isprintable()))
def test_the_parrot_says_the_last_user_message_and_no_other(text):
    earlier = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "second"}]
    model = parrot.Model(shout=False)
    assert say(model, [*earlier, {"role": "user", "content": text}]) == text
    assert say(model, [{"role": "system", "content": "be brief"}]) == ""


@given(st.text(alphabet="ab<|>enduser", max_size=40))
def test_every_text_and_its_marks_are_encoded_once(text):
    tokenizer = parrot.Bytes()
    names = {number: mark for mark, number in parrot.MARKS.items()}
    pieces = [names[token].encode() if token in names else bytes([token]) for token in tokenizer.encode(text)]
    assert b"".join(pieces).decode() == text


def test_the_parrots_sequence_can_be_cut_copied_and_brought_back():
    model = parrot.Model(shout=True)
    sequence = model.new_sequence(100)
    model.forward([Block(sequence, [1, 2, 3, 4], parents=[-1, 0, 0, 2])])
    sequence.commit([0, 2, 3])
    assert sequence.committed == [1, 3, 4]
    snapshot = sequence.snapshot()
    sequence.trim(1)
    assert sequence.length == 1
    with pytest.raises(ValueError, match="can't trim 1 rows to 2"):
        sequence.trim(2)
    sequence.restore(snapshot)
    assert sequence.committed == [1, 3, 4]
    with pytest.raises(IndexError):
        model.tokenizer.token_bytes(260)


# ------------------------------------------------------------------------------------------- stage and decider

classes = st.lists(st.sampled_from(["code", "writing", "other"]), min_size=1, unique=True)


@given(st.lists(st.sampled_from(["bug", "poem", "tree", "Python"])), classes)
def test_a_stage_answers_with_a_whole_distribution_or_not_at_all(words, names):
    (stage,) = keywords.tandem_stages()
    classify = stage.build(with_defaults(stage.options, {}), None)
    content = [{"type": "text", "text": " ".join(words)}]
    answer = classify(Turn(({"role": "user", "content": content},), tuple(names)))
    known = {"bug": "code", "Python": "code", "poem": "writing"}
    if not any(known.get(word) in names for word in words):
        assert answer is None
    else:
        assert set(answer) == set(names)
        assert sum(answer.values()) == pytest.approx(1)
        assert min(answer.values()) > 0


@given(texts, st.dictionaries(texts, texts, min_size=1, max_size=4), st.sampled_from(["choice", "score", "noul"]))
def test_a_decider_answers_every_question_with_a_distribution(state, criteria, kind):
    decider = wordcount.build({"sharpness": 1.0})
    questions = {"q": Question(kind, "is it so", criteria), "bare": Question("noul", "is it so")}
    answer = decider.decide({"text": state}, questions)
    assert set(answer["q"]) == set(criteria)
    assert set(answer["bare"]) == {"false", "true"}
    assert all(sum(shares.values()) == pytest.approx(1) for shares in answer.values())


def test_a_statement_is_true_when_its_words_are_there():
    decider = wordcount.build({"sharpness": 1.0})
    question = {"q": Question("noul", "the door is open")}
    assert decider.decide("the door is open", question)["q"]["true"] > 0.8
    assert decider.decide(json.loads('{"room": "dark"}'), question)["q"]["true"] < 0.2
