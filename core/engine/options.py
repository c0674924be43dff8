"""The options of the manifest's `server` section."""

from __future__ import annotations

from tandem.core.conductor.options import CONDUCTOR_OPTIONS
from tandem.core.plugin.part import option

IMAGE_OPTIONS = {
    "max_images": option("integer", "The most images in a request; older ones are left out.", 16, minimum=1),
    "max_image_rows": option(
        "integer", "The most prompt rows of a request's images together; older images are left out.", 65536, minimum=1
    ),
    "image_max_mb": option("number", "The largest encoded image, in MiB.", 20, exclusiveMinimum=0),
    "image_max_decode_pixels": option(
        "integer", "The most pixels that an image's header may declare.", 64_000_000, minimum=1, maximum=89_000_000
    ),
    "image_https": option("boolean", "Whether the server downloads https images; otherwise data: URLs only.", True),
    "image_https_private": option("boolean", "Whether an https image may lie at a private address.", False),
    "image_fetch_timeout_s": option(
        "number", "How long one download may take, redirects included, in seconds.", 15, exclusiveMinimum=0
    ),
}
"""What images a request may carry. The pixel limit ends where Pillow's own warning begins."""

MEMORY_OPTIONS = {
    "mem_ceiling_gib": option(
        ["number", "string"],
        "What the engine may hold between requests, in GiB; caches give way above it. `auto` leaves the longest prompt "
        "its room below the peak.",
        "auto",
        exclusiveMinimum=0,
        pattern="^auto$",
    ),
    "mem_peak_gib": option(
        ["number", "string"],
        "What the engine may hold while a prompt is read, in GiB; `auto` is all memory but the floor.",
        "auto",
        exclusiveMinimum=0,
        pattern="^auto$",
    ),
    "mem_floor_gib": option(
        ["number", "string"],
        "What must stay free of the machine's memory (or the GPU's), in GiB; `auto` is a sixteenth of it, at most 8 "
        "and a quarter of what is available at the start.",
        "auto",
        minimum=0,
        pattern="^auto$",
    ),
    "parallel_floor_gib": option(
        ["number", "string"],
        "What must stay free of the machine's memory (or the GPU's) when a request starts beside others, in GiB; "
        "`auto` is twice `mem_floor_gib`, 0 asks for no more than that.",
        "auto",
        minimum=0,
        pattern="^auto$",
    ),
}
"""The memory gate's limits."""

SERVER_OPTIONS = {
    "host": option("string", "The address to listen on.", "127.0.0.1"),
    "port": option("integer", "The TCP port to listen on; 0 picks a free one.", 8000, minimum=0, maximum=65535),
    "parallel": option(
        "integer",
        "How many requests are generated at once, in joint passes over one copy of the weights.",
        2,
        minimum=1,
    ),
    "max_queue": option(
        "integer", "How many requests may wait for a free place; one more is refused with a 503.", 8, minimum=0
    ),
    "conversation_wait_s": option(
        "number",
        "How long a request that goes on with a conversation waits while another one reads what both share, in "
        "seconds; 0 lets it read at once.",
        3,
        minimum=0,
    ),
    "turn_quantum_ms": option(
        "number",
        "While one request reads its prompt and others write, a prefill chunk is cut so that its pass takes about this "
        "long, in milliseconds.",
        50,
        exclusiveMinimum=0,
    ),
    "decode_share": option(
        "number",
        "The least share of the time that those who write keep while a prompt is read.",
        0.5,
        minimum=0,
        maximum=0.95,
    ),
    "side_lane": option(
        "string",
        "Whether a short request that finds all places taken is served beside them: `on`, `off`, or `decode` for only "
        "while all of them write.",
        "on",
        enum=["on", "decode", "off"],
    ),
    "side_lane_prompt_max": option("integer", "The longest prompt in the side lane, in tokens.", 2048, minimum=1),
    "side_lane_new_max": option("integer", "The longest answer in the side lane, in tokens.", 64, minimum=1),
    "queue_timeout_s": option(
        "number",
        "How long a request that is not streamed may wait for a place before its 429, in seconds.",
        240,
        exclusiveMinimum=0,
    ),
    "request_timeout_s": option(
        "number", "How long one request may run before it ends with `timeout`, in seconds.", 3600, exclusiveMinimum=0
    ),
    "default_max_tokens": option("integer", "The output limit of a request that names none.", 8192, minimum=1),
    "max_len": option(
        "integer",
        "The longest prompt and answer together, in tokens; 0 takes the model's own limit.",
        0,
        minimum=0,
    ),
    "prefill_chunk": option("integer", "How many prompt tokens one pass reads.", 512, minimum=1),
    "keepalive_s": option(
        "number",
        "A stream that has sent nothing for this long sends a comment line, in seconds.",
        10,
        exclusiveMinimum=0,
    ),
    "drain_timeout_s": option(
        "number", "How long a stopping server waits for running answers, in seconds.", 60, minimum=0
    ),
    "temperature": option(
        "number", "The temperature of a request that names none; 0 is greedy.", 0.0, minimum=0, maximum=2
    ),
    "top_p": option("number", "The nucleus of a request that names none.", 1.0, exclusiveMinimum=0, maximum=1),
    "top_k": option("integer", "The top-k of a request that names none; 0 is off.", 0, minimum=0),
    "format": option(
        "string",
        "The format that reads the model's reasoning and calls; `auto` takes the first that fits its template.",
        "auto",
    ),
    "reasoning_format": option(
        "string",
        "How reasoning is sent to a request that does not say: in `tags`, as `reasoning_content`, in `both`, `hidden`, "
        "or `auto` for what suits the client.",
        "auto",
        enum=["auto", "tags", "reasoning_content", "both", "hidden"],
    ),
    "answer_reserve": option(
        ["integer", "string"],
        "Tokens of the output limit that a thinking budget leaves for the answer; `auto` is a quarter, 2048 at most.",
        "auto",
        minimum=0,
        pattern="^auto$",
    ),
    "regenerate": option(
        "string",
        "Whether a conversation that a chat sends again is sampled, so that it gets another answer; it changes only "
        "greedy requests.",
        "on",
        enum=["on", "off"],
    ),
    "regenerate_temperature": option(
        "number", "The temperature of a regenerated answer.", 0.7, exclusiveMinimum=0, maximum=2
    ),
    "regenerate_top_p": option("number", "The nucleus of a regenerated answer.", 0.95, exclusiveMinimum=0, maximum=1),
    "regenerate_top_k": option("integer", "The top-k of a regenerated answer; 0 is off.", 20, minimum=0),
    "replay_mib": option(
        "number",
        "Memory for what the model wrote in earlier turns, in MiB, so that a turn that a client sends back in other "
        "words is read as it was written; 0 reads every turn as it is sent.",
        64,
        minimum=0,
    ),
    "replay_disk_mib": option(
        "number",
        "Disk for the same turns, in MiB, so that a restarted server still knows them; 0 keeps them in memory only.",
        256,
        minimum=0,
    ),
    "replay_days": option(
        "number", "How long a turn that nobody sends back stays on disk, in days.", 14, exclusiveMinimum=0
    ),
    "admin_token": option(
        ["string", "null"],
        "What the admin routes ask for, at least 32 characters, as `{$env: NAME}` or `{$file: PATH}`; `null` opens "
        "them to everybody.",
        None,
    ),
    "metrics_token": option(
        ["string", "null"],
        "What `/metrics` asks for, at least 32 characters, as `{$env: NAME}` or `{$file: PATH}`; `null` asks for "
        "nothing of its own.",
        None,
    ),
    "trust_loopback": option(
        "boolean", "Whether a request from this machine itself, with no proxy between, needs no admin token.", True
    ),
    "drafter_check": option(
        "boolean",
        "Whether each drafter runs a few short generations at start; one that changes a token or breaks the contract "
        "is switched off.",
        True,
    ),
    "ledger": option(
        ["string", "null"],
        "The SQLite file that gets one row for each request, counts and times only; `auto` is `ledger.sqlite` in the "
        "state directory, `null` keeps none.",
        None,
    ),
    "ledger_days": option("number", "How long the ledger keeps a row, in days.", 400, exclusiveMinimum=0),
    "torch_threads": option("integer", "CPU threads for the model; 0 leaves torch's own choice.", 0, minimum=0),
    **MEMORY_OPTIONS,
    **IMAGE_OPTIONS,
}

SECTIONS = {"server": SERVER_OPTIONS, "conductor": CONDUCTOR_OPTIONS}
"""The manifest's sections that are not about plugins."""
