"""Files that another job has finished: which are taken, and which are refused by name. Files come from PyArrow; no Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta import staging_path
from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    MetadataChangedException,
    SchemaMismatchException,
    StageConflictException,
    StagedFileException,
    StagingException,
)
from support.actions import column, schema
from support.table import Table

NANOS = pa.array([1], pa.timestamp("ns"))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with the column ``Id``."""
    table = Table(tmp_path / "table")
    handle = table.begin(schema=schema(column("Id", "long")))
    table.publish(handle, table.stage_files(handle, path=job(handle, Id=pa.array([1], pa.int64()))))
    return table


def job(handle: TransactionHandle, path: str = "out", name: str = "0.parquet", **columns: Any) -> str:
    """Any job that writes a file under the staging path."""
    directory = Path(handle.staging_path) / path
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns or {"Id": pa.array([2], pa.int64())}), directory / name, version="2.6")
    return path


UNICODE = [f"x{chr(code)}y" for code in range(1, 0x180)] + [
    "日本",
    "😀",
    "e\u0301",
    "%C3%A9",
    "Ã©",
    "..",
    "\u0085\u2028",
    "\ufffd",
]

WRITERS: dict[str, Callable[[pa.Table, str], object]] = {
    "PyArrow": lambda rows, path: pq.write_to_dataset(rows, path, partition_cols=["p"]),
    "pandas": lambda rows, path: rows.to_pandas().to_parquet(path, partition_cols=["p"]),
    "Polars": lambda rows, path: pl.from_arrow(rows).write_parquet(path, partition_by=["p"]),
    "DuckDB": lambda rows, path: duckdb.sql(f"COPY rows TO '{path}' (FORMAT parquet, PARTITION_BY (p))"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_values_in_directories_come_back_from_every_writer(tmp_path: Path, writer: str) -> None:
    table = Table(tmp_path / "table")
    rows = pa.table({"id": pa.array(range(len(UNICODE)), pa.int64()), "p": UNICODE})
    handle = table.begin(partition_by=("p",))
    Path(handle.staging_path).mkdir(parents=True)
    WRITERS[writer](rows, f"{handle.staging_path}/out")
    table.publish(handle, table.stage_files(handle, path="out"))
    assert sorted(table.rows()) == list(enumerate(UNICODE))


def test_bytes_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    handle = table.begin(partition_by=("p",))
    job(handle, path="out/p=%C3x")
    with pytest.raises(StagedFileException, match=r"'%C3x' escapes bytes that are not UTF-8"):
        table.stage_files(handle, path="out")


# -- which files ----------------------------------------------------------------------------------------------------------------


def test_parquet_is_known_by_its_content(table):
    handle = table.begin()
    for name in ("000000_0", "b.parq", "C.PARQUET", "d=1/part-0"):  # Hive's, and others
        (Path(handle.staging_path) / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        job(handle, name=name)
    for marker in ("_SUCCESS", ".b.parq.crc"):
        (Path(handle.staging_path) / "out" / marker).write_bytes(b"x")
    staged = table.stage_files(handle, path="out")
    assert (staged.num_files, staged.num_records) == (4, 4)
    table.publish(handle, staged)
    assert table.rows() == [(1,), (2,), (2,), (2,), (2,)]


def test_everything_else_is_listed(table):
    handle = table.begin()
    job(handle)
    whole = (Path(handle.staging_path) / "out" / "0.parquet").read_bytes()
    broken = {"notes.txt": b"text", "half.parquet": whole[:-9], "empty.parquet": b"", "tail.parquet": b"XXXX" + whole[4:]}
    for name, data in broken.items():
        (Path(handle.staging_path) / "out" / name).write_bytes(data)
    with pytest.raises(StagedFileException, match="4 of 5 files") as caught:
        table.stage_files(handle, path="out")
    assert all(name in str(caught.value) for name in broken)
    assert "0.parquet" not in str(caught.value)


def test_the_front_of_a_large_file_is_looked_at(table):
    """More than is read from the end at first."""
    handle = table.begin()
    job(handle, Id=pa.array([number * 7919 % 1_000_003 for number in range(30_000)], pa.int64()))
    [large] = (Path(handle.staging_path) / "out").glob("*.parquet")
    assert large.stat().st_size > 100_000
    large.write_bytes(b"XXXX" + large.read_bytes()[4:])
    with pytest.raises(StagedFileException, match="does not start with the Parquet magic number"):
        table.stage_files(handle, path="out")


def test_a_delta_table_is_more_than_its_files(table):
    """Files that are no longer part of the job's own table hold rows that it has deleted."""
    handle = table.begin()
    other = Table(Path(handle.staging_path) / "out" / "deeper")
    for mode in ("append", "overwrite"):
        inner = other.begin()
        other.publish(inner, other.stage_files(inner, path=job(inner), mode=mode))
    for path in ("out", "out/deeper"):
        with pytest.raises(StagedFileException, match="is itself a Delta table"):
            table.stage_files(handle, path=path)


def test_a_path_that_is_missing_is_not_without_rows(table):
    handle = table.begin()
    for path in ("out", "out/deeper"):
        with pytest.raises(StagedFileException, match="not the same as no rows"):
            table.stage_files(handle, path=path, mode="overwrite")
    assert table.rows() == [(1,)]
    directory = Path(handle.staging_path) / "out"
    directory.mkdir(parents=True)
    (directory / "_SUCCESS").touch()
    table.publish(handle, table.stage_files(handle, path="out", mode="overwrite"))
    assert table.rows() == []
    handle = table.begin()
    job(handle, Id=pa.array([], pa.int64()))
    assert table.stage_files(handle, path="out", mode="overwrite").num_records == 0


def test_what_failed_tries_and_other_stages_left_is_never_taken(table):
    handle = table.begin()
    job(handle, "job/try-1")
    job(handle, "job/try-2")
    job(handle, "other/1-0a1b2c3d/5e6f7a8b")
    for path in (None, "", ".", handle.staging_path):
        with pytest.raises((DeltaIllegalArgumentException, StagingException)):
            table.stage_files(handle, path=path)
    for path in ("other", "other/1-0a1b2c3d"):
        with pytest.raises(StagingException, match="staged by another stage"):
            table.stage_files(handle, path=path)
    assert table.stage_files(handle, path="job/try-2").num_files == 1


def test_each_try_of_a_job_has_a_path_of_its_own(table):
    handle = table.begin()
    pushed: dict[str, str] = {}

    def ti(number: int, map_index: int = -1) -> Any:
        return SimpleNamespace(task_id="g.job", map_index=map_index, try_number=number, xcom_push=pushed.__setitem__)

    one, two = (staging_path(handle.to_dict(), ti(number)) for number in (1, 2))
    assert pushed == {"staging_path": two}
    assert one != two
    assert staging_path(handle.to_dict(), ti(2, 0)) not in (one, two)
    assert staging_path(handle.to_dict(), ti(2)) == two  # a template may ask several times
    job(handle, one.removeprefix(f"{handle.staging_path}/"))
    job(handle, two.removeprefix(f"{handle.staging_path}/"))
    assert table.stage_files(handle, path=two).num_files == 1


# -- which columns --------------------------------------------------------------------------------------------------------------


AB = pa.struct([("a", pa.int64()), ("A", pa.int64())])


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"id": pa.array([1], pa.int64())}, r"0.parquet has a column id, which table .* calls Id"),
        ({"Id": pa.array([1], pa.int64()), "ID": pa.array([1], pa.int64())}, "columns Id and ID"),
        (
            {"Id": pa.array([1], pa.int64()), "s": pa.array([(1, 2)], AB)},
            "columns s.a and s.A",
        ),
        ({"s": pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])}, r"column s.a twice"),
    ],
)
def test_names_are_spelled_as_in_the_table(table, columns, says):
    handle = table.begin()
    with pytest.raises(SchemaMismatchException, match=says):
        table.stage_files(handle, path=job(handle, **columns), merge_schema=True)


def test_a_new_column_is_spelled_in_one_way(table):
    handle, number = table.begin(), pa.array([1], pa.int64())
    job(handle, name="0.parquet", X=pa.array([{"y": 1}]))
    job(handle, name="1.parquet", X=pa.array([{"Y": 1}]))
    with pytest.raises(SchemaMismatchException, match=r"1.parquet has a column X.Y, which .*0.parquet calls X.y"):
        table.stage_files(handle, path="out", merge_schema=True)
    stages = [
        table.stage_files(handle, task_id=path, path=job(handle, path, **{name: number}), merge_schema=True)
        for path, name in (("one", "X"), ("two", "x"))
    ]
    with pytest.raises(StageConflictException, match=r"two has written column x .* spells X"):
        table.publish(handle, *stages)
    new = Table(table.path.parent / "new")
    handle = new.begin()
    stages = [
        new.stage_files(handle, task_id=path, path=job(handle, path, **{name: number}))
        for path, name in (("one", "X"), ("two", "x"))
    ]
    with pytest.raises(StageConflictException, match="two has written column x"):
        new.publish(handle, *stages)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (NANOS, r"column s.t .*nano.*coerce_timestamps=\"us\""),
        (pa.array(np.array([1], np.float16)), r"column s.t .*Float16.*float32"),
        (pa.array([1], pa.time64("us")), r"column s.t .*Time"),
    ],
)
@pytest.mark.parametrize("existing", [True, False])
def test_types_that_spark_cannot_read_are_refused_by_name(table, values, says, existing):
    if not existing:
        table = Table(table.path.parent / "new")
    handle = table.begin()
    job(handle, s=pa.StructArray.from_arrays([values], ["t"]))
    with pytest.raises(DeltaAnalysisException, match=f"(?i)out/0.parquet of .*{says}"):
        table.stage_files(handle, path="out", merge_schema=existing)


def test_a_note_of_spark_does_not_hide_what_a_file_holds(table):
    handle = table.begin()
    noted = schema(column("t", "timestamp_ntz"))
    rows = pa.table({"t": NANOS}).replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": noted})
    directory = Path(handle.staging_path) / "out"
    directory.mkdir(parents=True)
    pq.write_table(rows, directory / "0.parquet", version="2.6")
    with pytest.raises(DeltaAnalysisException, match="column t"):
        table.stage_files(handle, path="out", merge_schema=True)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"id": pa.array([1], pa.int64())}, "has a column id, which"),
        ({"Id": pa.array([60.5])}, "expected bigint, got double"),
        ({"Id": pa.array([10**6], pa.int32())}, "expected bigint, got int"),
    ],
)
def test_a_note_of_spark_that_another_program_has_kept_is_not_believed(table, columns, says):
    """PyArrow and pandas keep the note when they rename or cast a column, or add one."""
    handle = table.begin()
    noted = {"org.apache.spark.sql.parquet.row.metadata": schema(column("Id", "long"))}
    directory = Path(handle.staging_path)
    for path in ("out", "more"):
        (directory / path).mkdir(parents=True)
    pq.write_table(pa.table(columns).replace_schema_metadata(noted), directory / "out" / "0.parquet")
    with pytest.raises(SchemaMismatchException, match=says):
        table.stage_files(handle, path="out")
    rows = pa.table({"Id": pa.array([2], pa.int64()), "x": pa.array([7], pa.int64())}).replace_schema_metadata(noted)
    pq.write_table(rows, directory / "more" / "0.parquet")
    with pytest.raises(SchemaMismatchException, match="column x: unexpected"):
        table.stage_files(handle, path="more")
    table.publish(handle, table.stage_files(handle, path="more", merge_schema=True))
    assert table.rows() == [(1, None), (2, 7)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([1], pa.decimal128(20, 0)), pa.array([1], pa.int64())),
        (pa.array([1], pa.decimal128(12, 2)), pa.array([1], pa.decimal128(5, 1))),
    ],
)
@pytest.mark.parametrize("existing", [True, False])
def test_stages_bring_a_new_column_as_one_type(table, first, second, existing):
    """Nobody casts files that are written: not every reader finds one decimal in files of another."""
    if not existing:
        table = Table(table.path.parent / "new")
    handle = table.begin()
    stages = [
        table.stage_files(handle, task_id=path, path=job(handle, path, x=values), merge_schema=existing)
        for path, values in (("one", first), ("two", second))
    ]
    with pytest.raises(StageConflictException, match=r"two has written column x .* as (bigint|decimal\(5,1\)).* decimal"):
        table.publish(handle, *stages)


# -- new columns of two transactions ---------------------------------------------------------------------------------------------


def new_column(table: Table, handle: TransactionHandle, **columns: Any) -> Any:
    return table.stage_files(handle, path=job(handle, **columns), merge_schema=True)


def test_two_runs_that_add_the_same_column_both_commit(table):
    number, other = pa.array([5], pa.int64()), pa.array([6], pa.int64())
    one, two = table.begin(), table.begin()
    first = new_column(table, one, Id=number, X=number)
    second = new_column(table, two, Id=other, X=other)
    table.publish(one, first)
    table.publish(two, second)
    assert table.rows() == [(1, None), (5, 5), (6, 6)]
    assert "metaData" not in table.actions(2)


def test_a_stage_whose_new_columns_would_conflict_fails_before_the_commit(table):
    number = pa.array([5], pa.int64())
    late, other = table.begin(), table.begin()
    table.publish(other, new_column(table, other, X=number))
    assert new_column(table, late, X=number).num_files == 1
    for column_name in ("x", "Y"):
        (Path(late.staging_path) / "out" / "0.parquet").unlink()
        with pytest.raises(MetadataChangedException, match="Clear the start task") as caught:
            new_column(table, late, **{column_name: number})
        assert caught.value.winning_version == 1
