"""What a client says about a tool's effects reaches the rules, wherever it writes it."""

import pytest

from tandem.api.structured import offered_tools

HINTS = {"readOnlyHint": True}


@pytest.mark.parametrize(
    ("beside", "inside", "expected"),
    [
        ({"annotations": HINTS}, {}, HINTS),
        ({}, {"annotations": HINTS}, HINTS),
        ({"annotations": "none"}, {}, {}),
        ({"annotations": None}, {"annotations": 5}, {}),
        ({}, {}, {}),
    ],
)
def test_annotations_are_read_beside_the_function_and_in_it(beside, inside, expected):
    (tool,) = offered_tools([{"type": "function", "function": {"name": "look", **inside}, **beside}])
    assert dict(tool.annotations) == expected
