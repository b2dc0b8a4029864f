"""What an API server and its readers tell each other."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.ui.reader.messages import decode_json, encode_json
from airflow_delta.ui.reader.pool import Reader
from support.actions import add
from support.tables import create_table

HALF = "\ud83d"
"""Half of a pair of surrogates: Python has such texts, UTF-8 does not."""


@pytest.mark.parametrize("value", [{"a": [1, 2.5, None, True, "ü"]}, {"text": HALF}, {HALF: 1}, 2**80, [-(2**70)]], ids=ascii)
def test_a_value_arrives_as_it_was(value: Any) -> None:
    assert decode_json(encode_json(value)) == value


def test_what_only_python_writes_is_read() -> None:
    assert math.isnan(decode_json(json.dumps(math.nan).encode()))
    assert decode_json(b"1e999") == math.inf
    with pytest.raises(ValueError, match="Expecting"):
        decode_json(b"{")


def test_a_reader_answers_what_utf_8_lacks(tmp_path: Path) -> None:
    create_table(tmp_path / "t", add("a.parquet"))
    reader = Reader()
    try:
        asked = {
            "what": "history",
            "uri": str(tmp_path / "t"),
            "arguments": {"limit": 5, "before": None, "known": {HALF: [1, 1]}},
        }
        assert [commit["version"] for commit in reader.ask(asked, 60)["result"]["commits"]] == [0]
        refused = reader.ask({**asked, "uri": str(tmp_path / HALF)}, 60)
        assert "UnicodeEncodeError" in refused["kinds"], refused
        assert reader.is_fit
    finally:
        reader.stop()
