"""Packages from outside: built as wheels, installed into a fresh environment, listed, checked and served over HTTP.

One of each kind, as `tandem new` writes them; and four that can't work: `broken` raises at import, `tomorrow` was
written for another plugin interface, and the two `twin` packages offer a part of the same name.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

HERE = Path(__file__).parent
PATIENCE_S = 120
TANDEM = "from tandem.api.command import main; main()"

GOOD = {
    ("models", "parrot"),
    ("drafters", "bigram"),
    ("choosers", "elastic"),
    ("quantizations", "row_int8"),
    ("caches", "prefix_memory"),
    ("rules", "no_disclaimer"),
    ("stages", "keywords"),
    ("deciders", "wordcount"),
    ("clients", "acme_agent"),
    ("formats", "angle_json"),
    ("narrators", "terse"),
    ("routes", "hello"),
}
BAD = {("rules", "broken"), ("drafters", "tomorrow"), ("clients", "twin")}

EVERYTHING = """\
tandem: 1
model: {plugin: scripted, reply: "Fine, thanks."}
drafters: [bigram, tomorrow]
choosers: {elastic: {most: 12}}
caches: {prefix_memory: {budget_mib: 8}}
rules: [no_disclaimer, broken]
stages: [keywords]
deciders: [wordcount]
clients: [acme_agent, twin]
formats: [angle_json]
narrators: {terse: {min_prompt: 100}}
quantizations: [row_int8]
routes: [hello]
server: {port: 0, format: angle_json}
"""


@dataclass(frozen=True)
class Outside:
    """An environment with Tandem and the packages in it."""

    python: Path
    folder: Path
    manifest: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def tandem(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command `tandem`."""
        return self.run("-c", TANDEM, *arguments)

    @contextmanager
    def serving(self, manifest: Path) -> Iterator[httpx2.Client]:
        """`tandem serve` on a free port."""
        with (self.folder / "serve.log").open("w+") as log:
            server = subprocess.Popen(
                [self.python, "-c", TANDEM, "serve", str(manifest), "--port", "0"],
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            try:
                assert server.stdout is not None
                greeting = server.stdout.readline()
                url = re.search(r"http://127\.0\.0\.1:\d+", greeting)
                log.seek(0)
                assert url, f"the server did not start: {greeting}{log.read()}"
                with httpx2.Client(base_url=url.group(), timeout=30, trust_env=False) as client:
                    yield client
            finally:
                server.terminate()
                server.communicate(timeout=30)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Outside:
    """A fresh environment with all packages installed. It sees what this one has, so torch is not installed again."""
    folder = tmp_path_factory.mktemp("outside")
    sources = folder / "sources"
    for package in sorted(HERE.glob("tandem-*")):
        shutil.copytree(package, sources / package.name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    offline = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip"]
    wheels = [*pip, "wheel", *offline, "--no-build-isolation", "-w", str(folder / "wheels")]
    _must([*wheels, *(str(path) for path in sorted(sources.iterdir()))])
    _must([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")])
    python = folder / "venv" / "bin" / "python"
    built = sorted(str(path) for path in (folder / "wheels").glob("*.whl"))
    _must([*pip, "--python", str(python), "install", *offline, *built])
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    lines = [f"import site; site.addsitedir({path!r})\n" for path in sorted(packages)]
    inside = python.parent.parent / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (inside / "the_rest.pth").write_text("".join(lines))
    manifest = folder / "everything.yaml"
    manifest.write_text(EVERYTHING)
    return Outside(python, folder, manifest)


def _must(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, f"{' '.join(command[:6])} ...\n{done.stdout}{done.stderr}"


@pytest.fixture(scope="module")
def server(outside: Outside) -> Iterator[httpx2.Client]:
    with outside.serving(outside.manifest) as client:
        yield client


def say(client: httpx2.Client, text: str = "", /, **fields: Any) -> httpx2.Response:
    """One chat request; `script` goes to the scripted model, `headers` to the wire."""
    script, headers = fields.pop("script", None), fields.pop("headers", None)
    content = json.dumps({"script": script, "end": fields.pop("end", True)}) if script else text
    messages = fields.pop("messages", [{"role": "user", "content": content}])
    response = client.post("/v1/chat/completions", json={"model": "x", "messages": messages, **fields}, headers=headers)
    assert response.status_code == 200, response.text
    return response


def text_of(response: httpx2.Response) -> str:
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


# ------------------------------------------------------------------------------------------------ the commands


def test_every_package_is_listed_and_none_imported(outside):
    code = (
        "import sys; from tandem.api.command import main; main(['plugins', '--json'], standalone_mode=False); "
        "print([name for name in sys.modules if name.startswith('tandem_')], file=sys.stderr)"
    )
    done = outside.run("-c", code)
    listed = {(record["kind"], record["name"]): record for record in json.loads(done.stdout)}
    missing = (GOOD | BAD) - set(listed)
    assert not missing
    assert {record["state"] for key, record in listed.items() if key != ("clients", "twin")} == {"found"}
    assert listed["rules", "no_disclaimer"]["distribution"] == "tandem-no-disclaimer"
    assert listed["rules", "broken"]["version"] == "0.3"
    assert done.stderr.splitlines()[-1] == "[]"


def test_check_passes_and_says_what_is_left_out(outside):
    done = outside.tandem("check", str(outside.manifest))
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"rules\.broken: .*ModuleNotFoundError: No module named 'a_library_that_is_not_there' \(tandem-broken 0\.3\)",
        done.stderr,
    )
    assert re.search(r"drafters\.tomorrow: .*API >=9,<10, but this is 0\.2\.\d+ \(tandem-tomorrow 9\.1\)", done.stderr)
    assert re.search(r"clients\.twin: .*tandem-twin-one 1\.0 and tandem-twin-two 2\.0", done.stderr)
    assert "Traceback" not in done.stdout + done.stderr


def test_a_broken_part_that_is_required_stops_the_start_with_its_reason(outside):
    done = outside.tandem("serve", str(outside.manifest), "--set", "rules.broken={required: true}")
    assert done.returncode not in (0, None)
    assert "a_library_that_is_not_there" in done.stderr
    assert "tandem-broken 0.3" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_option_of_a_package_is_refused_with_its_line_and_the_nearest_word(outside):
    wrong = outside.folder / "wrong.yaml"
    wrong.write_text(EVERYTHING.replace("budget_mib", "budget_mb"))
    done = outside.tandem("check", str(wrong))
    assert done.returncode == 2
    assert "wrong.yaml:5" in done.stderr
    assert "caches.prefix_memory.budget_mb" in done.stderr
    assert "did you mean `budget_mib`?" in done.stderr


def test_each_packages_own_manifest_is_right(outside):
    code = (
        "import sys; from tandem.api.command.manifests import read_manifest\n"
        "for path in sys.argv[1:]: read_manifest(path, [])\n"
    )
    manifests = sorted(str(path) for path in (outside.folder / "sources").glob("*/manifest.yaml"))
    assert len(manifests) == len(GOOD)
    done = outside.run("-c", code, *manifests)
    assert done.returncode == 0, done.stderr


def test_each_packages_own_tests_pass_where_it_is_installed(outside):
    (outside.folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider\n")
    tests = sorted(str(path) for path in (outside.folder / "sources").glob("*/tests"))
    assert len(tests) == len(GOOD)
    done = outside.run("-m", "pytest", "-q", "-c", "pytest.ini", *tests)
    assert done.returncode == 0, done.stdout


# ----------------------------------------------------------------------------------------------------- served


def test_what_works_is_active_and_what_does_not_is_failed_with_its_owner(server):
    listed = {(r["kind"], r["name"]): r for r in server.get("/v1/plugins").json()["data"]}
    on = (GOOD - {("models", "parrot")}) | {("models", "scripted")}
    assert {key for key, record in listed.items() if record["state"] == "active"} == on
    assert {key for key, record in listed.items() if record["state"] == "failed"} == BAD
    assert listed["models", "parrot"]["state"] == "found"
    assert "(tandem-broken 0.3)" in listed["rules", "broken"]["reason"]
    assert "(tandem-tomorrow 9.1)" in listed["drafters", "tomorrow"]["reason"]
    assert "tandem-twin-one 1.0 and tandem-twin-two 2.0" in listed["clients", "twin"]["reason"]
    assert {(r["kind"], r["name"]) for r in server.get("/health").json()["plugins"]["failed"]} == BAD


def test_the_rules_sentence_arrives(server):
    answer = say(server, script=["As an AI, ", "I can't say."])
    assert text_of(answer) == "As an AI, I can't say. (The answer above is a disclaimer.)"
    assert answer.json()["choices"][0]["finish_reason"] == "stop"


def test_the_rules_sentence_arrives_in_a_stream(server):
    body = {"model": "x", "stream": True, "messages": [{"role": "user", "content": '{"script": ["as an AI"]}'}]}
    raw = server.post("/v1/chat/completions", json=body).text
    chunks = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == "as an AI (The answer above is a disclaimer.)"


def test_the_client_is_recognised_by_its_header(server):
    ours = say(server, script=["hi"], headers={"User-Agent": "acme-agent/3.0 (linux)"})
    assert ours.headers["x-tandem-client"] == "acme_agent"
    assert say(server, script=["hi"]).headers["x-tandem-client"] == "plain"


def test_the_drafter_drafts_and_the_text_stays_the_same(server):
    answer = say(server, script=["z"], end=False, max_tokens=100)
    assert text_of(answer) == "z" * 100
    timings = answer.json()["timings"]
    assert timings["draft_n_accepted"] > 0
    assert timings["blocks"] < 100


def test_the_cache_tier_gives_a_known_beginning_back(server):
    turn = {"role": "user", "content": "Tell me a long story. " * 30}
    first = say(server, messages=[turn])
    assert text_of(first) == "Fine, thanks."
    again = say(server, messages=[turn, {"role": "assistant", "content": "No."}, {"role": "user", "content": "Do!"}])
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 600
    assert again.json()["timings"]["cache_source"] == "prefix_memory"
    assert server.get("/health").json()["caches"]["prefix_memory"]["hits"] >= 1


def test_the_format_reads_calls_out_of_the_answer(server):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    script = ["I look. ", '<call>{"name": "look", ', '"arguments": {"q": "</call>"}}</call>']
    choice = say(server, script=script, tools=tools).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("I look. ", "tool_calls")
    function = choice["message"]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("look", {"q": "</call>"})


def test_the_routes_answer_and_generate(server):
    assert server.get("/v1/hello").json()["model"] == "TandemLLM"
    asked = server.post("/v1/hello/ask", json={"question": "How are you?"})
    assert (asked.status_code, asked.json()) == (200, {"answer": "Fine, thanks."})
    assert server.post("/v1/hello/ask", json=[]).status_code == 400


def test_a_model_from_outside_is_served(outside):
    manifest = outside.folder / "parrot.yaml"
    manifest.write_text("tandem: 1\nmodel: {plugin: parrot, served_name: polly}\ndrafters: [lookup]\n")
    with outside.serving(manifest) as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["polly"]
        words = "Wörter, wörter, wörter, und noch mehr wörter, wörter, wörter."
        answer = say(client, words)
        assert text_of(answer) == words
        assert answer.json()["usage"]["completion_tokens"] == len(words.encode())


def test_the_parts_without_an_engine_side_are_built_by_the_kernel(outside):
    code = """
import json, sys
from tandem.core.engine.options import SECTIONS
from tandem.core.kernel import assemble, load_manifest
from tandem.core.plugin import Question, Turn

platform = assemble(load_manifest(sys.argv[1], sections=SECTIONS))
classify = dict(platform.build("stages", None))["keywords"]
decider = dict(platform.build("deciders"))["wordcount"]
line = dict(platform.build("narrators", None))["terse"]
about = Question("choice", "About what?", {"sun": "sun and rain", "tax": "money"})
print(json.dumps({
    "stage": classify(Turn(({"role": "user", "content": "a bug"},), ("code", "writing"))),
    "decider": decider.decide("rain", {"q": about}),
    "narrator": [line("prefill", {"done": 50, "total": 100}), line("prefill", {"done": 5, "total": 10})],
}))
"""
    done = outside.run("-c", code, str(outside.manifest))
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["stage"] == {"code": pytest.approx(2 / 3), "writing": pytest.approx(1 / 3)}
    assert seen["decider"]["q"]["sun"] > 0.7
    assert seen["narrator"] == ["Reading: 50 % of 100 tokens.", None]
