"""Train the tiny hybrid: a `qwen3_5` text model of 2.6 million parameters with a multi-token-prediction layer.

    python benchmarks/tiny_hybrid/train.py [--steps 1800] [--minutes 34] [--threads 1] [--out DIRECTORY]

The trunk is transformers' own `Qwen3_5TextModel`; the prediction layer (`mtp.*` in the checkpoint) is written here and
trained together with it. Text: `corpus.py`. The checkpoint is written every `--save-every` steps, so a run that is
stopped leaves what it had. Needs the `test` extra (transformers).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from corpus import END, SHARES, Document, documents, pick
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen3_5TextConfig, Qwen3_5TextModel
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

SPECIAL = (END, "<|im_start|>", "<|im_end|>")
THINKING = ("<think>", "</think>")
VOCAB = 1536
CONTEXT = 512
"""Tokens of a training row."""
TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}
{%- endif %}
{{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{{- '<think>\\n' if enable_thinking is defined and enable_thinking else '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
"""
MTP_WEIGHT = 0.3
"""What the prediction layer's loss counts for beside the trunk's."""


def config(tokenizer: Tokenizer) -> Qwen3_5TextConfig:
    """Four layers, the last of them full attention; two value heads share a key head."""
    return Qwen3_5TextConfig(
        vocab_size=VOCAB,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=64,
        linear_num_key_heads=3,
        linear_num_value_heads=6,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        full_attention_interval=4,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
        },
        bos_token_id=tokenizer.token_to_id(END),
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=None,
        mtp_num_hidden_layers=1,
        mtp_use_dedicated_embeddings=False,
        architectures=["Qwen3_5ForCausalLM"],
        dtype="bfloat16",
    )


class Prediction(nn.Module):
    """The multi-token-prediction layer: from the trunk's normed hidden state and the next token, the one behind it."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(width, config.rms_norm_eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(width, config.rms_norm_eps)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, config.num_hidden_layers - 1)])
        self.norm = Qwen3_5RMSNorm(width, config.rms_norm_eps)

    def forward(self, hidden: Tensor, following: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """`hidden` `[B, T, H]`, `following` `[B, T, H]` the embeddings of the tokens behind; -> `[B, T, H]`."""
        both = torch.cat([self.pre_fc_norm_embedding(following), self.pre_fc_norm_hidden(hidden)], dim=-1)
        block: Tensor = self.layers[0](self.fc(both), position_embeddings=rope)
        out: Tensor = self.norm(block)
        return out


class Hybrid(nn.Module):
    """Trunk and prediction layer, trained together; embedding and head are one matrix, shared by both."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        self.trunk = Qwen3_5TextModel(config)
        self.mtp = Prediction(config)
        for weight in self.mtp.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=config.initializer_range)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens `[B, T]` -> the trunk's loss, and the prediction layer's for one token ahead and for two (chained)."""
        embedded = self.trunk.embed_tokens(tokens)
        hidden = self.trunk(inputs_embeds=embedded, use_cache=False).last_hidden_state
        losses = [self._loss(hidden[:, :-1], tokens[:, 1:])]
        ahead = hidden
        for step in (1, 2):
            # Row p holds what is known at p, and reads the token at p + step, at whose place it turns.
            count = tokens.shape[1] - step
            places = torch.arange(step, step + count).view(1, 1, -1).expand(3, tokens.shape[0], -1)
            ahead = self.mtp(ahead[:, :count], embedded[:, step:], self.trunk.rotary_emb(hidden, places))
            losses.append(self._loss(ahead[:, :-1], tokens[:, step + 1 :]))
        return losses[0], losses[1], losses[2]

    def _loss(self, hidden: Tensor, expected: Tensor) -> Tensor:
        logits = functional.linear(hidden, self.trunk.embed_tokens.weight).float()
        return functional.cross_entropy(logits.flatten(0, 1), expected.flatten())


# ------------------------------------------------------------------------------------------------------------- its text


def train_tokenizer(texts: list[Document]) -> Tokenizer:
    """A byte-level BPE of `VOCAB` tokens: GPT-2's word splitting, digits one by one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIAL) - len(THINKING),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample = pick(texts, SHARES.__getitem__, 3_000_000, seed=1)
    marks = (*SPECIAL, *THINKING)

    def plain(text: str) -> str:
        for mark in marks:
            text = text.replace(mark, " ")
        return text

    tokenizer.train_from_iterator((plain(document.text) for document in sample), trainer)
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in SPECIAL])
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in THINKING])
    return tokenizer


def rows(tokenizer: Tokenizer, texts: list[Document], count: int, seed: int, only: str = "") -> Tensor:
    """`[count, CONTEXT + 1]` token ids: documents one behind the other, a mark for the end between them.

    `only` one kind of text, or all by their shares.
    """
    end = tokenizer.token_to_id(END)
    if only:
        texts = [document for document in texts if document.kind == only]
        random.Random(seed).shuffle(texts)
        ids = [token for document in texts for token in (*tokenizer.encode(document.text).ids, end)]
        count = min(count, len(ids) // (CONTEXT + 1))
        return torch.tensor(ids[: count * (CONTEXT + 1)]).view(count, CONTEXT + 1)
    ids = []
    while len(ids) < count * (CONTEXT + 1):
        for document in pick(texts, SHARES.__getitem__, 1_000_000, seed):
            ids += [*tokenizer.encode(document.text).ids, end]
        seed += 1
    return torch.tensor(ids[: count * (CONTEXT + 1)]).view(count, CONTEXT + 1)


# ------------------------------------------------------------------------------------------------------- the checkpoint


def save(model: Hybrid, config: Qwen3_5TextConfig, tokenizer: Tokenizer, out: Path) -> None:
    """The directory that transformers and Tandem load, weights in bfloat16."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": weight for name, weight in model.trunk.state_dict().items()}
    tensors |= {f"mtp.{name}": weight for name, weight in model.mtp.state_dict().items()}
    tensors = {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in tensors.items()}
    save_file(tensors, str(out / "model.safetensors.new"), metadata={"format": "pt"})
    (out / "model.safetensors.new").replace(out / "model.safetensors")
    config.save_pretrained(out)
    _write_json(out / "config.json", {"_name_or_path": "tiny-hybrid", **json.loads((out / "config.json").read_text())})
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "chat_template.jinja").write_text(TEMPLATE)
    ends = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id(END)]
    _write_json(out / "generation_config.json", {"bos_token_id": ends[1], "eos_token_id": ends, "do_sample": False})
    names = {"bos_token": END, "eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    _write_json(out / "tokenizer_config.json", {**names, "model_max_length": 4096})


def load(model: Hybrid, out: Path) -> None:
    """Put a saved checkpoint's weights in."""
    tensors = load_file(str(out / "model.safetensors"))
    for part, prefix in ((model.trunk, "model."), (model.mtp, "mtp.")):
        part.load_state_dict({name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)})


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n")


# --------------------------------------------------------------------------------------------------------- the training


def optimizers(model: Hybrid) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between the layers, AdamW for the embedding and for all vectors."""
    matrices = [w for name, w in model.named_parameters() if w.ndim == 2 and "embed_tokens" not in name]
    others = [w for name, w in model.named_parameters() if w.ndim != 2 or "embed_tokens" in name]
    return [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=0.004, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def speed(step: int, done: float) -> float:
    """The share of the full learning rate: a short warm-up, then half a cosine down to nearly nothing."""
    return min(1.0, (step + 1) / 40) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


@torch.no_grad()
def evaluate(model: Hybrid, held: Tensor) -> dict[str, float]:
    """Losses (nats a token) on held-out rows, and how often each guess is the trunk's own favourite."""
    model.eval()
    tokens = held[:, :-1]
    embedded = model.trunk.embed_tokens(tokens)
    hidden = model.trunk(inputs_embeds=embedded, use_cache=False).last_hidden_state
    head = model.trunk.embed_tokens.weight
    favourite = functional.linear(hidden, head).argmax(-1)
    found = {
        "loss": float(model._loss(hidden, held[:, 1:])),
        "top1": float((favourite == held[:, 1:]).float().mean()),
    }
    ahead = hidden
    for step in (1, 2):
        count = tokens.shape[1] - step
        places = torch.arange(step, step + count).view(1, 1, -1).expand(3, tokens.shape[0], -1)
        ahead = model.mtp(ahead[:, :count], embedded[:, step:], model.trunk.rotary_emb(hidden, places))
        guess = functional.linear(ahead, head).argmax(-1)
        found[f"mtp{step}"] = float((guess == favourite[:, step:]).float().mean())
    model.train()
    return found


def measure(model: Hybrid, tokenizer: Tokenizer, kept: list[Document], out: Path) -> None:
    """Print what `evaluate` finds for each kind of held-out text."""
    load(model, out)
    for kind in SHARES:
        held = rows(tokenizer, kept, 12, seed=4, only=kind)
        found = evaluate(model, held)
        print(f"{kind:>10}", *(f"{name} {value:.3f}" for name, value in found.items()))


def batches(data: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        for group in torch.randperm(len(data), generator=generator).split(size):
            if len(group) == size:
                yield data[group]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--minutes", type=float, default=math.inf, help="the learning rate falls in time for this end")
    parser.add_argument("--batch", type=int, default=8, help=f"rows of {CONTEXT} tokens in a step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--evaluate", action="store_true", help="only measure the checkpoint in --out, by kind of text")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "checkpoint")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    texts = documents()
    taught, kept = [d for d in texts if not d.held_out], [d for d in texts if d.held_out]
    go_on = given.resume or given.evaluate
    tokenizer = Tokenizer.from_file(str(given.out / "tokenizer.json")) if go_on else train_tokenizer(taught)
    if given.evaluate:
        measure(Hybrid(config(tokenizer)), tokenizer, kept, given.out)
        return
    data = rows(tokenizer, taught, given.steps * given.batch, seed=2)
    held = rows(tokenizer, kept, 24, seed=3)
    shape = config(tokenizer)
    model = Hybrid(shape)
    parameters = sum(weight.numel() for weight in model.parameters())
    print(
        f"{parameters / 1e6:.2f} M parameters, {data.numel() / 1e6:.1f} M tokens, {len(kept)} texts held out",
        flush=True,
    )
    log: list[dict[str, float]] = []
    if given.resume:
        load(model, given.out)
        log = json.loads((given.out / "training.json").read_text())
    first_step = int(log[-1]["step"]) if log else 0
    tools = optimizers(model)
    full = [group["lr"] for tool in tools for group in tool.param_groups]
    began = time.monotonic()
    for step, tokens in enumerate(batches(data, given.batch, given.seed + first_step), first_step):
        done = max(step / given.steps, (time.monotonic() - began) / 60 / given.minutes)
        last = done >= 1 or step + 1 == given.steps
        for group, rate in zip([g for tool in tools for g in tool.param_groups], full, strict=True):
            group["lr"] = rate * speed(step - first_step, min(done, 1.0))
        with torch.autocast("cpu", torch.bfloat16):
            trunk, first, second = model(tokens[:, :-1])
        (trunk + MTP_WEIGHT * first + MTP_WEIGHT / 2 * second).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for tool in tools:
            tool.step()
            tool.zero_grad(set_to_none=True)
        if step % 20 == 0:
            losses = f"{trunk.item():.3f} {first.item():.3f} {second.item():.3f}"
            print(f"step {step} loss {losses} at {time.monotonic() - began:.0f} s", flush=True)
        if last or (step + 1) % given.save_every == 0:
            log.append({"step": step + 1, "tokens": (step + 1) * given.batch * CONTEXT, **evaluate(model, held)})
            print({name: round(value, 4) for name, value in log[-1].items()}, flush=True)
            save(model, shape, tokenizer, given.out)
            _write_json(given.out / "training.json", [{k: round(v, 4) for k, v in entry.items()} for entry in log])
        if last:
            break
    print(f"done in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
