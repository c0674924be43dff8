"""What StairCut learns, on a simulated machine: no clock is read."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from hypothesis import given, strategies as st
from staircut_kit import Guesser, best_fixed, chain, linear, options, play, shared

from tandem.core.plugin import DraftTree
from tandem.plugins.choosers.staircut.calibration import BAND, FIRST, LATER, Source, TextOdds
from tandem.plugins.choosers.staircut.prices import Prices
from tandem.plugins.choosers.staircut.shared import Shared
from tandem.plugins.choosers.staircut.trees import Voice, read

TOKENS = 4000


# ------------------------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize(("says", "true"), [(0.9, 0.5), (0.9, 0.1), (0.5, 0.9), (0.7, 0.7), (0.2, 0.02)])
def test_a_step_is_believed_as_often_as_it_came_true(says: float, true: float) -> None:
    noise, source = random.Random(1), Source(1000)
    for _ in range(800):
        source.add(FIRST, says, noise.random() < true)
    tree = read(chain(says), Voice("d", source, TextOdds(doubt=0)))
    assert tree.q[0] == pytest.approx(true, abs=0.05)


def test_bands_of_one_source_and_its_first_and_later_steps_are_learned_apart() -> None:
    noise, source = random.Random(2), Source(1000)
    for _ in range(500):
        source.add(FIRST, 0.9, noise.random() < 0.3)
        source.add(FIRST, 0.5, noise.random() < 0.5)
        source.add(LATER, 0.9, noise.random() < 0.95)
    voice = Voice("d", source, TextOdds(doubt=0))
    assert read(chain(0.9, 0.81), voice).q == pytest.approx([0.3, 0.3 * 0.95], abs=0.05)
    assert read(chain(0.5), voice).q == pytest.approx([0.5], abs=0.05)


@given(
    st.lists(st.tuples(st.sampled_from([FIRST, LATER]), st.floats(0, 1), st.booleans()), max_size=60),
    st.lists(st.floats(0, 1), min_size=1, max_size=12),
)
def test_no_calibrated_probability_exceeds_one_or_its_parents(
    trials: list[tuple[int, float, bool]], steps: list[float]
) -> None:
    source, text = Source(20), TextOdds()
    for where, step, accepted in trials:
        source.add(where, step, accepted)
        text.add(where, step, accepted)
    q = [1.0]
    for step in steps:
        q.append(q[-1] * step)
    calibrated = read(chain(*q[1:]), Voice("d", source, text)).q
    assert all(0 <= below <= above <= 1 for above, below in zip([1.0, *calibrated], calibrated, strict=False))


def test_old_trials_count_less_once_the_bound_is_passed() -> None:
    source = Source(100)
    for _ in range(1000):
        source.add(FIRST, 0.8, False)
    for _ in range(300):
        source.add(FIRST, 0.8, True)
    assert source.bands[FIRST][BAND[80]].trials <= 101
    assert read(chain(0.8), Voice("d", source, TextOdds(doubt=0))).q[0] > 0.75


def test_a_text_that_copies_more_than_others_is_believed_more_and_no_other_text_is() -> None:
    server = shared(linear(0.1))
    play(server.open(), [Guesser("d", lambda at: 0.25, 0.5, depth=1)], linear(0.1), 600)
    copying, other = server.open(), server.open()
    for _ in range(12):
        chosen = copying.choose([chain(0.5, source="d")], 100, 0)
        assert chosen is not None
        copying.learn(chosen, [0])
    here, elsewhere = (chooser.choose([chain(0.5, source="d")], 100, 0) for chooser in (copying, other))
    assert here is not None
    assert elsewhere is not None
    assert here.q[0] > 0.45
    assert 0.12 < elsewhere.q[0] < 0.3


def test_every_source_of_a_merged_tree_learns_from_the_nodes_it_proposed() -> None:
    server = shared(linear(0.01))
    chooser = server.open()
    for name in ("a", "b"):
        assert chooser.wants(name, 10)
    both = chain(0.9, 0.8, source="a")
    extra = DraftTree([1, 7], [-1, -1], [0.3, 0.2], "b")  # agrees on the first token, and adds another
    chooser.drafted("a", both, 0.0)
    chooser.drafted("b", extra, 0.0)
    chosen = chooser.choose([both, extra], 10, 0)
    assert chosen is not None
    assert sorted(chosen.tokens) == [1, 2, 7]
    right = [place for place in range(3) if chosen.tokens[place] == 1]
    chooser.learn(chosen, right)
    report = server.report()["sources"]
    assert (report["a"]["verified"], report["a"]["accepted"]) == (2, 1)
    assert (report["b"]["verified"], report["b"]["accepted"]) == (2, 1)
    assert report["b"]["steps"]["first"] == {
        "0.15-0.3": {"trials": 1.0, "said": 0.2, "true": 0.0},
        "0.3-0.45": {"trials": 1.0, "said": 0.3, "true": 1.0},
    }


def test_a_step_below_a_wrong_one_is_no_trial() -> None:
    server = shared(linear(0.01))
    chooser = server.open()
    chosen = chooser.choose([chain(0.9, 0.8, 0.7, source="a")], 10, 0)
    assert chosen is not None
    chooser.learn(chosen, [])
    assert server.report()["sources"]["a"]["steps"]["later"] == {}


def test_a_tree_that_was_not_chosen_teaches_nothing() -> None:
    server = shared(linear(0.01))
    chooser = server.open()
    assert chooser.choose([chain(0.9, source="a")], 10, 0) is not None
    chooser.learn(chain(0.9, source="a"), [0])
    assert server.report()["sources"]["a"]["verified"] == 0


# ------------------------------------------------------------------------------------------------ whole policies


@pytest.mark.parametrize(
    ("right", "says", "per_row", "seconds"),
    [
        (0.8, 0.8, 0.1, 0.0),  # honest
        (0.8, 0.99, 0.1, 0.0),  # overconfident
        (0.9, 0.4, 0.05, 0.0),  # too modest
        (0.3, 0.95, 0.1, 0.0),  # mostly wrong
        (0.85, 0.85, 0.15, 0.35),  # a head that costs a third of a step
        (0.9, 0.9, 0.05, 1.2),  # a dear one that is worth it
        (0.97, 0.9, 0.02, 0.1),  # a copy on a machine with cheap rows
    ],
)
def test_the_speed_is_near_that_of_the_best_fixed_policy(
    right: float, says: float, per_row: float, seconds: float
) -> None:
    price = linear(per_row)
    guesser = Guesser("d", lambda at: right, says, depth=12, seconds=seconds)
    played = play(shared(price).open(), [guesser], price, TOKENS)
    assert played.rate > 0.95 * best_fixed([guesser], price, TOKENS)


def test_two_drafters_together_are_no_slower_than_the_better_one() -> None:
    price = linear(0.08)
    cheap = Guesser("cheap", lambda at: 0.95 if at // 300 % 2 else 0.1, 0.8, depth=16)
    head = Guesser("head", lambda at: 0.7, 0.75, depth=4, seconds=0.2)
    played = play(shared(price).open(), [cheap, head], price, TOKENS)
    assert played.rate > best_fixed([cheap, head], price, TOKENS)


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.3, 2.0])
@pytest.mark.parametrize("per_row", [0.05, 0.4, 1.0])
def test_useless_overconfident_drafters_cost_less_than_two_percent(seconds: float, per_row: float) -> None:
    price = linear(per_row)
    guessers = [Guesser(name, lambda at: 0.03, 0.9, seconds=seconds) for name in ("a", "b")]
    server = shared(price)
    play(server.open(), guessers, price, 300)
    later = play(server.open(), guessers, price, TOKENS, seed=3)
    assert later.rate > 0.98  # a plain step takes one second


def test_a_useless_dear_drafter_is_hardly_asked_any_more() -> None:
    price = linear(0.1)
    dear = Guesser("dear", lambda at: 0.03, 0.9, seconds=0.5)
    server = shared(price)
    play(server.open(), [dear], price, TOKENS)
    assert 5 < dear.asked < 100, "asked at first, and now and then later"
    report = server.report()["drafters"]["dear"]
    assert report["asked"] == dear.asked
    assert report["skipped"] > TOKENS * 0.9
    assert report["draft_ms"] == {"1024": pytest.approx(500.0), "4096": pytest.approx(500.0)}


def test_a_drafter_that_becomes_good_is_found_again() -> None:
    price = linear(0.1)
    changing = Guesser("d", lambda at: 0.02 if at < 3000 else 0.9, 0.85, seconds=0.3)
    played = play(shared(price).open(), [changing], price, 9000)
    assert sum(played.widths[:2500]) / 2500 < 1.1
    assert played.widths[-1] > 1
    assert sum(width > 1 for width in played.widths[-100:]) > 80


def test_nothing_is_tried_again_without_exploration() -> None:
    price = linear(0.1)
    changing = Guesser("d", lambda at: 0.02 if at < 1000 else 0.9, 0.85, seconds=0.3)
    played = play(shared(price, exploration=0).open(), [changing], price, 4000)
    assert played.widths[-1500:] == [1] * 1500


def test_a_dear_drafter_is_not_asked_while_a_cheap_one_follows_a_copy() -> None:
    price = linear(0.08)

    def copying(at: int) -> bool:
        return at // 400 % 2 == 1

    cheap = Guesser("cheap", lambda at: 0.98 if copying(at) else 0.05, lambda at: 0.9 if copying(at) else 0.3, depth=24)
    head = Guesser("head", lambda at: 0.7, 0.75, depth=4, seconds=0.3)
    rounds: dict[bool, list[int]] = {False: [], True: []}
    server = shared(price)
    play(server.open(), [cheap, head], price, 8000, after=lambda at: rounds[copying(at)].append(head.asked))
    asked = {
        kind: sum(now > before for before, now in itertools.pairwise(counts)) / len(counts)
        for kind, counts in rounds.items()
    }
    assert asked[True] < 0.25
    assert asked[False] > 0.75
    saved = server.report()["drafters"]["head"]["saved_steps"]
    assert saved[0] > 0.5, "where the cheap one has nothing, it saves steps"
    assert len(rounds[True]) < 600, "the copies, 4000 tokens in all, were not followed"


def test_hiccups_of_the_machine_do_not_change_the_policy() -> None:
    price = linear(0.1)
    guesser = Guesser("d", lambda at: 0.8, 0.8, depth=12)
    quiet = play(shared(price).open(), [guesser], price, TOKENS)
    rough = play(
        shared(price).open(),
        [guesser],
        price,
        TOKENS,
        jitter=lambda noise: 30.0 if noise.random() < 0.03 else noise.uniform(0.9, 1.2),
    )
    assert sum(rough.widths) / len(rough.widths) == pytest.approx(sum(quiet.widths) / len(quiet.widths), rel=0.25)


def test_wrong_first_prices_are_put_right_by_the_passes() -> None:
    """Rows seemed cheap, as on a machine that was busy with something else, and are dear; and every round drafts, so
    that plain steps are seen only because they are taken for their price now and then."""
    server, true = shared(linear(0.02)), linear(0.5)
    guesser = Guesser("d", lambda at: 0.4, 0.5)
    play(server.open(), [guesser], true, 3000)
    assert play(server.open(), [guesser], true, 1500, seed=4).rate > 0.98
    assert server.prices.price(2, 100) / server.prices.price(1, 100) > 1.35


# ------------------------------------------------------------------------------------------------------ the report


def test_the_report_is_plain_json_and_counts_what_happened() -> None:
    price = linear(0.1)
    server: Shared = shared(price)
    played = play(server.open(), [Guesser("d", lambda at: 0.8, 0.8)], price, 500)
    report = json.loads(json.dumps(server.report()))
    drafted = sum(width > 1 for width in played.widths)
    assert report["rounds"]["drafted"] == drafted
    assert report["rounds"]["plain"] == pytest.approx(len(played.widths) - drafted, abs=1)
    assert report["drafters"]["d"]["used"] == drafted
    assert report["drafters"]["d"]["asked"] + report["drafters"]["d"]["skipped"] == len(played.widths)
    assert report["sources"]["d"]["verified"] == sum(played.widths) - len(played.widths)
    assert report["sources"]["d"]["accepted"] == played.tokens - len(played.widths)
    assert report["plain_step_ms"]["1024"] == pytest.approx(1000, rel=0.02)
    assert report["verify_ms"]["1024"]["1"] == pytest.approx(1000, rel=0.02)
    assert report["passes_learned"] == len(played.widths)


# ------------------------------------------------------------------------------------------ the rest of a round


class Ticking:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def ticking() -> tuple[Shared, Ticking]:
    clock = Ticking()
    return Shared(Prices({1: 1.0, 2: 1.4}), options(), clock=clock), clock


def test_what_a_round_takes_besides_its_pass_and_drafting_is_learned() -> None:
    server, clock = ticking()
    chooser = server.open()
    for _ in range(50):
        assert chooser.wants("d", 10) in (True, False)
        chooser.drafted("d", None, 0.25)
        clock.now += 0.25 + 1.0 + 0.5  # drafting, the pass, the rest
        chooser.observe(1, 10, 1.0)
    assert server.between == pytest.approx(0.5, rel=0.01)
    assert server.report()["between_passes_ms"] == pytest.approx(500, rel=0.01)


def test_a_pause_between_two_requests_is_no_part_of_a_round() -> None:
    server, clock = ticking()
    chooser = server.open()
    for _ in range(50):
        clock.now += 1.1
        chooser.observe(1, 10, 1.0)
    clock.now += 1e6
    chooser.observe(1, 10, 1.0)
    assert server.between == pytest.approx(0.1, rel=0.05)


def test_a_guess_that_pays_only_with_the_round_it_saves_is_verified() -> None:
    """One row more costs 0.4 steps and comes true in 0.38 of all cases: it pays where a round is more than its pass."""
    tree = chain(0.5)
    server, clock = ticking()
    assert server.open().choose([tree], 10, 0) is None
    chooser = server.open()
    for _ in range(50):
        clock.now += 2.0
        chooser.observe(1, 10, 1.0)
    assert server.open().choose([tree], 10, 0) is not None
