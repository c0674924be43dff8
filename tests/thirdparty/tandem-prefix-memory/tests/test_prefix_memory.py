import tandem_prefix_memory


def test_a_second_turn_starts_where_the_first_prompt_ended(platform):
    host = platform(caches={"prefix_memory": {}}, plugins=[tandem_prefix_memory])
    turn = [{"role": "user", "content": "a long question " * 20}]
    first = host.chat(turn)
    again = host.chat([*turn, {"role": "assistant", "content": first.text}, {"role": "user", "content": "go on"}])
    assert first.usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert again.usage["prompt_tokens_details"]["cached_tokens"] >= 320


def test_the_budget_holds():
    tier = tandem_prefix_memory.Prompts(budget=100, trim=True, grid=1)
    assert (tier.shed(10), tier.check(), tier.stats()["bytes"]) == (0, [], 0)
