"""What running a hybrid model takes beside its weights and its sequences, from its configuration alone.

Every function adds up, for one row (or one token that rows look back to), the tensors that are alive at the same time
in the most demanding moment of its layer. The sums follow the plain torch operators; the kernels of a GPU take less.
The memory gate refuses by these numbers, so they are meant to be bounds, and the tests hold them against what torch's
allocator records.

`n` is the size of a number of the layers' type, 2 or 4 bytes; the residual and all sums are float32, `F` bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandem.plugins._ops import table
from tandem.plugins._ops.attention import TILE as ATTENTION_TILE
from tandem.plugins._ops.packed import WORKSPACE as UNPACKED
from tandem.plugins.models._hybrid import plan as plans
from tandem.plugins.models._hybrid.config import HybridConfig, IndexerConfig, VisionConfig
from tandem.plugins.models._hybrid.draft import CATCH_UP_ROWS
from tandem.plugins.models._hybrid.rows import KEPT_ROWS
from tandem.plugins.models._hybrid.weights import Loader

F = 4
"""Bytes of a float32 number."""
LONG = 8
"""Bytes of an index."""
GDN_CHUNK = 64
"""Rows of a chain that the delta rule takes at once."""
CHOSEN_TILE = 32
"""Rows whose chosen keys are gathered at once."""
SCORED_TILE = 64
"""Rows whose blocks are scored at once."""


def facts(loader: Loader, found: plans.Plan, image_room: int) -> Mapping[str, int]:
    """The facts that the memory gate reads (`Model.facts`). `image_room` bytes are for the rows of pictures."""
    config, n = loader.config, loader.dtype.itemsize
    told = {
        "workspace_bytes_per_row": per_row(config, n, found.mtp),
        "workspace_bytes_per_token": per_token(config, n, fused=loader.device.type == "cuda" and table.has_triton()),
        "workspace_bytes": fixed(config, n, found.mtp) + (2 * UNPACKED if loader.quantized_by else 0),
    }
    if found.vision and config.vision:
        told |= {
            "image_bytes_per_row": config.vision.out_hidden * n,
            "image_kept_bytes": image_room,
            "image_workspace_bytes_per_row": picture_row(config.vision, n),
        }
    return told


def per_row(config: HybridConfig, n: int, mtp: bool) -> int:
    """Of one row of a pass."""
    layer = max(_gdn(config, n), _attention(config, n)) + _residual(config, n)
    mlp = _moe(config, n) if config.moe else 3 * config.intermediate_size * n
    mlp += _residual(config, n) + 2 * config.hidden_size * n
    ple = _ple(config, n) if config.ple else 0
    # The residual, the embedding, the positions and the turns.
    always = config.width * F + config.hidden_size * n + 3 * LONG + 2 * config.rotary_dim * F
    # The hidden row for the head, once as the pass left it and once as it was committed, and the head's norm of it.
    head = 2 * (config.width * (2 * n + F) + config.hidden_size * n) + 6 * LONG if mtp else 0
    return always + max(layer, mlp, ple) + head


def per_token(config: HybridConfig, n: int, fused: bool = False) -> int:
    """Of one token that the rows of a pass look back to: committed, or of the pass itself. `fused`: a kernel keeps the
    scores of the attention to itself."""
    buffer = plans.kv_bytes_of_layer(config, n)  # what a layer's buffer grows out of, until it is copied
    if config.indexer:  # attention reads chosen tokens only, see `fixed`
        return buffer + _scores(config.indexer, n)
    if fused:
        return buffer
    widened = 2 * config.kv_heads * config.head_dim * F if n < F else 0
    return buffer + widened + _attended(config)


def fixed(config: HybridConfig, n: int, mtp: bool) -> int:
    """In any pass: a chunk of the delta rule, states that wait for `commit`, and the logits of a verified tree."""
    gdn, rows = config.gdn, KEPT_ROWS + 1
    state = gdn.value_heads * gdn.key_dim * gdn.value_dim * F
    chunk = GDN_CHUNK * gdn.value_heads * F * (4 * gdn.key_dim + 6 * gdn.value_dim + 6 * GDN_CHUNK)
    waiting = plans.state_bytes(config) + plans.conv_bytes(config, n)
    branch = 2 * gdn.key_heads * gdn.key_dim + 2 * gdn.value_heads * gdn.value_dim
    branches = len(config.linear_layers) * rows * (branch * F + gdn.channels * n)
    logits = rows * config.vocab_size * (3 * F + 2 * n)
    total = 4 * state + chunk + max(waiting, branches) + logits
    if mtp:  # the rows that wait for the head
        total += CATCH_UP_ROWS * (config.width * n + config.hidden_size * n + 3 * LONG)
    if config.indexer:
        total += _chosen(config, config.indexer, n)
    return total


def picture_row(vision: VisionConfig, n: int) -> int:
    """Of one row of the picture that the tower reads: a merged patch."""
    hidden, numbers = vision.hidden, vision.patch_numbers
    pixels = numbers * (F + n) + numbers * F // 2  # the patches, in numpy and in torch, and one channel of them
    places = hidden * F * 4 + 4 * LONG + 4 * hidden // vision.heads * F
    block = hidden * (4 * n + 3 * n + 4 * F + 6 * n)  # norm, q, k, v, their turned copies, attention
    mlp = 2 * vision.mlp * n + 4 * hidden * n
    patch = pixels + hidden * 2 * n + max(places, block, mlp)
    return vision.merge**2 * patch + 2 * vision.merge**2 * hidden * n + 2 * vision.out_hidden * n


# ------------------------------------------------------------------------------------------------------ the layers


def _residual(config: HybridConfig, n: int) -> int:
    """The way in and out of a sub-block: the norm of the residual, its result, and the sum."""
    if config.hyper:
        return config.width * (4 * F + 3 * n) + 2 * config.hyper.low_rank * (n + F) + config.hidden_size * (2 * n + F)
    return config.hidden_size * (2 * F + 3 * n)


def _gdn(config: HybridConfig, n: int) -> int:
    """Gated DeltaNet: the projections, the convolution in float32, q and k normed, the rule's results, the gate."""
    gdn = config.gdn
    keys, values = gdn.key_heads * gdn.key_dim, gdn.values
    convolved = gdn.channels * (4 * n + 3 * F)
    ruled = gdn.channels * 2 * n + 6 * keys * F + values * 3 * F
    gated = gdn.channels * n + values * (5 * F + 2 * n)
    return max(convolved, ruled, gated) + 6 * gdn.value_heads * F


def _attention(config: HybridConfig, n: int) -> int:
    """Gated attention over the rows' own heads: queries with their gates, normed and turned, and the result."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return queries * (6 * n + 4 * F) + keys * (4 * n + 3 * F) + (_index_row(config.indexer, n) if config.indexer else 0)


def _attended(config: HybridConfig) -> int:
    """The scores of a tile of rows with one token and the weights made of them, and what the rows may see."""
    return ATTENTION_TILE * (config.heads * 2 * F + 4) + LONG


def _moe(config: HybridConfig, n: int) -> int:
    """The sparse MLP in the worst case, all rows with one expert: the router, the expert and its share of the sum, the
    shared expert."""
    moe, hidden = config.moe, config.hidden_size
    assert moe is not None
    router = moe.experts * (n + 2 * F) + moe.top_k * (4 * LONG + 3 * F)
    expert = hidden * (2 * n + 2 * F) + moe.expert_size * 4 * n
    shared = moe.shared_size * 4 * n + hidden * (n + 3 * F)
    return router + hidden * F + max(expert, shared)


def _ple(config: HybridConfig, n: int) -> int:
    """The n-gram embedding: its hashes and rows, keys and queries of every stream, the convolution."""
    ple = config.ple
    assert ple is not None
    return config.width * (8 * F + 3 * n) + ple.embed_dim * (F + 2 * n) + 6 * ple.all_heads * LONG


def _index_row(index: IndexerConfig, n: int) -> int:
    """One row in the indexer: its queries and key, and the numbers of the tokens that it chose."""
    chosen = index.budget + index.block
    return (index.heads + 1) * index.dim * (3 * n + 3 * F) + chosen * (3 * LONG + 4) + index.budget // index.block * 40


def _scores(index: IndexerConfig, n: int) -> int:
    """One token in the indexer: its share of its block's key, of the scores of a tile, and of the blocks' members."""
    tile = SCORED_TILE * (2 * index.heads * F + F + 4 * LONG + 2)
    return -(-(tile + index.dim * (n + 2 * F)) // index.block) + 3 * LONG


def _chosen(config: HybridConfig, index: IndexerConfig, n: int) -> int:
    """A tile of rows over the tokens that they chose; and, up to the budget, over all tokens."""
    tokens = index.budget + index.block
    gathered = CHOSEN_TILE * tokens * (2 * config.kv_heads * config.head_dim * n + config.heads * (4 * F + n) + 4)
    widened = 2 * config.kv_heads * config.head_dim * F if n < F else 0
    return max(gathered, tokens * (_attended(config) + widened))
