"""The Triton kernels, each in a process that Triton is imported in the way the test needs."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install 'tandem-llm[gpu]'"
)


def run(*arguments, **environment):
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=600
    )


@needs_triton
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this run has the kernels' own tests in it")
def test_the_kernels_pass_their_tests_in_tritons_interpreter():
    done = run("-m", "pytest", "tests/plugins/_ops/kernels", "-q", "-p", "no:cacheprovider", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@needs_triton
def test_the_kernels_compile_and_fit_into_the_least_shared_memory_there_is(tmp_path):
    done = run("benchmarks/kernels.py", "--compile", "121", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "plugins" / "_ops" / "kernels").glob("*.py"))
    kernels = re.findall(r"@triton\.jit.*\ndef (\w+)", sources)
    assert len(kernels) > 10
    for kernel in kernels:
        assert f" {kernel} " in done.stdout


def test_the_operations_work_on_a_cpu_where_triton_is_not_installed():
    program = """
import sys
sys.modules["triton"] = None  # an import of it fails
import torch
from tandem.plugins._ops import dispatch, table
assert torch.equal(dispatch.rms_norm(torch.ones(2, 4), torch.ones(4), 0.0), torch.ones(2, 4))
assert all(table.load(name) for name in table.REFERENCES.values())
"""
    done = run("-c", program)
    assert done.returncode == 0, done.stderr


@needs_triton
def test_a_cpu_imports_nothing_of_triton():
    program = """
import sys, torch
from tandem.plugins._ops import dispatch
before = "triton" in sys.modules  # torch may have looked for it
state = torch.zeros(1, 16, 16)
row = torch.zeros(1, 1, 16)
dispatch.gdn_tree(row, row, row, row[0, :, :1], row[0, :, :1], state, torch.zeros(1, 1, dtype=torch.bool))
assert not any(name.startswith("tandem.plugins._ops.kernels") for name in sys.modules)
assert ("triton" in sys.modules) == before
"""
    done = run("-c", program)
    assert done.returncode == 0, done.stderr
