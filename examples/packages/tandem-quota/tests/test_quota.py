from tandem_quota import HOUR_S, Quota


def test_the_answer_over_the_limit_is_a_sentence_and_the_route_tells_why(platform):
    host = platform(rules={"quota": {"answers": 2}}, routes=["quota"], plugins=[Quota()])
    for _ in range(2):
        host.chat(script=["Here."]).assert_text("Here.")
    host.chat(script=["Here."]).assert_text("This client has had its 2 answers of the hour.").assert_finish("stop")
    assert host.get("/v1/quota").json() == {"plain": 2}


def test_an_hour_later_there_are_answers_again(platform):
    now = [0.0]
    host = platform(rules={"quota": {"answers": 1}}, plugins=[Quota(clock=lambda: now[0])])
    host.chat(script=["Here."]).assert_text("Here.")
    now[0] = HOUR_S - 1
    assert "has had its 1 answers" in host.chat(script=["Here."]).text
    now[0] = HOUR_S
    host.chat(script=["Here."]).assert_text("Here.")


def test_in_shadow_it_counts_and_lets_pass(platform):
    host = platform(rules={"quota": {"mode": "shadow", "answers": 0}}, plugins=[Quota()])
    host.chat(script=["Here."]).assert_text("Here.")
    assert [event["done"] for event in host.events] == [False]
