import pytest
from tandem.core.plugin import Turn

import tandem_keywords


def test_words_decide_and_silence_is_an_answer(platform):
    host = platform(stages={"keywords": {}}, plugins=[tandem_keywords])
    classify = host.build("stages", "keywords")

    def turn(text):
        return Turn(messages=({"role": "user", "content": text},), classes=("code", "writing"))

    shares = classify(turn("This function has a bug"))
    assert shares == {"code": pytest.approx(0.75), "writing": pytest.approx(0.25)}
    assert classify(turn("Good morning")) is None
