import tandem_parrot


def test_it_says_again_what_was_said(platform):
    host = platform(model={"plugin": "parrot"}, plugins=[tandem_parrot])
    host.chat("Grüße, 世界").assert_text("Grüße, 世界").assert_finish("stop")


def test_it_can_shout(platform):
    host = platform(model={"plugin": "parrot", "shout": True}, plugins=[tandem_parrot])
    host.chat("hello").assert_text("HELLO")
