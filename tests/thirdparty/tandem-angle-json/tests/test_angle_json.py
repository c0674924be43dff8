import tandem_angle_json


def test_a_call_in_the_answer_reaches_the_client(platform):
    host = platform(formats=["angle_json"], server={"format": "angle_json"}, plugins=[tandem_angle_json])
    notation = host.build("formats", "angle_json")
    script = ["I write. ", *notation.render("write", {"text": "ends with </call>, says Zoë"})]
    tools = [{"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}]
    for answer in (host.chat(script=script, tools=tools), host.stream(script=script, tools=tools)):
        answer.assert_text("I write. ").assert_finish("tool_calls")
        assert answer.calls == [("write", {"text": "ends with </call>, says Zoë"})]


def test_what_is_no_call_stays_text(platform):
    host = platform(formats=["angle_json"], server={"format": "angle_json"}, plugins=[tandem_angle_json])
    host.chat(script=['<call>{"name": 1}</call>']).assert_text('<call>{"name": 1}</call>')
