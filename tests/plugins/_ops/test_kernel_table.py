"""The table that chooses, and the functions that ask it."""

import ast
import inspect
from pathlib import Path

import pytest
import torch

from tandem.plugins._ops import dispatch, table

ROOT = Path(__file__).parents[3]
FITTING = {
    "rms_norm": {"width": 5120},
    "add_rms_norm": {"width": 5120},
    "gated_rms_norm": {"width": 128},
    "rotate_and_write": {"head size": 256},
    "attend": {"head size": 256, "narrowed": 0},
    "matmul_nvfp4": {"rows": 8, "columns": 5120},
    "matmul_fp8": {"rows": 8, "scale columns": 128},
    "matmul_int4": {"rows": 8, "columns": 5120},
    "gdn_chunked": {"chunk": 64, "key size": 128, "value size": 128},
    "gdn_tree": {"rows": 8, "key size": 128, "value size": 128},
    "gdn_commit": {"rows": 8, "key size": 128, "value size": 128},
}


def chosen(op, device="cuda", capability=90, triton=True, dtype="bfloat16", **changed):
    sizes = {**FITTING[op], **{name.replace("_", " "): value for name, value in changed.items()}}
    return table.choose(op, device, capability, triton, dtype, sizes)


def kernels_of(op):
    return [row.implementation for row in table.TABLE if row.op == op]


@pytest.mark.parametrize("op", FITTING)
def test_a_gpu_takes_the_kernel_where_a_row_fits(op):
    assert chosen(op).startswith("kernels.")


@pytest.mark.parametrize("op", FITTING)
@pytest.mark.parametrize("place", [("cpu", 0), ("mps", 0), ("cuda", 75), ("cuda", 0)])
def test_a_cpu_an_old_gpu_and_any_other_device_take_the_reference(op, place):
    assert chosen(op, *place) == table.REFERENCES[op]


@pytest.mark.parametrize("op", FITTING)
def test_without_triton_a_gpu_takes_no_kernel(op):
    assert not chosen(op, triton=False).startswith("kernels.")


@pytest.mark.parametrize(
    ("op", "changed"),
    [
        ("rms_norm", {"width": 16385}),
        ("attend", {"head_size": 72}),
        ("attend", {"narrowed": 1}),
        ("attend", {"head_size": 512}),
        ("matmul_int4", {"rows": 33}),
        ("matmul_int4", {"columns": 48}),
        ("matmul_fp8", {"scale_columns": 64}),
        ("gdn_tree", {"rows": 33}),
        ("gdn_tree", {"key_size": 256}),
        ("gdn_commit", {"rows": 0}),
        ("gdn_chunked", {"chunk": 128}),
        ("gdn_chunked", {"value_size": 24}),
    ],
)
def test_a_shape_beyond_a_bound_takes_the_reference(op, changed):
    assert chosen(op, **changed) == table.REFERENCES[op]


def test_many_rows_of_a_packed_matrix_are_unpacked_on_a_gpu():
    assert chosen("matmul_nvfp4", rows=32) == "kernels.gemm:matmul_nvfp4"
    assert chosen("matmul_nvfp4", rows=33) == "packed:unpacked_matmul_nvfp4"
    assert chosen("matmul_nvfp4", rows=33, triton=False) == "packed:unpacked_matmul_nvfp4"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_number_type_that_no_row_names_takes_the_reference(dtype):
    assert chosen("attend", dtype=dtype) == "attention:attend"


@pytest.mark.parametrize("row", table.TABLE, ids=lambda row: row.implementation)
def test_an_implementation_takes_what_its_reference_takes(row):
    """Read from the source: a test on a CPU imports no kernel."""
    module, _, name = row.implementation.partition(":")
    tree = ast.parse((ROOT / "plugins" / "_ops" / (module.replace(".", "/") + ".py")).read_text())
    [function] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    ours = [argument.arg for argument in function.args.args]
    theirs = list(inspect.signature(table.load(table.REFERENCES[row.op])).parameters)
    if row.op == "attend":
        theirs.remove("allowed")  # what the bound `narrowed` is about
    assert ours[: len(theirs)] == theirs
    assert len(function.args.defaults) >= len(ours) - len(theirs)


@pytest.mark.parametrize("op", table.REFERENCES)
def test_every_operation_is_called_as_its_reference_is(op):
    ours = inspect.signature(getattr(dispatch, op)).parameters.values()
    theirs = inspect.signature(table.load(table.REFERENCES[op])).parameters.values()
    assert [(one.name, one.default) for one in ours] == [(one.name, one.default) for one in theirs]


def test_each_row_is_of_a_known_operation_and_can_be_reached():
    for row in table.TABLE:
        assert row.op in table.REFERENCES
    assert all(kernels_of(op) for op in table.REFERENCES)


def test_the_page_prints_the_table():
    assert table.markdown() in (ROOT / "docs" / "kernels.md").read_text()


# ------------------------------------------------------------------------------------------------------ what is called


def test_the_operations_on_a_cpu_are_their_references():
    x, weight = torch.randn(3, 8), torch.randn(8)
    reference = table.load("norm:rms_norm")
    assert torch.equal(dispatch.rms_norm(x, weight, 1e-6, True), reference(x, weight, 1e-6, True))
    q, keys = torch.randn(2, 4, 8), torch.randn(2, 5, 8)
    allowed = torch.ones(2, 5, dtype=torch.bool)
    allowed[:, 0] = False
    attend = table.load("attention:attend")
    assert torch.equal(
        dispatch.attend(q, keys, keys, 3, None, 0.3, allowed), attend(q, keys, keys, 3, None, 0.3, allowed)
    )


def asked(monkeypatch):
    """What the table is asked while a call runs on a CPU."""
    seen = []
    choose = table.choose

    def note(op, device, capability, triton, dtype, sizes):
        seen.append((op, dtype, dict(sizes)))
        return choose(op, device, capability, triton, dtype, sizes)

    monkeypatch.setattr(table, "choose", note)
    dispatch._chosen.cache_clear()
    return seen


def test_every_size_that_a_bound_names_is_told(monkeypatch):
    seen = asked(monkeypatch)
    x = torch.randn(2, 32).bfloat16()
    q, state = torch.randn(2, 1, 16), torch.zeros(1, 16, 16)
    g, mask = torch.zeros(2, 1), torch.zeros(2, 2, dtype=torch.bool)
    cache, angles = torch.zeros(1, 4, 16), torch.zeros(2, 4)
    matrix = torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 1), torch.zeros(4, 1)
    dispatch.rms_norm(x, torch.ones(32), 1e-6)
    dispatch.add_rms_norm(x, x, torch.ones(32), 1e-6)
    dispatch.rotate_and_write(q, q, q, angles, angles, cache, cache.clone(), 0)
    dispatch.attend(q, cache, cache, 2, None, 1.0)
    dispatch.gated_rms_norm(x, x, torch.ones(32), 1e-6)
    dispatch.matmul_int4(x, *matrix)
    dispatch.matmul_fp8(x, torch.zeros(4, 32).to(torch.float8_e4m3fn), torch.ones(1, 1), (4, 32))
    dispatch.matmul_nvfp4(x, matrix[0], torch.zeros(4, 2).to(torch.float8_e4m3fn), torch.tensor(1.0))
    _, u, decay = dispatch.gdn_tree(q, q, q, g, g, state, mask)
    dispatch.gdn_commit(state, q, u, decay, [0, 1])
    dispatch.gdn_chunked(q, q, q, g, g, state)
    assert [op for op, _, _ in seen] == [
        "rms_norm", "add_rms_norm", "rotate_and_write", "attend", "gated_rms_norm", "matmul_int4", "matmul_fp8",
        "matmul_nvfp4", "gdn_tree", "gdn_commit", "gdn_chunked",
    ]  # fmt: skip
    for op, dtype, sizes in seen:
        assert sizes.keys() == FITTING[op].keys()
        assert dtype == ("bfloat16" if "norm" in op or "matmul" in op else "float32")
    assert seen[5][2] == {"rows": 2, "columns": 32}
    assert seen[9][2] == {"rows": 2, "key size": 16, "value size": 16}


def test_queries_of_another_type_than_the_cache_are_not_for_a_kernel(monkeypatch):
    seen = asked(monkeypatch)
    q, cache = torch.randn(1, 1, 16).bfloat16(), torch.zeros(1, 3, 16)
    dispatch.attend(q, cache, cache, 2, None, 1.0)
    assert seen == [("attend", "bfloat16", {"head size": 16, "narrowed": 1})]
