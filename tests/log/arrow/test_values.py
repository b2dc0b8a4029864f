"""Python values from Arrow, where Python has them, and text where it has not."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_delta.log.arrow.values import readable, rows_of, to_pylist

DAYS = [2_932_896, 2_932_897, -719_162, -719_163, -719_528, -719_529, -735_415, None, 0]
DATES = [
    dt.date(9999, 12, 31),
    "+10000-01-01",
    dt.date(1, 1, 1),
    "0000-12-31",
    "0000-01-01",
    "-0001-12-31",
    "-0044-07-03",
    None,
    dt.date(1970, 1, 1),
]


def dates(days: list[int | None]) -> pa.Array:
    return pa.array(days, pa.int32()).view(pa.date32())


def test_dates() -> None:
    assert readable(dates(DAYS)) == DATES
    assert readable(dates(DAYS).slice(3, 2)) == DATES[3:5]
    assert [str(each).lstrip("+") for each in DATES if each] == dates(DAYS).drop_null().cast(pa.string()).to_pylist()
    with pytest.raises(OverflowError):
        to_pylist(dates(DAYS))


@pytest.mark.parametrize(("zone", "suffix", "tzinfo"), [(None, "", None), ("UTC", "+00:00", dt.UTC)])
def test_times(zone: str | None, suffix: str, tzinfo: dt.tzinfo | None) -> None:
    counts = [253_402_300_799_999_999, 253_402_300_800_000_000, -62_135_596_800_000_001, 2**63 - 1, -(2**63), None]
    assert readable(pa.array(counts, pa.int64()).view(pa.timestamp("us", zone))) == [
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo),
        f"+10000-01-01T00:00:00{suffix}",
        f"0000-12-31T23:59:59.999999{suffix}",
        f"+294247-01-10T04:00:54.775807{suffix}",
        f"-290308-12-21T19:59:05.224192{suffix}",
        None,
    ]
    assert readable(pa.array([1, -1], pa.timestamp("ms", zone))) == [
        dt.datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo),
    ]


@given(st.lists(st.none() | st.dates(), max_size=5), st.integers(0, 3))
def test_as_arrow_does_where_python_can(values: list[dt.date | None], start: int) -> None:
    array = pa.array(values, pa.date32()).slice(start)
    assert readable(array) == array.to_pylist()
    times = pa.array([None if v is None else dt.datetime(v.year, v.month, v.day) for v in values], pa.timestamp("us"))
    assert readable(times.slice(start)) == times.slice(start).to_pylist()


def test_inside_of_others() -> None:
    day = dates([2_932_897, None, 0])
    structs = pa.StructArray.from_arrays([day, pa.array([1, 2, 3])], names=["d", "n"], mask=pa.array([False, False, True]))
    assert readable(structs) == [{"d": "+10000-01-01", "n": 1}, {"d": None, "n": 2}, None]
    lists = pa.ListArray.from_arrays(pa.array([0, 2, None, 3], pa.int32()), day)
    assert readable(lists) == [["+10000-01-01", None], [dt.date(1970, 1, 1)], None]
    assert readable(lists.slice(1)) == [[dt.date(1970, 1, 1)], None]
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 3], pa.int32()), pa.array(["a", "b", "c"]), day)
    assert readable(maps) == [[("a", "+10000-01-01")], [("b", None), ("c", dt.date(1970, 1, 1))]]
    batch = pa.record_batch({"d": day, "l": pa.array([[1], [], None])})
    assert list(rows_of(batch)) == [
        {"d": "+10000-01-01", "l": [1]},
        {"d": None, "l": []},
        {"d": dt.date(1970, 1, 1), "l": None},
    ]
    assert list(rows_of(batch.select([]))) == [{}] * 3
