import tandem_no_disclaimer


def test_a_disclaimer_is_followed_by_the_sentence(platform):
    host = platform(rules={"no_disclaimer": {}}, plugins=[tandem_no_disclaimer])
    answer = host.chat("Is it good?", script=["As an AI, ", "I have no opinion."])
    answer.assert_text("As an AI, I have no opinion. (The answer above is a disclaimer.)").assert_finish("stop")


def test_a_plain_answer_is_left_alone(platform):
    host = platform(rules={"no_disclaimer": {}}, plugins=[tandem_no_disclaimer])
    host.chat("Is it good?", script=["Yes."]).assert_text("Yes.")
