"""What ``partition_events`` takes, checked while a Dag is parsed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from airflow_delta.contract.delta_names import HIVE_NULL
from airflow_delta.contract.partition_events import KeyField, PartitionEvents, spelled
from airflow_delta.exceptions import DeltaIllegalArgumentException

REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ("{day", {}, "is not a template"),
    ("{}", {}, "must name a column"),
    ("{day!r}", {}, "must name a column"),
    ("{{day}}", {}, "names no column"),
    ("x" * 250 + "{day}", {}, "250 characters or more"),
    (3, {}, "got int"),
    (None, {"max_keys": 0}, "max_keys"),
    (None, {"max_keys": True}, "max_keys"),
    (None, {"beyond": "all"}, "beyond must be one of many, fail"),
    (None, {"long_keys": "cut"}, "long_keys must be one of fail, hash"),
    (None, {"timezone": "Middle/Earth"}, "is not known"),
    ("day", {"column": "day"}, "is for a function"),
]


@pytest.mark.parametrize(("key", "options", "problem"), REFUSED)
def test_what_is_refused(key: Any, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match=problem):
        PartitionEvents(key, **options)


def test_short_forms() -> None:
    assert PartitionEvents.of(None) is PartitionEvents.of(False) is None
    assert PartitionEvents.of(True) == PartitionEvents()
    assert PartitionEvents.of("day") == PartitionEvents("day")
    named = PartitionEvents("{day:%Y-%m}")
    assert PartitionEvents.of(named) is named
    assert named.fields(["day"]) == [KeyField("", "day", "%Y-%m")]
    assert PartitionEvents().fields(["region", "day"]) == [KeyField("", "region", ""), KeyField("|", "day", "")]


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (7, "7"), (b"\x01\xff", "01ff"), (None, HIVE_NULL)])
def test_spelling(value: Any, text: str) -> None:
    assert spelled(value) == text


@pytest.mark.parametrize("key", ["", "  ", "a\0b", "x" * 251])
def test_keys_that_airflow_does_not_take(key: str) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match="and Airflow takes"):
        PartitionEvents().keys([key])
    (hashed,) = PartitionEvents(long_keys="hash").keys([key]) or ()
    assert hashed.strip()
    assert len(hashed) <= 250
    assert "\0" not in hashed


def test_what_airflow_stores_is_the_same_in_every_process() -> None:
    """As part of ``default_args`` or of a mapped task it is stored as text, and another text is a new version of the Dag."""
    text = repr(PartitionEvents(lambda values: values["day"], column="day"))
    assert "<lambda>', column='day', exact=False, timezone='UTC'" in text
    assert " at 0x" not in text + repr(PartitionEvents(partial(str, 3)))
