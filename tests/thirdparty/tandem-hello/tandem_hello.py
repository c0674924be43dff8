"""Routes: `GET /v1/hello` says which model is served, `POST /v1/hello/ask` asks it."""

from tandem.core.plugin import Host, HttpRoute, Options, Routes, hookimpl, option

TANDEM_API = ">=0.2,<0.3"


def build(options: Options, host: Host) -> list[HttpRoute]:
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response

    async def greet(request: Request) -> Response:
        return JSONResponse({"model": host.served_name, "plugins": len(host.plugins())})

    async def ask(request: Request) -> Response:
        try:
            question = (await request.json())["question"]
        except (ValueError, KeyError, TypeError):
            return JSONResponse({"error": 'send {"question": "..."}'}, status_code=400)
        try:
            messages = [{"role": "user", "content": str(question)}]
            answer = await host.generate(messages, max_tokens=options["max_tokens"])
        except RuntimeError as error:
            return JSONResponse({"error": str(error)}, status_code=503)
        return JSONResponse({"answer": answer})

    return [
        HttpRoute("/v1/hello", greet, doc="Which model is served, and how many plugins are installed."),
        HttpRoute("/v1/hello/ask", ask, methods=("POST",), doc="Asks the model one question."),
    ]


@hookimpl
def tandem_routes() -> list[Routes]:
    return [
        Routes(
            name="hello",
            doc="Says which model is served, and asks it.",
            options={"max_tokens": option("integer", "The longest answer, in tokens.", 256, minimum=1)},
            build=build,
        )
    ]
