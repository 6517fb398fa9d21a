# SPDX-License-Identifier: Apache-2.0
from agnosticfl.files import finite


def test_json_gets_null_for_what_it_does_not_have():
    value = {"a": [1.0, float("nan")], "b": float("inf"), "c": "text", "d": 3}
    assert finite(value) == {"a": [1.0, None], "b": None, "c": "text", "d": 3}
