import pytest
import torch
from tandem.core.plugin import ModelError

import tandem_row_int8

CONFIG = {"quant_method": "row_int8", "ignore": ["lm_head"]}
CODES = torch.tensor([[1, -2, 127], [-128, 0, 64]], dtype=torch.int8)
STORED = {"up.weight": CODES, "up.weight_scale": torch.tensor([0.5, 0.25])}


def pack(stored):
    scheme = tandem_row_int8.open_scheme({}, CONFIG)
    return scheme.pack("up", (2, 3), stored.__getitem__, torch.device("cpu"))


def test_a_matrix_is_what_its_codes_say():
    matrix = pack(STORED)
    assert matrix.dense().tolist() == [[0.5, -1.0, 63.5], [-32.0, 0.0, 16.0]]
    assert (matrix.shape, matrix.nbytes) == ((2, 3), 6 + 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_that_of_the_matrix_it_stands_for(dtype):
    matrix = pack(STORED)
    rows = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]], dtype=dtype)
    torch.testing.assert_close(matrix(rows), (rows.float() @ matrix.dense().t()).to(dtype))


def test_the_scheme_says_what_is_stored_and_held():
    scheme = tandem_row_int8.open_scheme({}, CONFIG)
    assert scheme.tensors("up", (2, 3)) == {"up.weight": (2, 3), "up.weight_scale": (2,)}
    assert scheme.nbytes("up", (2, 3)) == pack(STORED).nbytes
    assert scheme.tensors("lm_head", (9, 3)) is None


def test_a_scale_that_is_no_number_is_refused_by_name():
    with pytest.raises(ModelError, match=r"up\.weight_scale"):
        pack({**STORED, "up.weight_scale": torch.tensor([0.5, float("nan")])})


def test_other_checkpoints_are_left_to_others():
    assert tandem_row_int8.open_scheme({}, {"quant_method": "gptq"}) is None


def test_it_can_be_switched_on(platform):
    host = platform(quantizations=["row_int8"], plugins=[tandem_row_int8])
    assert host.plugin("quantizations", "row_int8")["state"] == "active"
