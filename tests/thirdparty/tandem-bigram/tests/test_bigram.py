import tandem_bigram


def test_a_repeating_text_is_drafted_and_stays_the_same_text(platform):
    host = platform(drafters={"bigram": {}}, plugins=[tandem_bigram])
    answer = host.chat("Say x.", script=["x"], end=False, max_tokens=64)
    answer.assert_text("x" * 64).assert_finish("length")
    assert answer.timings["draft_n_accepted"] > 0


def test_the_likeliest_follower_comes_first():
    pairs = tandem_bigram.Pairs(min_q=0.5)
    pairs.extend([1, 2, 1, 2, 1, 3])
    tree = pairs.propose(root=1, limit=1)
    assert (tree.tokens, tree.parents) == ([2], [-1])
