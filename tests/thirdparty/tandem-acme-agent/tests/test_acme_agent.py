import tandem_acme_agent


def test_it_is_known_by_its_user_agent(platform):
    host = platform(clients={"acme_agent": {}}, plugins=[tandem_acme_agent])
    ours = host.chat("hello", headers={"User-Agent": "acme-agent/2.1 linux", "X-Session": "s1"})
    assert ours.headers["x-tandem-client"] == "acme_agent"


def test_another_program_is_not_taken_for_it(platform):
    host = platform(clients={"acme_agent": {}}, plugins=[tandem_acme_agent])
    other = host.chat("hello", headers={"User-Agent": "curl/8.5"})
    assert other.headers["x-tandem-client"] == "plain"
