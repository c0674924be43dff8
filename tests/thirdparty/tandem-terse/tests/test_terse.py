import tandem_terse


def test_a_long_prompt_is_worth_a_line_and_a_short_one_is_not(platform):
    host = platform(narrators={"terse": {"min_prompt": 100}}, plugins=[tandem_terse])
    line = host.build("narrators", "terse")
    assert line("prefill", {"done": 50, "total": 200}) == "Reading: 25 % of 200 tokens."
    assert line("prefill", {"done": 5, "total": 20}) is None
    assert line("queue", {"position": 2}) == "Waiting: place 2 in the queue."
