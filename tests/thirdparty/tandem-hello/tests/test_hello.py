import tandem_hello


def test_the_route_answers_and_generates(platform):
    host = platform(routes={"hello": {}}, plugins=[tandem_hello], model={"plugin": "scripted", "reply": "Fine."})
    assert host.get("/v1/hello").json()["model"]
    assert host.post("/v1/hello/ask", {"question": "How are you?"}).json() == {"answer": "Fine."}
    assert host.post("/v1/hello/ask", {}).status_code == 400
