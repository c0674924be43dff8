"""An agent's session, turn by turn: what is read again, and how long the first token takes, beside llama.cpp.

    python benchmarks/turns.py [--turns 20] [--cold 3] [--threads 2] [--json FILE]

A client sends its whole conversation with every turn: a system prompt, a task, and then, turn after turn, the model's
own answer and the next tool result, growing to some 6,000 tokens. Both servers run SmolLM2 on this CPU with the same
number of threads, each in a process of its own, and answer the same turns one after the other, taking turns themselves.
Each goes on with its own answers, as a client would. llama-cpp-python keeps the last context and reads on from the
longest common beginning; so does Tandem's resident tier.

* `forwarded`: prompt tokens that were read; `new`: those that the turn before had not sent or written.
* `first token`: milliseconds from sending the request to the first text; `cold`: the same turn with nothing kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ANSWER = 24
"""Tokens of each answer."""
SYSTEM = "You are an agent that works on a small web shop. You run one tool at a time and say what you will do next."
TASK = "The tests of the shop fail since yesterday. Find out why, and mend it."
WORDS = [
    "order", "basket", "price", "customer", "invoice", "stock", "parcel", "refund", "total", "currency", "address",
    "payment", "session", "token", "header", "query", "index", "table", "column", "commit", "branch", "module",
    "import", "test", "assert", "error", "warning", "timeout", "retry", "cache",
]  # fmt: skip


def tool_result(turn: int) -> str:
    """The made output of a tool: about 220 tokens, another one each turn."""
    lines = []
    for line in range(14):
        at = turn * 31 + line * 7
        first, second, third = (WORDS[(at * step + line) % len(WORDS)] for step in (1, 3, 5))
        lines.append(f"shop/{first}.py:{at % 400 + 1}: {second} {third} is {at * 17 % 1000}, expected {at % 90}")
    return f"Result of call {turn}:\n" + "\n".join(lines)


def conversation(answers: list[str]) -> list[dict[str, str]]:
    """The messages of the turn after these answers."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    for turn, answer in enumerate(answers, start=1):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": tool_result(turn)}]
    return messages


# ------------------------------------------------------------------------------------------------------------ the peers


class Tandem:
    """The default manifest behind its HTTP server."""

    def __init__(self, threads: int) -> None:
        from tandem.testing.box import Box

        self._box = Box("default", server={"torch_threads": threads, "port": 0})
        self.ask([{"role": "user", "content": "Hello"}], False)  # the first request pays for what is made once

    def ask(self, messages: list[dict[str, str]], keep: bool) -> dict[str, Any]:
        """One streamed turn; `keep` False reads everything and leaves nothing behind."""
        body = {
            "messages": messages, "max_tokens": ANSWER, "temperature": 0, "stream": True, "cache_prompt": keep,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        start = time.perf_counter()
        first, text, usage = None, "", {}
        with self._box.streaming("/v1/chat/completions", body) as (_, events):
            for data in events:
                if data == "[DONE]":
                    break
                chunk = json.loads(data)
                usage = chunk.get("usage") or usage
                said = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
                if said:
                    first = first or time.perf_counter() - start
                    text += said
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {"text": text, "prompt": usage["prompt_tokens"], "cached": cached, "first_ms": (first or 0.0) * 1e3}


class LlamaCpp:
    """llama-cpp-python's own prefix match, without a socket between."""

    def __init__(self, threads: int) -> None:
        from decode import checkpoint
        from llama_cpp import Llama

        self._llama = Llama(str(checkpoint()), n_ctx=8192, n_threads=threads, n_threads_batch=threads, verbose=False)
        self.ask([{"role": "user", "content": "Hello"}], False)

    def ask(self, messages: list[dict[str, str]], keep: bool) -> dict[str, Any]:
        if not keep:
            self._llama.reset()
        before = list(self._llama.input_ids[: self._llama.n_tokens])
        start = time.perf_counter()
        first, text = None, ""
        for chunk in self._llama.create_chat_completion(messages, max_tokens=ANSWER, temperature=0.0, stream=True):
            said = chunk["choices"][0]["delta"].get("content")
            if said:
                first = first or time.perf_counter() - start
                text += said
        known = list(self._llama.input_ids[: self._llama.n_tokens])
        shared = next((i for i, (a, b) in enumerate(zip(before, known, strict=False)) if a != b), len(before))
        return {"text": text, "prompt": len(known), "cached": shared, "first_ms": (first or 0.0) * 1e3}


def serve(peer: str, threads: int) -> None:
    """Answer one JSON line for each line of standard input."""
    served = Tandem(threads) if peer == "tandem" else LlamaCpp(threads)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        messages, keep = json.loads(line)
        print(json.dumps(served.ask(messages, keep)), flush=True)


class Process:
    """A peer in a process of its own."""

    def __init__(self, peer: str, threads: int) -> None:
        command = [sys.executable, __file__, "--serve", peer, "--threads", str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def ask(self, messages: list[dict[str, str]], keep: bool = True) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps([messages, keep]), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = self._read()
        return answer

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("a peer ended; what it said is above")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


# ------------------------------------------------------------------------------------------------------ the measurement


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--cold", type=int, default=3, help="every so many turns are asked cold as well")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", nargs="+", default=["tandem", "llama.cpp"], choices=["tandem", "llama.cpp"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.threads)
        return
    peers = {name: Process(name, args.threads) for name in args.peers}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in peers}
    answers: dict[str, list[str]] = {name: [] for name in peers}
    colds: dict[str, list[dict[str, Any]]] = {name: [] for name in peers}
    for _ in range(args.turns):
        for name, peer in peers.items():
            answer = peer.ask(conversation(answers[name]))
            rows[name].append(answer)
            answers[name].append(answer["text"])
    for turn in range(args.cold, args.turns, args.cold):
        for name, peer in peers.items():
            colds[name].append({**peer.ask(conversation(answers[name][:turn]), keep=False), "turn": turn})
    for peer in peers.values():
        peer.close()
    for name in peers:
        show(name, rows[name], colds[name])
    if args.json:
        args.json.write_text(json.dumps({"turns": rows, "cold": colds}, indent=1))


def show(name: str, turns: list[dict[str, Any]], colds: list[dict[str, Any]]) -> None:
    cold = {entry["turn"]: entry["first_ms"] for entry in colds}
    print(f"\n{name}\n{'turn':>4} {'prompt':>7} {'new':>6} {'forwarded':>9} {'first token':>12} {'cold':>9}")
    before = 0
    for number, turn in enumerate(turns):
        new, forwarded = turn["prompt"] - before, turn["prompt"] - turn["cached"]
        before = turn["prompt"]
        at = f"{cold[number]:6.0f} ms" if number in cold else ""
        print(f"{number:>4} {turn['prompt']:>7} {new:>6} {forwarded:>9} {turn['first_ms']:>9.0f} ms {at:>9}")
    shorter = [cold[number] / turns[number]["first_ms"] for number in cold if turns[number]["first_ms"]]
    if shorter:
        print(f"first token, cold over warm: median {statistics.median(shorter):.1f}, last {shorter[-1]:.1f}")


if __name__ == "__main__":
    main()
