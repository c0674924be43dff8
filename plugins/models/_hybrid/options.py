"""The options of every builder of hybrid models. Imported when a manifest is checked, so nothing heavy is here."""

from __future__ import annotations

from tandem.core.plugin import option

OPTIONS = {
    "dtype": option(
        "string",
        "The number type of dense weights, of keys and of values: `auto` takes bfloat16 on a GPU and where the CPU "
        "computes in it, else float32. The recurrent state and the residual are float32 in any case.",
        "auto",
        enum=["auto", "float32", "bfloat16"],
    ),
    "device": option(
        "string",
        "What computes: `auto` takes the GPU where there is one, else the CPU.",
        "auto",
        enum=["auto", "cpu", "cuda"],
    ),
    "mtp": option(
        "string",
        "Multi-token prediction: `auto` loads it where the checkpoint has it, `on` refuses a checkpoint without it.",
        "auto",
        enum=["auto", "on", "off"],
    ),
    "vision": option(
        "string",
        "The vision tower: `auto` loads it where the checkpoint has it, `on` refuses a checkpoint without it.",
        "auto",
        enum=["auto", "on", "off"],
    ),
    "image_rows_mib": option(
        "number",
        "How much memory the rows of pictures may take once the vision tower has made them, in MiB: a picture that is "
        "shown again is not read again. The latest picture's rows are kept in any case.",
        256,
        minimum=0,
    ),
}
