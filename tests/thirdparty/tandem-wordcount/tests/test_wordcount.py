import pytest
from tandem.core.plugin import Question

import tandem_wordcount


def test_the_label_with_the_most_shared_words_wins(platform):
    host = platform(deciders={"wordcount": {}}, plugins=[tandem_wordcount])
    decider = host.build("deciders", "wordcount")
    question = Question("choice", "What is it about?", {"weather": "rain, sun and wind", "money": "prices and taxes"})
    answer = decider.decide("Will the sun shine, or is there rain?", {"topic": question})["topic"]
    assert answer["weather"] > answer["money"]
    assert sum(answer.values()) == pytest.approx(1)
