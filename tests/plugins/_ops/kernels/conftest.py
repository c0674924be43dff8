"""The kernels in Triton's interpreter.

Triton decides at its import whether kernels are interpreted, and other tests may import it too, so these run in a
process of their own: `../test_kernels_apart.py` starts it, and `TRITON_INTERPRET=1 pytest tests/plugins/_ops/kernels`
does the same by hand.
"""

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `from kernel_cases import ...`

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True)
def quiet_and_repeatable():
    torch.set_num_threads(1)
    torch.manual_seed(0)
