from tandem.core.plugin import DraftTree

import tandem_elastic


def test_a_repeating_text_is_verified_ahead_and_stays_the_same_text(platform):
    host = platform(drafters={"lookup": {}}, choosers={"elastic": {}}, plugins=[tandem_elastic])
    answer = host.chat("Say x.", script=["x"], end=False, max_tokens=64)
    answer.assert_text("x" * 64).assert_finish("length")
    assert answer.timings["draft_n_accepted"] > 20
    assert host.engine.snapshot()["speculation"]["accepted"] == answer.timings["draft_n_accepted"]


def test_the_width_follows_what_came_true():
    chooser = tandem_elastic.Elastic(most=4).open()
    chain = DraftTree([1, 2, 3, 4, 5], [-1, 0, 1, 2, 3], [0.9, 0.8, 0.7, 0.6, 0.5], "test")
    widths = []
    for right in (2, 4, 4, 1, 0, 0, 0):
        tree = chooser.choose([chain], context=10, others=0)
        widths.append(len(tree))
        chooser.learn(tree, range(right))
    assert widths == [2, 4, 4, 4, 4, 2, 1]
