"""One state in one file. The bytes, all numbers little-endian:

| offset | bytes | what |
|---|---|---|
| 0 | 8 | `TANDEMKV` |
| 8 | 4 | version of this format: 1 |
| 12 | 4 | h, the length of the tensor table |
| 16 | 32 | SHA-256 of the model's fingerprint |
| 48 | 8 | t, the number of tokens |
| 56 | h | tensor table: JSON, a list of `[name, dtype, shape, offset, bytes]`, offsets from the first tensor byte on |
| 56 + h | 8 t | the tokens, signed |
| 56 + h + 8 t | 16 | BLAKE2b of everything before |
| then | up to 63 | zeros, to a multiple of 64 |
| then | | the tensors, each padded with zeros to a multiple of 64 |
| last | 16 | BLAKE2b of all bytes between the first checksum and here |
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

MAGIC, VERSION = b"TANDEMKV", 1
HEAD = struct.Struct("<8sII32sQ")
SUM, ALIGN = 16, 64
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
}
MOST_TOKENS = 1 << 24
"""A head that claims more is broken, whatever its checksum says."""


class Broken(Exception):
    """The file is no whole state. The message says what is wrong with it."""


class Foreign(Exception):
    """The file may be whole, but not in this format."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a file says about itself."""

    model: bytes
    """SHA-256 of the model's fingerprint."""
    tokens: list[int]
    table: list[tuple[str, str, list[int], int, int]]
    start: int
    """Where the first tensor byte is."""
    size: int
    """Bytes of the whole file."""


def model_id(fingerprint: str) -> bytes:
    return hashlib.sha256(fingerprint.encode()).digest()


def file_name(model: bytes, tokens: list[int]) -> str:
    """Equal states have equal names, so that one is never stored twice."""
    return hashlib.blake2b(model + np.array(tokens, "<i8").tobytes(), digest_size=16).hexdigest() + ".state"


def write(path: Path, model: bytes, tokens: list[int], tensors: Mapping[str, torch.Tensor]) -> int:
    """Write the file whole or not at all; its size. Raises OSError, and leaves nothing behind then."""
    parts = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    table, offset = [], 0
    for name, tensor in parts.items():
        nbytes = tensor.numel() * tensor.element_size()
        table.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), offset, nbytes])
        offset += nbytes + -nbytes % ALIGN
    written = json.dumps(table).encode()
    head = HEAD.pack(MAGIC, VERSION, len(written), model, len(tokens)) + written + np.array(tokens, "<i8").tobytes()
    head += hashlib.blake2b(head, digest_size=SUM).digest()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            size = file.write(head)
            seal = hashlib.blake2b(digest_size=SUM)
            for chunk in [bytes(-size % ALIGN), *(piece for tensor in parts.values() for piece in _padded(tensor))]:
                seal.update(chunk)
                size += file.write(chunk)
            size += file.write(seal.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return size


def read_head(path: Path) -> Head:
    """Everything but the tensors. Raises Broken, Foreign, or OSError for a file that can't be read."""
    with path.open("rb") as file:
        return _head(file)


def read(path: Path) -> tuple[Head, dict[str, torch.Tensor]]:
    """The head and the tensors, every byte checked. Raises as `read_head` does."""
    with path.open("rb") as file:
        head = _head(file)
        after = file.tell()  # behind the first checksum
        rest = bytearray(head.size - after - SUM)
        if file.readinto(rest) != len(rest) or hashlib.blake2b(rest, digest_size=SUM).digest() != file.read(SUM):
            raise Broken("the tensors are not what was written")
    tensors = {}
    for name, dtype, shape, offset, nbytes in head.table:
        at = head.start - after + offset
        count = nbytes // DTYPES[dtype].itemsize
        flat = torch.frombuffer(rest, dtype=DTYPES[dtype], count=count, offset=at) if count else torch.empty(0)
        tensors[name] = flat.to(DTYPES[dtype]).reshape(shape)
    return head, tensors


def _head(file: BinaryIO) -> Head:
    size = os.fstat(file.fileno()).st_size
    first = file.read(HEAD.size)
    if len(first) < HEAD.size or first[:8] != MAGIC:
        raise Broken("this is no state file")
    _, version, table_bytes, model, count = HEAD.unpack(first)
    if version != VERSION:
        raise Foreign(f"its format is version {version}; this reads {VERSION}")
    if count > MOST_TOKENS or HEAD.size + table_bytes + 8 * count + 2 * SUM > size:
        raise Broken("it is cut short")
    body = file.read(table_bytes + 8 * count)
    if hashlib.blake2b(first + body, digest_size=SUM).digest() != file.read(SUM):
        raise Broken("its head is not what was written")
    table = [tuple(row) for row in json.loads(body[:table_bytes])]
    start = file.tell() + -file.tell() % ALIGN
    end = max((offset + nbytes + -nbytes % ALIGN for *_, offset, nbytes in table), default=0)
    if start + end + SUM != size:
        raise Broken("it is cut short" if size < start + end + SUM else "something was added to it")
    tokens: list[int] = np.frombuffer(body, "<i8", count, table_bytes).tolist()
    return Head(model, tokens, table, start, size)


def _padded(tensor: torch.Tensor) -> list[Any]:
    """The tensor's bytes, and zeros up to the next multiple."""
    data = tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b""
    return [data, bytes(-len(data) % ALIGN)]
