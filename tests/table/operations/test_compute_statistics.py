"""COMPUTE STATS: new statistics for files that are in the table; what Delta Spark computes: tests/delta_spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import (
    ConcurrentDeleteReadException,
    DeltaTableNotFoundException,
    PredicateException,
    StagedFileException,
)
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.table.operations import statistics as command
from airflow_delta.table.operations.convert import convert_to_delta
from airflow_delta.table.operations.statistics import completed, compute_statistics
from airflow_delta.transaction import Operation
from support.table import Table


@pytest.fixture
def bare(tmp_path: Path) -> Table:
    """A table of three files without statistics."""
    path = tmp_path / "a b"
    for name, values in (("p=a/x.parquet", [1, 2]), ("p=a/y.parquet", [3]), ("p=b c/z.parquet", [9])):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": values, "s": [{"t": "x"}] * len(values)}), path / name)
    table = Table(path)
    convert_to_delta(table.log(), partition_schema="p STRING", collect_stats=False, transaction_key="k", attempt="1-test")
    return table


def live(table: Table) -> dict[str, AddFile]:
    return {add.path: add for add in table.log().update().add_files()}


def stats(table: Table) -> dict[str, Any]:
    return {path: None if add.stats is None else json.loads(add.stats) for path, add in live(table).items()}


def of(low: int, high: int, rows: int) -> dict[str, Any]:
    return {
        "numRecords": rows,
        "minValues": {"id": low, "s": {"t": "x"}},
        "maxValues": {"id": high, "s": {"t": "x"}},
        "nullCount": {"id": 0, "s": {"t": 0}},
    }


def test_by_partition_then_all(bare: Table) -> None:
    result = compute_statistics(bare.log(), predicate="p = 'a'")
    assert (result.version, result.num_files, result.isolation_level) == (1, 2, "SnapshotIsolation")
    assert bare.actions(1).keys() == {"commitInfo", "add"}
    assert all(add["dataChange"] is False for add in bare.actions(1)["add"])
    assert stats(bare)["p=b%20c/z.parquet"] is None
    assert compute_statistics(bare.log()).num_files == 1
    assert stats(bare) == {"p=a/x.parquet": of(1, 2, 2), "p=a/y.parquet": of(3, 3, 1), "p=b%20c/z.parquet": of(9, 9, 1)}
    assert compute_statistics(bare.log()).attempts == 0
    assert len(bare.versions()) == 3
    assert len(bare.rows()) == 4


def test_only_what_is_missing(bare: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_statistics(bare.log())
    log = bare.log()
    wrong = {
        "p=a/x.parquet": '{"numRecords":2,"minValues":{"id":0},"maxValues":{"id":7}}',
        "p=a/y.parquet": "no JSON",
    }
    changed = [msgspec.structs.replace(add, stats=wrong[path]) for path, add in live(bare).items() if path in wrong]
    log.start_transaction().commit(changed, Operation.compute_stats(["true"]))
    opened: list[str] = []
    footers = command.table_footers

    def noted(store: Any, files: Any, problem: str) -> Any:
        opened.extend(file.path for file in files)
        return footers(store, files, problem)

    monkeypatch.setattr(command, "table_footers", noted)
    assert compute_statistics(bare.log(), only_missing=True).num_files == 2
    assert sorted(opened) == sorted(wrong)
    kept = {**of(1, 2, 2), "minValues": {"id": 0, "s": {"t": "x"}}, "maxValues": {"id": 7, "s": {"t": "x"}}}
    assert stats(bare)["p=a/x.parquet"] == kept
    assert stats(bare)["p=a/y.parquet"] == of(3, 3, 1)
    assert compute_statistics(bare.log(), only_missing=True).attempts == 0
    assert compute_statistics(bare.log()).num_files == 1  # what was wrong is put right only when all is computed anew
    assert stats(bare)["p=a/x.parquet"] == of(1, 2, 2)


def test_filled_in() -> None:
    assert completed(None, '{"numRecords":1}') == '{"numRecords":1}'
    old = '{"numRecords":1,"minValues":{"d":1.500000000000000000001},"tightBounds":false}'
    new = '{"numRecords":2,"minValues":{"d":7,"e":1},"nullCount":{"d":0},"tightBounds":true}'
    merged = completed(old, new)
    assert merged == ('{"numRecords":1,"minValues":{"d":1.500000000000000000001,"e":1},"tightBounds":false,"nullCount":{"d":0}}')


def test_what_others_do_meanwhile(bare: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    real = command.recomputed
    log = bare.log()

    def appended(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        pq.write_table(pa.table({"id": [50]}), bare.path / "p=a" / "new.parquet")
        size = (bare.path / "p=a" / "new.parquet").stat().st_size
        add = AddFile(path="p=a/new.parquet", partition_values={"p": "a"}, size=size, modification_time=1, data_change=True)
        log.start_transaction(log.update()).commit([add], Operation.write())
        monkeypatch.setattr(command, "recomputed", real)
        return found

    monkeypatch.setattr(command, "recomputed", appended)
    result = compute_statistics(bare.log())  # an append is no conflict
    assert (result.read_version, result.version, result.num_files) == (0, 2, 3)

    def deleted(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        log.start_transaction(log.update()).commit([live(bare)["p=a/new.parquet"].remove(1)], Operation.delete())
        monkeypatch.setattr(command, "recomputed", real)
        return found

    monkeypatch.setattr(command, "recomputed", deleted)
    with pytest.raises(ConcurrentDeleteReadException):
        compute_statistics(bare.log(), max_restarts=0)
    assert len(live(bare)) == 3
    assert compute_statistics(bare.log()).attempts == 0


def test_refused(bare: Table, tmp_path: Path) -> None:
    with pytest.raises(PredicateException, match="DELTA_NON_PARTITION_COLUMN_REFERENCE"):
        compute_statistics(bare.log(), predicate="id = 1")
    with pytest.raises(DeltaTableNotFoundException):
        compute_statistics(Table(tmp_path / "nothing").log())
    (bare.path / "p=a" / "x.parquet").unlink()
    with pytest.raises(StagedFileException, match=r"x\.parquet.*it is gone.*restore the file"):
        compute_statistics(bare.log())
