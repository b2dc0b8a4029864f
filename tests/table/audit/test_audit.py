"""What an audit judges: the net effect of stages, and checks that go by statistics. Files come from PyArrow; no Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from airflow_delta.contract.audit import AuditCheck, AuditReport, SqlAnswer
from airflow_delta.contract.changes import SetProperties
from airflow_delta.contract.payloads import DeclaredReads, ScanPlan, StagedWrite
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import (
    AppendOnlyException,
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    ForeignTransactionException,
    MissingStageException,
    StageConflictException,
)
from airflow_delta.log.actions.actions import encode_action
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.audit.checks import audit_report
from airflow_delta.table.audit.limit_checks import statistics_checks
from airflow_delta.table.audit.sql_checks import judge_answers, parse_sql_checks, plan_sql_checks
from airflow_delta.table.operations.rewrite.delete import plan_delete, plan_truncate
from airflow_delta.table.stage.plan_alter import plan_alter
from support.actions import add, column, metadata, protocol, schema
from support.table import Table
from support.tables import write_commit

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


def stage(table: Table, handle: Any, name: str, rows: Any, *, part: str | None = None, **options: Any) -> StagedWrite:
    """Stage a file of rows, in a partition ``p``."""
    rows = rows if isinstance(rows, pa.Table) else pa.table(rows)
    return table.stage_rows(handle, rows, task_id=name, part=f"p={part}" if part else "", **options)


def ids(*values: int | None) -> dict[str, Any]:
    return {"id": pa.array(values, pa.int64())}


def audited(table: Table, handle: Any, *staged: StagedWrite) -> AuditedTable:
    return AuditedTable(table.log(), handle, staged)


def check(table: AuditedTable, **checks: Any) -> AuditCheck:
    """The outcome of the only check."""
    [outcome] = statistics_checks(**checks).run(table)
    return outcome


@pytest.fixture
def filled(table):
    """Partition a with the ids 1 and 2, partition b with 3, 4 and 5: version 0."""
    handle = table.begin(partition_by=["p"])
    table.publish(handle, stage(table, handle, "one", ids(1, 2), part="a"), stage(table, handle, "two", ids(3, 4, 5), part="b"))
    return table


# -- the table as the commit would leave it -------------------------------------------------------------------------------------

OVERWRITES: list[tuple[dict[str, Any], int, list[str]]] = [
    # options of a stage with one row in partition a, rows after the commit, partitions with files that are removed
    ({}, 6, []),
    ({"mode": "overwrite"}, 1, ["a", "b"]),
    ({"mode": "overwrite", "replace_where": "p = 'a'"}, 4, ["a"]),
    ({"mode": "dynamic"}, 4, ["a"]),
]


@pytest.mark.parametrize(("options", "after", "removed"), OVERWRITES)
def test_the_table_after_a_write(filled, options, after, removed):
    handle = filled.begin()
    staged = stage(filled, handle, "new", ids(9), part="a", **options)
    found = audited(filled, handle, staged)
    assert (found.rows_staged, found.rows_before, found.rows_after) == (1, 5, after)
    assert sorted(file.partition_values["p"] for file in found.removed.values()) == removed
    assert [file.path for file in found.staged] == [action["add"]["path"] for action in staged.actions]
    rows = {view: sum(file.num_records or 0 for file in found.scan(view).files) for view in ("staged", "result", "before")}
    assert rows == {"staged": 1, "result": after, "before": 5}
    # What the audit has judged is what the commit makes.
    filled.publish(handle, staged)
    assert len(filled.rows()) == after


def test_stages_beside_each_other_and_a_delete(filled):
    handle = filled.begin()
    staged = [
        stage(filled, handle, "new", ids(9), part="c"),
        stage(filled, handle, "more", ids(10, 11), part="d"),
        filled.operate(handle, plan_delete, task_id="delete", predicate="p = 'b'"),
    ]
    found = audited(filled, handle, *staged)
    assert (found.rows_staged, found.rows_before, found.rows_after) == (3, 5, 5)
    filled.publish(handle, *staged)
    assert len(filled.rows()) == 5


def test_a_stage_on_top_of_another(filled):
    handle = filled.begin()
    first = stage(filled, handle, "new", ids(9, 10), part="c")
    second = filled.operate(handle, plan_delete, task_id="delete", predicate="p = 'c'", after=[first])
    third = stage(filled, handle, "again", ids(11), part="c", after=[first, second])
    found = audited(filled, handle, first, second, third)
    assert [file.path for file in found.staged] == [third.actions[0]["add"]["path"]]
    assert (found.rows_after, found.removed) == (6, {})
    filled.publish(handle, first, second, third)
    assert len(filled.rows()) == 6


def test_a_table_that_does_not_exist_yet(table):
    handle = table.begin(partition_by=["p"])
    found = audited(table, handle, stage(table, handle, "new", ids(1, 2), part="a"))
    assert (found.rows_before, found.rows_after, found.removed) == (0, 2, {})
    before = found.scan("before")
    assert (before.files, before.partition_columns) == ((), ("p",))
    assert [f["name"] for f in json.loads(before.schema_string)["fields"]] == ["id", "p"]
    assert check(found, rows_change={"max_ratio": 1}).passed


def test_a_truncate_brings_no_rows(filled):
    handle = filled.begin()
    found = audited(filled, handle, filled.operate(handle, plan_truncate))
    assert (found.rows_staged, found.rows_after, found.staged) == (0, 0, [])
    assert len(found.removed) == 2


def test_files_that_a_rerun_replaces_are_not_there_after_the_commit(table):
    key = {"transaction_key": "day", "rerun_policy": "replace"}
    for number in range(2):
        handle = table.begin(**key)
        staged = stage(table, handle, "new", ids(*range(3 + number)))
        found = audited(table, handle, staged)
        assert (found.rows_before, found.rows_after) == (3 * number, 3 + number)
        table.publish(handle, staged)
    assert len(table.rows()) == 4


@pytest.mark.parametrize(
    ("change", "error"),
    [({"delta.enableChangeDataFeed": "true"}, StageConflictException), ({"delta.appendOnly": "true"}, AppendOnlyException)],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_the_commit_refuses_is_not_audited(filled, change, error):
    """Each of the stages is right, and so is their order; what they do together is not."""
    handle = filled.begin()
    plans = [(plan_delete, {"predicate": "p = 'a'"}), (plan_alter, {"changes": [SetProperties(change)]})]
    staged: list[StagedWrite] = []
    for number, (plan, arguments) in enumerate(plans):
        after = [write.to_dict() for write in staged]
        staged.append(filled.operate(handle, plan, task_id=f"stage_{number}", after=after, **arguments))
    for consume in (audited, Table.publish):
        with pytest.raises(error):
            consume(filled, handle, *staged)


def test_copies_of_rows_that_stay_are_not_staged(filled):
    """As Spark leaves them: a directory for new rows, one for copied ones; a file of the table may get a deletion vector."""
    handle = filled.begin()
    directory = f"staged/{handle.transaction_id}/update/1-a"
    paths = [f"{directory}/0123abcd-new-0/p=a/x.parquet", f"{directory}/0123abcd-copied-0/p=a/y.parquet"]
    actions = tuple(
        {"add": {"path": path, "partitionValues": {"p": "a"}, "size": 1, "modificationTime": 1, "dataChange": True}}
        for path in paths
    )
    old = filled.log().snapshot.add_files()[0]
    actions += tuple(json.loads(encode_action(action)) for action in (old.remove(0), old))
    write = StagedWrite(
        transaction_id=handle.transaction_id,
        stage="update",
        task_id="update",
        attempt="1-a",
        operation="UPDATE",
        mode="rewrite",
        schema_string=handle.schema_string,
        partition_columns=("p",),
        actions=actions,
        num_files=3,
        num_removed_files=1,
        num_records=1,
        num_copied_records=7,
    )
    found = audited(filled, handle, write)
    assert [file.path for file in found.staged] == paths[:1]
    assert (len(found.added), found.rows_staged, found.rows_after) == (3, 1, None)
    claimed = audited(filled, handle, replace(write, data_change=False))
    assert ([file.path for file in claimed.staged], claimed.rows_staged) == (paths[:1], 1), "that they are the same is a claim"
    rearranged = audited(
        filled,
        handle,
        replace(
            write,
            operation="OPTIMIZE",
            num_records=0,
            actions=tuple({kind: {**fields, "dataChange": False}} for action in actions for kind, fields in action.items()),
        ),
    )
    assert (rearranged.staged, rearranged.rows_staged) == ([], 0)


@pytest.mark.parametrize(("known", "rows"), [(True, 296), (False, None)])
def test_rows_of_a_table_with_deletion_vectors_and_without_statistics(table, known, rows):
    features = ["deletionVectors"]
    stats = json.dumps({"numRecords": 200})
    marked = add("a.parquet", stats=stats, deletion_vector=inline_deletion_vector(BitMap64(range(104))))
    write_commit(
        table.path,
        0,
        protocol(3, 7, reader_features=features, writer_features=features),
        metadata(schema_string=schema(column("id", "long"))),
        marked,
        add("b.parquet", stats=stats if known else None),
    )
    handle = table.begin()
    found = audited(table, handle, stage(table, handle, "new", ids(1, 2, 3, 4)))
    assert (found.rows_before, found.rows_after) == (rows, rows and rows + 4)
    outcome = check(found, rows_change={"max_ratio": 1.1})
    assert (outcome.passed, "cannot be decided" in outcome.message) == (known, not known)


def test_what_the_commit_would_refuse_the_audit_refuses(filled):
    handle = filled.begin()
    with pytest.raises(MissingStageException, match="No stage has reported"):
        audited(filled, handle)
    with pytest.raises(ForeignTransactionException):
        audited(filled, handle, stage(filled, filled.begin(), "new", ids(1), part="a"))
    appended = stage(filled, handle, "new", ids(1), part="a")
    has_read = replace(appended, reads=DeclaredReads(whole_table=True))
    with pytest.raises(StageConflictException):
        audited(filled, handle, has_read, filled.operate(handle, plan_delete, predicate="p = 'a'"))
    on_top = filled.operate(handle, plan_delete, task_id="top", predicate="p = 'a'", after=[appended])
    with pytest.raises(StageConflictException, match="Pass them as well"):
        audited(filled, handle, on_top)


def test_partitions_are_told_apart_by_their_value_not_by_its_text(table):
    """As the commit does: another writer has put the integer as ``01``."""
    write_commit(
        table.path,
        0,
        protocol(),
        metadata(schema_string=schema(column("id", "long"), column("p", "integer")), partition_columns=["p"]),
        add("p=01/a.parquet", stats=json.dumps({"numRecords": 5}), partition_values={"p": "01"}),
    )
    handle = table.begin()
    found = audited(table, handle, stage(table, handle, "new", ids(1, 2), part="1", mode="dynamic"))
    assert (found.rows_after, [key for key, _ in found.removed]) == (2, ["p=01/a.parquet"])


def test_a_rewrite_of_rows_that_another_stage_replaces_is_refused_as_by_the_commit(filled):
    handle = filled.begin()
    old = next(file for file in filled.log().snapshot.add_files() if file.partition_values["p"] == "a")
    rewrite = StagedWrite(
        transaction_id=handle.transaction_id,
        stage="update",
        task_id="update",
        attempt="1-a",
        operation="UPDATE",
        mode="rewrite",
        schema_string=handle.schema_string,
        partition_columns=("p",),
        reads=DeclaredReads(predicates=("p = 'a'",)),
        actions=({"remove": msgspec.to_builtins(old.remove(0))},),
        num_removed_files=1,
        num_records=0,
    )
    emptied = replace(  # an overwrite with no rows: nothing of what it adds is in that partition
        stage(filled, handle, "new", ids(9), part="a", mode="overwrite", replace_where="p = 'a'"), actions=(), num_files=0
    )
    for judge in (audited, filled.publish):
        with pytest.raises(StageConflictException, match=rf"both touch {old.path}, in partition \[p=a\]"):
            judge(*((filled,) if judge is audited else ()), handle, rewrite, emptied)


# -- checks by statistics -------------------------------------------------------------------------------------------------------


@pytest.fixture
def values(table):
    """Columns of several types, one row each for two files."""
    data = schema(
        column("id", "long"),
        column("amount", "double"),
        column("price", "decimal(20,2)"),
        column("name", "string"),
        column("at", "timestamp"),
        column("day", "date"),
        column("ok", "boolean"),
        column("inner", {"type": "struct", "fields": [column("x", "integer")]}),
        column("p", "integer"),
    )
    handle = table.begin(schema=data, partition_by=["p"])
    types = pa.schema(
        [
            ("id", pa.int64()),
            ("amount", pa.float64()),
            ("price", pa.decimal128(20, 2)),
            ("name", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("ok", pa.bool_()),
            ("inner", pa.struct([("x", pa.int32())])),
        ]
    )
    day = dt.date(2026, 1, 1)
    rows = [
        (1, 0.5, Decimal("0.10"), "a", NOW - dt.timedelta(hours=2), day, True, {"x": 1}),
        (-3, 2.5, Decimal("900000000000000000.01"), "x" * 40, NOW - dt.timedelta(hours=1), day, True, {"x": None}),
        (None, None, None, None, None, None, None, None),
    ]
    staged = None
    for number, part in ((slice(0, 2), "1"), (slice(2, 3), "2")):
        columns = list(zip(*rows[number], strict=True))
        arrays = [pa.array(cells, field.type) for cells, field in zip(columns, types, strict=True)]
        staged = stage(table, handle, "new", pa.table(arrays, schema=types), part=part)
    assert staged is not None
    return audited(table, handle, staged)


CHECKS: list[tuple[dict[str, Any], bool | None, Any]] = [
    # check, whether it passes (None: not decidable), value
    ({"min_rows": 3}, True, 3),
    ({"min_rows": "4"}, False, 3),
    ({"max_rows": 2}, False, 3),
    ({"max_rows": "3"}, True, 3),
    ({"max_null_fraction": {"id": 0.34}}, True, 0.333333),
    ({"max_null_fraction": {"ID": "0.33"}}, False, 0.333333),
    ({"max_null_fraction": {"inner.x": 0.7}}, True, 0.666667),
    ({"max_null_fraction": {"ok": 0.2}}, False, 0.333333),
    ({"max_null_fraction": {"p": 0}}, True, 0.0),
    ({"value_range": {"id": {"min": -3, "max": 1}}}, True, {"min": -3, "max": 1}),
    ({"value_range": {"id": {"min": 0}}}, False, {"min": -3, "max": 1}),
    ({"value_range": {"id": {"max": "0.5"}}}, False, {"min": -3, "max": 1}),
    ({"value_range": {"id": {"min": -1e6, "max": 1e6}}}, True, {"min": -3, "max": 1}),
    ({"value_range": {"price": {"max": "900000000000000000.00"}}}, False, {"min": 0.1, "max": 9e17}),
    ({"value_range": {"price": {"max": "900000000000000000.01"}}}, True, {"min": 0.1, "max": 9e17}),
    # PyArrow leaves NaN out of bounds, so that its greatest double is none for certain.
    ({"value_range": {"amount": {"max": 3}}}, None, None),
    ({"value_range": {"amount": {"min": 0}}}, True, {"min": 0.5, "max": None}),
    (
        {"value_range": {"day": {"min": "2026-01-01", "max": dt.date(2026, 1, 1)}}},
        True,
        {"min": "2026-01-01", "max": "2026-01-01"},
    ),
    ({"value_range": {"at": {"max": "2026-01-01T22:00:00Z"}}}, False, {"min": "2026-01-01T22:00:00+00:00"}),
    ({"value_range": {"at": {"max": "2026-01-02 00:00:00"}}}, True, {"min": "2026-01-01T22:00:00+00:00"}),
    ({"value_range": {"at": {"max": "2026-01-01 23:00:00"}}}, None, None),  # bounds are cut to milliseconds
    ({"value_range": {"name": {"min": "a", "max": "y"}}}, True, {"min": "a"}),
    ({"value_range": {"name": {"max": "b"}}}, None, None),  # it was cut off
    ({"value_range": {"name": {"min": "b"}}}, False, {"min": "a"}),
    ({"value_range": {"name": {"max": ""}}}, None, None),  # a text like others, not a limit that is missing
    ({"value_range": {"amount": {"min": "-Infinity"}}}, True, {"min": 0.5}),
    ({"value_range": {"p": {"min": 1, "max": 2}}}, True, {"min": 1, "max": 2}),
    ({"value_range": {"p": {"max": 1}}}, False, {"min": 1, "max": 2}),
    ({"freshness": {"column": "at", "max_age": 3600, "now": NOW}}, True, "2026-01-01T23:00:00+00:00"),
    ({"freshness": {"column": "at", "max_age": "3599.5", "now": NOW.isoformat()}}, False, "2026-01-01T23:00:00+00:00"),
    # The newest bound is cut to milliseconds: the value may be up to 999 microseconds newer.
    ({"freshness": {"column": "at", "max_age": "3599.9995", "now": NOW}}, None, None),
    ({"freshness": {"column": "day", "max_age": dt.timedelta(days=1), "now": "2026-01-02"}}, True, "2026-01-01T00:00:00+00:00"),
    ({"freshness": {"column": "at", "max_age": 60}}, False, "2026-01-01T23:00:00+00:00"),
    ({"partitions": "p IN (1, 2)"}, True, []),
    ({"partitions": "p = 1"}, False, [{"p": "2"}]),
]


@pytest.mark.parametrize(("asked", "passed", "value"), CHECKS)
def test_checks_by_statistics(values, asked, passed, value):
    outcome = check(values, **asked)
    if passed is None:
        assert "cannot be decided from statistics" in outcome.message
    assert outcome.passed == bool(passed), outcome.message
    if isinstance(value, dict):
        assert outcome.value.items() >= value.items()
    else:
        assert outcome.value == value
    assert outcome == AuditCheck.from_dict(json.loads(json.dumps(outcome.to_dict())))


def test_what_cannot_be_decided_may_be_a_warning(values):
    asked = {"value_range": {"name": {"max": "b"}}, "min_rows": 99}
    severities = {
        (undecidable, failure): [
            c.severity for c in statistics_checks(**asked, on_undecidable=undecidable, on_failure=failure).run(values)
        ]
        for undecidable in ("fail", "warn")
        for failure in ("fail", "warn")
    }
    # min_rows comes first: it is decided
    assert severities == {
        ("fail", "fail"): ["fail", "fail"],
        ("fail", "warn"): ["warn", "fail"],
        ("warn", "fail"): ["fail", "warn"],
        ("warn", "warn"): ["warn", "warn"],
    }


def test_names_of_checks(values):
    asked = {"min_rows": 1, "max_null_fraction": {"id": 1, "day": 1}, "value_range": {"id": {"min": -9}}, "partitions": "p > 0"}
    outcomes = statistics_checks(**asked).run(values)
    assert [outcome.name for outcome in outcomes] == [
        "min_rows",
        "max_null_fraction.id",
        "max_null_fraction.day",
        "value_range.id",
        "partitions",
    ]
    assert all(outcome.passed for outcome in outcomes)


def test_files_without_statistics_decide_nothing(table):
    handle = table.begin(
        schema=schema(column("id", "long"), column("late", "long")), configuration={"delta.dataSkippingNumIndexedCols": "1"}
    )
    rows = pa.table({"id": pa.array([1], pa.int64()), "late": pa.array([1], pa.int64())})
    found = audited(table, handle, stage(table, handle, "new", rows))
    for asked in ({"value_range": {"late": {"min": 0}}}, {"max_null_fraction": {"late": 0.5}}):
        outcome = check(found, **asked)
        assert not outcome.passed
        assert "dataSkippingNumIndexedCols" in outcome.message


def test_rows_of_which_some_are_deleted_have_wide_bounds(values):
    wide = json.dumps(
        {"numRecords": 3, "minValues": {"id": 0}, "maxValues": {"id": 9}, "nullCount": {"id": 1}, "tightBounds": False}
    )
    path = f"staged/{values.handle.transaction_id}/new/x.parquet"
    file = add(path, stats=wide, partition_values={"p": "1"})
    values.staged = [file]
    assert check(values, value_range={"id": {"min": 0, "max": 9}}).passed
    for asked in ({"value_range": {"id": {"min": 1}}}, {"max_null_fraction": {"id": 1}}):
        assert "cannot be decided" in check(values, **asked).message


def test_nothing_staged_has_no_value_out_of_range_and_is_not_fresh(filled):
    handle = filled.begin()
    found = audited(filled, handle, filled.operate(handle, plan_truncate))
    assert check(found, value_range={"id": {"min": 0}}).passed
    assert check(found, max_null_fraction={"id": 0}).passed
    assert not check(found, min_rows=1).passed
    assert not check(found, partitions="p = 'a'").passed, "its files leave partition b as well"


def test_the_rows_of_the_table_may_change_so_much(filled):
    handle = filled.begin()
    found = audited(filled, handle, stage(filled, handle, "new", ids(*range(5)), part="c"))
    assert check(found, rows_change={"min_ratio": 1, "max_ratio": 2}).value == 2.0
    assert check(found, rows_change={"max_ratio": "2"}).passed
    outcome = check(found, rows_change={"max_ratio": 1.9})
    assert not outcome.passed
    assert "5 rows before the commit and 10 after it" in outcome.message


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"min_rows": "many"}, "min_rows must be a number"),
    ({"min_rows": 1.5}, "min_rows must be a whole number"),
    ({"max_rows": True}, "max_rows must be a number"),
    ({"rows_change": {"least": 1}}, "min_ratio"),
    ({"rows_change": {"min_ratio": None}}, "min_ratio"),
    ({"max_null_fraction": {"id": "NaN"}}, "max_null_fraction.id"),
    ({"max_null_fraction": {"id": 5}}, "max_null_fraction.id must be from 0 to 1"),
    ({"max_null_fraction": {"id": -0.1}}, "max_null_fraction.id must be from 0 to 1"),
    ({"max_null_fraction": "0.5"}, "max_null_fraction must be a mapping"),
    ({"value_range": "{'id': {'min': 1}}"}, "value_range must be a mapping"),
    ({"rows_change": "{'min_ratio': 1}"}, "min_ratio"),
    ({"freshness": "{'column': 'at', 'max_age': 1}"}, "freshness must be a mapping"),
    ({"value_range": {"id": 3}}, "value_range.id must be a mapping"),
    ({"value_range": {"ok": {"min": 1}}}, "has no bounds"),
    ({"freshness": {"column": "at"}}, "max_age"),
    ({"freshness": {"column": "id", "max_age": 1}}, "timestamps or dates"),
    ({"freshness": {"column": "at", "max_age": 1, "now": "soon"}}, "point in time"),
    ({"partitions": "id = 1"}, "partition columns"),
    ({"on_failure": "ignore"}, "on_failure"),
    ({"on_undecidable": "pass"}, "on_undecidable"),
]


@pytest.mark.parametrize(("asked", "says"), WRONG)
def test_what_is_no_check(values, asked, says):
    with pytest.raises(DeltaIllegalArgumentException, match=says):
        statistics_checks(**asked).run(values)


@pytest.mark.depends("sqlglot")
@pytest.mark.parametrize(
    "asked",
    [
        {"value_range": {"nothing": {"min": 1}}},
        {"value_range": {"id": {"min": "one"}}},
        {"value_range": {"day": {"min": "soon"}}},
        {"value_range": {"day": {"max": ""}}},  # what a template leaves of a value that is missing must not pass everything
        {"value_range": {"at": {"min": ""}}},
        {"value_range": {"id": {"max": ""}}},
        {"value_range": {"id": {"max": "NaN"}}},
        {"max_null_fraction": {"id OR p": 1}},
        {"max_null_fraction": {"id, p": 1}},
        {"max_null_fraction": {"inner.y": 1}},
        {"partitions": "nothing = 1"},
    ],
)
def test_columns_and_values_that_the_table_does_not_have(values, asked):
    with pytest.raises((DeltaAnalysisException, DeltaIllegalArgumentException)):
        statistics_checks(**asked).run(values)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"value_range": {"idd": {"min": 1}}},
            "value_range names the column 'idd', which the table does not have. Did you mean 'id'?",
        ),
        ({"max_null_fraction": {"idd": 1}}, "max_null_fraction names the column 'idd', which the table does not have."),
        ({"freshness": {"column": "att", "max_age": 1}}, "freshness names the column 'att', which the table does not have."),
    ],
)
def test_a_misspelt_column_is_told_with_its_parameter(values, asked, said):
    with pytest.raises(DeltaAnalysisException) as raised:
        statistics_checks(**asked).run(values)
    assert said in str(raised.value)
    assert "The columns are id," in str(raised.value)
    assert "IS NULL" not in str(raised.value)


def test_columns_have_their_logical_names(table):
    """Files and log know others: statistics are found by them, and the report does not name them."""
    handle = table.begin(
        schema=schema(column("id", "long"), column("p", "string")),
        partition_by=["p"],
        configuration={"delta.columnMapping.mode": "name"},
    )
    physical = {
        found["name"]: found["metadata"]["delta.columnMapping.physicalName"]
        for found in json.loads(handle.schema_string)["fields"]
    }
    path = f"staged/{handle.transaction_id}/new/1-a/x.parquet"
    stats = {"numRecords": 2, "nullCount": {physical["id"]: 0}}
    stats |= {"minValues": {physical["id"]: 1}, "maxValues": {physical["id"]: 9}}
    file = {
        "path": path,
        "partitionValues": {physical["p"]: "a"},
        "size": 1,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps(stats),
    }
    write = StagedWrite(
        transaction_id=handle.transaction_id,
        stage="new",
        task_id="new",
        attempt="1-a",
        mode="append",
        schema_string=handle.schema_string,
        partition_columns=("p",),
        actions=({"add": file},),
        num_files=1,
        num_records=2,
    )
    found = audited(table, handle, write)
    assert check(found, value_range={"id": {"min": 1, "max": 9}}).passed
    assert check(found, max_null_fraction={"id": 0}).passed
    assert check(found, partitions="p = 'a'").passed
    outside = check(found, partitions="p = 'b'")
    assert (outside.passed, outside.value) == (False, [{"p": "a"}])
    assert "[p=a]" in outside.message


@pytest.mark.parametrize("limit", ["", "soon", "2026-01-01 00:00:00+00:00"])
def test_a_limit_of_another_type_is_told_with_its_column(values, limit):
    with pytest.raises(
        DeltaAnalysisException,
        match=rf"value_range: '{re.escape(limit)}' is not a valid value for column `day` \(date\)",
    ):
        statistics_checks(value_range={"day": {"max": limit}}).run(values)


def test_statistics_need_no_spark(filled):
    """In a process of its own: this one may have imported PySpark already."""
    handle = filled.begin()
    staged = stage(filled, handle, "new", ids(1), part="a")
    code = f"""
import json, sys
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.audit.sql_checks import parse_sql_checks
from airflow_delta.table.audit.limit_checks import statistics_checks
from airflow_delta.log import DeltaLog
from airflow_delta.contract.payloads import TransactionHandle
handle, staged = json.load(sys.stdin)
table = AuditedTable(DeltaLog.for_table({filled.uri!r}), TransactionHandle.from_dict(handle), [staged])
asked = {{"min_rows": 1, "value_range": {{"id": {{"min": 0}}}}, "rows_change": {{"min_ratio": 1}}, "partitions": "p = 'a'"}}
assert all(check.passed for check in statistics_checks(**asked).run(table))
assert not {{"pyspark", "py4j", "airflow"}} & set(sys.modules)
"""
    subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([handle.to_dict(), staged.to_dict()]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
        check=True,
        timeout=60,
    )


# -- SQL ------------------------------------------------------------------------------------------------------------------------


def test_what_spark_is_asked(filled):
    handle = filled.begin()
    found = audited(filled, handle, stage(filled, handle, "new", ids(9), part="a", mode="dynamic"))
    checks = parse_sql_checks(
        {"a": "SELECT count(*) > 0 FROM Staged", "b": {"sql": "SELECT true FROM before", "on_failure": "warn"}}
    )
    request = plan_sql_checks(found, checks, task_id="audit", attempt=new_attempt())
    request = StageRequest.from_dict(json.loads(json.dumps(request.to_dict())))
    assert (request.operation, request.stage) == ("AUDIT", "audit")
    plans = {name: ScanPlan.from_dict(plan) for name, plan in request.arguments["views"].items()}
    assert {name: len(plan.files) for name, plan in plans.items()} == {"staged": 1, "before": 2}
    assert request.arguments["checks"][1] == {"name": "b", "sql": "SELECT true FROM before", "onFailure": "warn"}


def test_answers():
    checks = parse_sql_checks(dict.fromkeys(("true", "false", "null", "broken", "lost"), "SELECT true"), on_failure="warn")
    answers = (
        SqlAnswer(name="broken", problem="the query failed: no such column"),
        SqlAnswer(name="null"),
        SqlAnswer(name="false", passed=False, figures={"rows": "3"}),
        SqlAnswer(name="true", passed=True),
    )
    report = StageReport(transaction_id="t", stage="s", attempt="1-a", answers=tuple(answer.to_dict() for answer in answers))
    outcomes = judge_answers(checks, StageReport.from_dict(json.loads(json.dumps(report.to_dict()))))
    assert [(o.name, o.passed, o.value) for o in outcomes] == [
        ("true", True, True),
        ("false", False, False),
        ("null", False, None),
        ("broken", False, None),
        ("lost", False, None),
    ]
    assert {o.severity for o in outcomes} == {"warn"}
    assert outcomes[1].message == "the query says false; rows = 3"


@pytest.mark.parametrize("given", [3, "", {"query": "SELECT 1"}, {"sql": " "}, {"sql": "SELECT 1", "on_failure": "ignore"}])
def test_what_is_no_sql_check(given):
    with pytest.raises(DeltaIllegalArgumentException, match="'mine'"):
        parse_sql_checks({"mine": given})


def test_checks_that_a_template_has_left_as_text():
    with pytest.raises(DeltaIllegalArgumentException, match="checks must be a mapping"):
        parse_sql_checks("{'mine': 'SELECT true'}")
    assert parse_sql_checks("") == []


@pytest.mark.parametrize(
    ("checks", "passed"),
    [
        ([("a", True, "fail"), ("b", False, "warn")], True),
        ([("a", True, "fail"), ("b", False, "fail"), ("c", False, "fail")], False),
        ([], True),
    ],
)
def test_the_report(table, checks, passed):
    found = [AuditCheck(name=name, passed=ok, severity=severity) for name, ok, severity in checks]
    report = AuditReport.from_dict(json.loads(json.dumps(audit_report(table.begin(), found).to_dict())))
    assert report.passed == passed
    assert [check.name for check in report.failed] == ([] if passed else ["b", "c"])
