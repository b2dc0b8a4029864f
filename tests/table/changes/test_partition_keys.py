"""Which partitions a commit has changed, and the keys of their events: tables of delta-rs and of this provider."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path

import deltalake
import msgspec
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from airflow_delta.contract.partition_events import MANY, PartitionEvents
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import AddCDCFile
from airflow_delta.log.actions.decode import decode_commit
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector
from airflow_delta.table.changes.column_values import column_values
from airflow_delta.table.changes.partition_keys import changed_partitions, check_partition_keys
from support.actions import SCHEMA, add, metadata, protocol, remove
from support.tables import create_table, write_commit

NULL = "__HIVE_DEFAULT_PARTITION__"
DAYS = [dt.date(2026, 11, 24), dt.date(2026, 11, 25)]


def keys(table: Path | str, version: int, given: object = True) -> tuple[str, ...]:
    events = given if isinstance(given, PartitionEvents) else PartitionEvents.of(given)
    assert events is not None
    return changed_partitions(DeltaLog.for_table(str(table)), version, events, read=column_values)


def write(table: Path, by: list[str], *, mode: str = "append", **columns: list) -> None:
    deltalake.write_deltalake(str(table), pa.table(columns), mode=mode, partition_by=by or None)


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    """By region and day, one commit for two days of ``eu``."""
    table = tmp_path / "sales"
    write(table, ["region", "day"], region=["eu", "eu"], day=DAYS, amount=[1, 2])
    return table


def test_keys_of_partition_values(sales: Path) -> None:
    assert sorted(keys(sales, 0)) == ["eu|2026-11-24", "eu|2026-11-25"]
    assert sorted(keys(sales, 0, "day")) == ["2026-11-24", "2026-11-25"]
    assert keys(sales, 0, "{day:%Y-%m}") == ("2026-11",)
    assert keys(sales, 0, "{REGION}/{day:%Y}") == ("eu/2026",)
    assert keys(sales, 0, lambda values: [values["region"].upper(), str(values["day"].year)]) == ("EU", "2026")
    assert keys(sales, 0, lambda _: None) == ()


def test_only_partitions_whose_rows_changed(sales: Path) -> None:
    table = deltalake.DeltaTable(str(sales))
    for amount in (3, 4):
        write(sales, ["region", "day"], region=["us"], day=DAYS[:1], amount=[amount])
    table.update_incremental()
    table.delete("region = 'eu' AND day = '2026-11-25'")
    table.optimize.compact()
    table.update(updates={"amount": "amount + 1"}, predicate="amount = 1")
    assert keys(sales, 1) == ("us|2026-11-24",)
    assert keys(sales, 3) == ("eu|2026-11-25",)
    assert keys(sales, 4) == ()  # OPTIMIZE
    assert keys(sales, 5) == ("eu|2026-11-24",)


def test_spelling(tmp_path: Path) -> None:
    table = tmp_path / "spelled"
    moment = dt.datetime(2026, 11, 25, 10, 42, 15, tzinfo=dt.UTC)
    write(table, ["name", "at"], name=["a|b%", None], at=[moment, moment], amount=[1, 2])
    # The columns of a key can be told apart; one alone is as it is.
    assert set(keys(table, 0)) == {"a%7Cb%25|2026-11-25T10:42:15", f"{NULL}|2026-11-25T10:42:15"}
    assert set(keys(table, 0, "name")) == {"a|b%", NULL}
    assert keys(table, 0, PartitionEvents("{at:%Y-%m-%dT%H}", timezone="Asia/Tokyo")) == ("2026-11-25T19",)


def test_too_many_and_too_long(tmp_path: Path) -> None:
    table = tmp_path / "many"
    create_table(table, add("a", part="x" * 251), add("b", part="y" * 251), partition_columns=["part"])
    with pytest.raises(DeltaIllegalArgumentException, match=r"has 251 characters"):
        keys(table, 0)
    hashed = keys(table, 0, PartitionEvents(long_keys="hash"))
    assert len(set(hashed)) == 2
    assert {len(key) for key in hashed} == {250}
    assert keys(table, 0, PartitionEvents(long_keys="hash", max_keys=1)) == ("many",)
    with pytest.raises(DeltaIllegalArgumentException, match=r"more than 1 partitions"):
        keys(table, 0, PartitionEvents(long_keys="hash", max_keys=1, beyond="fail"))


def test_a_remove_without_its_partition(tmp_path: Path) -> None:
    """Without ``extendedFileMetadata`` an old writer's entry does not tell which partition has lost a file."""
    table = tmp_path / "old"
    create_table(table, add("a", part="1"), partition_columns=["part"])
    bare = remove("a", part="1")
    bare = type(bare)(path=bare.path, deletion_timestamp=bare.deletion_timestamp, data_change=True)
    write_commit(table, 1, bare)
    assert keys(table, 0) == ("1",)
    assert keys(table, 1) == ("many",)
    with pytest.raises(DeltaIllegalArgumentException, match="does not tell the partition"):
        keys(table, 1, PartitionEvents(beyond="fail"))


def test_the_check_before_the_commit() -> None:
    check = check_partition_keys(PartitionEvents(max_keys=1, beyond="fail"))
    by_part, files = metadata(partition_columns=["part"]), [add("a", part="1"), add("b", part="2")]
    check(by_part, files[:1])
    check(by_part, [add("a", part="1"), add("b", part="2", data_change=False)])
    with pytest.raises(DeltaIllegalArgumentException, match=r"more than 1 partitions"):
        check(by_part, files)
    with pytest.raises(DeltaIllegalArgumentException, match="no column 'nowhere'"):
        check_partition_keys(PartitionEvents("nowhere"))(by_part, files)


# -- a column that the table is not partitioned by ----------------------------------------------------------------------------


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """Not partitioned: 1 and 3 March in one file, then 5 March."""
    table = tmp_path / "visits"
    times = [dt.datetime(2026, 3, 1, 23, tzinfo=dt.UTC), dt.datetime(2026, 3, 3, 1, tzinfo=dt.UTC)]
    write(table, [], at=times, number=[1, 3], name=["a", "c"])
    write(table, [], at=[dt.datetime(2026, 3, 5, tzinfo=dt.UTC), None], number=[5, 6], name=["e", "f"])
    return table


def test_a_range_of_statistics(visits: Path) -> None:
    daily = "{at:%Y-%m-%d}"
    assert keys(visits, 0, daily) == ("2026-03-01", "2026-03-02", "2026-03-03")
    assert keys(visits, 1, daily) == ("2026-03-05", NULL)
    assert keys(visits, 0, "{at:%Y-%m}") == ("2026-03",)
    assert len(keys(visits, 0, "{at:%Y-%m-%dT%H}")) == 27
    assert keys(visits, 0, PartitionEvents(daily, timezone="Asia/Tokyo")) == ("2026-03-02", "2026-03-03")
    assert keys(visits, 0, "number") == ("1", "2", "3")
    assert keys(visits, 0, PartitionEvents(lambda v: f"{v['number'][0]}..{v['number'][1]}", column="number")) == ("1..3",)


def test_the_values_that_are_there(visits: Path) -> None:
    daily = PartitionEvents("{at:%Y-%m-%d}", exact=True)
    assert keys(visits, 0, daily) == ("2026-03-01", "2026-03-03")
    assert set(keys(visits, 1, daily)) == {"2026-03-05", NULL}
    assert keys(visits, 0, PartitionEvents("name", exact=True)) == ("a", "c")
    deltalake.DeltaTable(str(visits)).delete("number = 3")  # rewrites the file: its other row was there before
    assert set(keys(visits, 2, daily)) == {"2026-03-01", "2026-03-03"}


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")], ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_dates_and_times_that_python_cannot_hold_are_not_told(
    tmp_path: Path, kind: pa.DataType, sign: int, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "far"
    numbers = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    far = 3_000_000 if pa.types.is_date32(kind) else 2**60
    for values in ([0], [0, sign * far], [0]):
        deltalake.write_deltalake(str(table), pa.table({"at": pa.array(values, numbers).cast(kind)}), mode="append")
    for exact in (False, True):
        events = PartitionEvents("{at:%Y-%m-%d}", exact=exact)
        assert [keys(table, version, events) for version in range(3)] == [("1970-01-01",), (MANY,), ("1970-01-01",)]
        with pytest.raises(DeltaIllegalArgumentException, match="has a value of 'at' that Python cannot hold"):
            keys(table, 1, dataclasses.replace(events, beyond="fail"))
    assert "Version 1" in caplog.text


def test_only_marked_rows_changed(tmp_path: Path) -> None:
    """With a deletion vector, a commit's rows are known one by one."""
    table = tmp_path / "marked"
    write(table, [], day=[1, 2, 3])
    log = DeltaLog.for_table(str(table))
    (file,) = decode_commit(0, log.read_commit(0), table=str(table)).adds
    marked = msgspec.structs.replace(file, deletion_vector=inline_deletion_vector(BitMap64([1])))
    write_commit(
        table, 1, protocol(3, 7, reader_features=["deletionVectors"], writer_features=["deletionVectors"]), file.remove(0), marked
    )
    assert keys(table, 1, PartitionEvents("day", exact=True)) == ("2",)
    assert keys(table, 1, "day") == ("1", "2", "3")


def test_statistics_that_say_nothing(tmp_path: Path) -> None:
    """A file without statistics is read."""
    table = tmp_path / "plain"
    properties = {"delta.dataSkippingNumIndexedCols": "0"}
    deltalake.write_deltalake(str(table), pa.table({"day": [dt.date(2026, 3, 1), dt.date(2026, 3, 9)]}), configuration=properties)
    assert keys(table, 0, "day") == ("2026-03-01", "2026-03-09")


def test_a_range_of_more_keys_than_memory_holds(tmp_path: Path) -> None:
    table = tmp_path / "wide"
    write(table, [], id=[-(2**62), 2**62], day=[dt.date(1, 1, 1), dt.date(9999, 12, 31)])
    assert keys(table, 0, "id") == keys(table, 0, "day") == ("many",)
    assert keys(table, 0, "{id:.0e}") == ("many",)  # few keys, of too many values
    (file,) = decode_commit(0, DeltaLog.for_table(str(table)).read_commit(0), table=str(table)).adds
    with pytest.raises(DeltaIllegalArgumentException, match=r"too many values of 'id'"):
        check_partition_keys(PartitionEvents("id", beyond="fail"))(DeltaLog.for_table(str(table)).snapshot.metadata, [file])


@pytest.mark.parametrize(
    ("template", "number"),
    [
        ("{at:%Y-%m-%d}T{at:%H}", 27),
        ("{at:%-d %-H}", 27),
        ("{at:%Y-%m-%d %p}", 4),
        ("{at:%Y-%m-%d %H:%M}", 26 * 60 + 1),
        ("{at:%d %T}", 26 * 3600 + 1),
        ("{at:%%H %m}", 1),
    ],
)
def test_the_steps_of_a_range_are_those_of_its_formats(visits: Path, template: str, number: int) -> None:
    assert len(keys(visits, 0, PartitionEvents(template, max_keys=1_000_000))) == number


def test_the_ends_of_the_calendar_in_another_time_zone(tmp_path: Path) -> None:
    """Placeholders for "for ever" have no place in zones east of UTC."""
    table = tmp_path / "ends"
    end = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    write(table, [], at=[end - dt.timedelta(days=1), end])
    assert keys(table, 0, PartitionEvents("{at:%Y-%m}", timezone="Asia/Tokyo")) == ("9999-12",)


def test_a_value_in_another_writers_spelling(tmp_path: Path) -> None:
    table = tmp_path / "strange"
    create_table(table, add("a", part="25/11/2026"), partition_columns=["part"], schema_string=SCHEMA.replace("string", "date"))
    assert keys(table, 0) == ("25/11/2026",)
    assert keys(table, 0, "{part:%Y-%m}") == ("many",)


def test_a_format_that_values_do_not_have(sales: Path) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match="has a format that its values do not have"):
        keys(sales, 0, "{region:%Y}")


def test_nested_values_make_no_key(tmp_path: Path) -> None:
    table = tmp_path / "nested"
    write(table, [], day=[1], tags=[["a"]])
    with pytest.raises(DeltaIllegalArgumentException, match="cannot be part of a key"):
        keys(table, 0, PartitionEvents(str, column="tags", exact=True))


def test_a_function_that_returns_no_text(sales: Path) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match="must return strings, got int"):
        keys(sales, 0, lambda values: values["day"].year)


def test_partition_columns_spelled_in_another_case(tmp_path: Path) -> None:
    table = tmp_path / "case"
    create_table(table, add("a", partition_values={"PART": "1"}), partition_columns=["PART"])
    assert keys(table, 0) == keys(table, 0, "{part}") == keys(table, 0, lambda values: values["part"]) == ("1",)


def test_the_check_before_the_commit_looks_at_what_tells_the_keys() -> None:
    """Of partition columns always, and at the change data if there are any: as after the commit."""
    by_part, files = metadata(partition_columns=["part"]), [add("a", part="1"), add("b", part="2")]
    one = PartitionEvents(max_keys=1, beyond="fail", exact=True)
    with pytest.raises(DeltaIllegalArgumentException, match=r"more than 1 partitions"):
        check_partition_keys(one)(by_part, files)
    check_partition_keys(one)(by_part, [*files, AddCDCFile(path="c", partition_values={"part": "1"}, size=1)])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (True, "no partition columns"),
        ("{at:%f}", "Pass exact=True"),
        ("{at:%d}{at}", "say how to spell the times"),
        ("at", "say how to spell the times"),
        ("name", "Pass exact=True"),
        ("{number}/{name}", "at most one"),
        ("day", "no column 'day'"),
    ],
)
def test_columns_of_which_no_key_is_made(visits: Path, given: object, problem: str) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match=problem):
        keys(visits, 0, given)
