"""Staged writes into tables whose features ask something of the rows; tables made by our own engine, delta-rs as a reader."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_delta.contract.request import StageReport
from airflow_delta.exceptions import (
    ConstraintViolationException,
    DeltaIllegalArgumentException,
    IdentityInsertException,
    SchemaMismatchException,
    StageConflictException,
)
from airflow_delta.table.stage.plan_create import plan_create
from support.actions import column
from support.feature_tables import create, field, identity
from support.table import Table

pytestmark = pytest.mark.spark


def fields(table: Table) -> dict[str, dict[str, Any]]:
    return {f["name"]: f for f in json.loads(table.log().snapshot.metadata.schema_string)["fields"]}


# -- column mapping ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["name", "id"])
def test_files_have_physical_names_and_field_ids_at_every_depth(table, mode):
    import pyarrow.parquet as pq

    inner = {"type": "struct", "fields": [column("x y", "long")]}
    items = {"type": "array", "elementType": inner, "containsNull": False}
    create(
        table,
        column("id", "long", False),
        column("items", items),
        column("p", "string"),
        partition_by=("p",),
        **{"delta.columnMapping.mode": mode},
    )
    table.write("SELECT 1L AS id, array(named_struct('x y', 7L)) AS items, 'a b' AS p")
    known = fields(table)
    names = {name: f["metadata"]["delta.columnMapping.physicalName"] for name, f in known.items()}
    inside = known["items"]["type"]["elementType"]["fields"][0]["metadata"]
    [add] = table.actions(1)["add"]
    assert add["partitionValues"] == {names["p"]: "a b"}
    stats = json.loads(add["stats"])
    assert stats["minValues"] == {names["id"]: 1}
    assert stats["nullCount"] == {names["id"]: 0, names["items"]: 0}
    [file] = table.path.rglob("staged/**/*.parquet")
    read = pq.ParquetFile(file).schema
    paths = {read.column(i).path: i for i in range(len(read))}
    assert set(paths) == {names["id"], f"{names['items']}.list.element.{inside['delta.columnMapping.physicalName']}"}
    text = str(read)
    for name in ("id", "items"):
        assert f"field_id={known[name]['metadata']['delta.columnMapping.id']} {names[name]}" in text
    assert f"field_id={inside['delta.columnMapping.id']} {inside['delta.columnMapping.physicalName']}" in text
    assert table.read(table.begin()) == [(1, [(7,)], "a b")]


def test_predicates_and_rewrites_use_logical_names(table):
    create(table, column("id", "long"), column("p", "string"), partition_by=("p",), **{"delta.columnMapping.mode": "name"})
    table.write("SELECT id, if(id < 2, 'a', NULL) AS p FROM range(4)")
    result = table.write(
        "SELECT 9L AS id, 'a' AS p", mode="overwrite", replace_where="id = 0 AND p = 'a'".replace("id = 0", "id = 9")
    )
    assert result.num_removed_files == 0
    table.write("SELECT 7L AS id, CAST(NULL AS STRING) AS p", mode="overwrite", replace_where="id > 2 AND id < 9")
    table.write("SELECT 8L AS id, 'a' AS p", mode="overwrite", replace_where="p = 'a'")
    assert table.read(table.begin()) == [(2, None), (7, None), (8, "a")]


def test_finished_files_of_mode_id_are_refused(table):
    create(table, column("id", "long"), **{"delta.columnMapping.mode": "id"})
    handle = table.begin()
    table.spark.range(1).write.parquet(f"file://{handle.staging_path}/out")
    with pytest.raises(DeltaIllegalArgumentException, match=r"@task\.delta_stage"):
        table.stage_files(handle, path="out")


# -- rules of rows -------------------------------------------------------------------------------------------------------------


def test_constraints_see_rows_as_they_are_written(table):
    """After casts, with computed columns; the report of a job elsewhere carries the same error."""
    create(
        table,
        column("a", "long"),
        field("double", "long", delta__generationExpression="a * 2"),
        field("d", "string", CURRENT_DEFAULT="'none'"),
        **{
            "delta.constraints.small": "double < 10",
            "delta.constraints.named": "`d` <> ''",
            "delta.feature.allowColumnDefaults": "supported",
        },
    )
    table.write("SELECT 1 AS a")
    with pytest.raises(ConstraintViolationException, match=r'small \(double < 10\).*"double":10'):
        table.write("SELECT 5 AS a")
    with pytest.raises(ConstraintViolationException, match=r'named.*"d":""'):
        table.write("SELECT 1 AS a, '' AS d")
    assert table.rows() == [(1, 2, "none")]


def test_rows_that_a_join_drops_break_no_constraint(table):
    create(table, column("id", "long"), column("v", "long"), **{"delta.constraints.pos": "v > 0"})
    left = table.spark.sql("SELECT id, id - 1 AS v FROM range(3)")
    table.write(left.join(table.spark.sql("SELECT 2L AS id"), "id"))
    assert table.rows() == [(2, 1)]


def test_a_constraint_violation_comes_back_from_a_job_elsewhere(table, tmp_path):
    from airflow_delta.spark import delta_stage
    from airflow_delta.table.stage.write.job_runs import put_request, read_report
    from airflow_delta.table.stage.write.plan import plan_stage

    create(table, column("a", "long"), **{"delta.constraints.pos": "a > 0"})
    log, handle = table.log(), table.begin()
    request = plan_stage(table.view(handle, task_id="job"))
    stage = delta_stage(table.spark, put_request(log, request))
    with pytest.raises(ConstraintViolationException):
        stage.write(table.spark.sql("SELECT -1L AS a"))
    with pytest.raises(ConstraintViolationException, match=r'failed on the cluster.*"a":-1'):
        read_report(log, request)


# -- identity columns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "step"), [(1, 1), (-7, -3), (100, 5), (-7, 1), (7, -1)])
def test_identity_values(table, start, step):
    create(table, identity("id", start, step), column("v", "long"))
    for first in (0, 50):
        table.write(table.spark.range(first, first + 50, numPartitions=3).selectExpr("id AS v"))
    rows = table.rows()
    values = [row[0] for row in sorted(rows, key=lambda row: row[1])]
    assert len(set(values)) == 100
    assert {(value - start) % step for value in values} == {0}
    assert start in values
    extreme = max if step > 0 else min
    assert fields(table)["id"]["metadata"]["delta.identity.highWaterMark"] == extreme(values)
    assert all((after - extreme(values[:50])) * step > 0 for after in values[50:])


def test_a_task_with_more_rows_than_a_block(table):
    create(table, identity("id", 0, 1), column("v", "long"))
    table.write(table.spark.range(0, 20_000, numPartitions=1).selectExpr("id AS v"))
    values = [row[0] for row in table.rows()]
    assert len(set(values)) == 20_000
    assert sorted(values)[: 1 << 13] == list(range(1 << 13))


def test_values_for_identity_columns(table):
    create(table, identity("always", 1, 1), identity("both", 1, 1, explicit=True), column("v", "long"))
    with pytest.raises(IdentityInsertException, match="EXPLICIT_INSERT_NOT_SUPPORTED"):
        table.write("SELECT 1L AS ALWAYS, 1L AS v")
    table.write("SELECT 77L AS both, 1L AS v")
    assert table.rows() == [(1, 77, 1)]
    assert "delta.identity.highWaterMark" not in fields(table)["both"]["metadata"]


def test_the_end_of_identity_values(table):
    create(table, identity("id", 2**63 - 2, 1), column("v", "long"))
    table.write("SELECT 1L AS v")
    with pytest.raises(IdentityInsertException, match="run out"):
        table.write(table.spark.range(0, 2, numPartitions=1).selectExpr("id AS v"))
    table.write("SELECT 1L AS v")
    with pytest.raises(IdentityInsertException, match="run out"):
        table.write("SELECT 1L AS v")
    assert [row[0] for row in table.rows()] == [2**63 - 2, 2**63 - 1]


# -- type widening, schemas ----------------------------------------------------------------------------------------------------


def test_two_stages_widen_one_column(table):
    create(table, column("id", "integer"), **{"delta.enableTypeWidening": "true"})
    table.write("SELECT 1 AS id")
    handle = table.begin()
    narrow = table.stage(handle, "SELECT 2 AS id", task_id="narrow", merge_schema=True)
    wide = table.stage(handle, "SELECT 1L << 40 AS id", task_id="wide", merge_schema=True)
    table.publish(handle, narrow, wide)
    assert table.read(table.begin()) == [(1,), (1 << 40,), (2,)]
    assert fields(table)["id"]["metadata"]["delta.typeChanges"] == [{"toType": "long", "fromType": "integer"}]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("on_top", [False, True])
def test_a_new_column_has_files_of_two_types(table, on_top, turned):
    """Whoever drops the feature later finds by the recorded change that files must be written again."""
    create(table, column("id", "integer"), **{"delta.enableTypeWidening": "true"})
    handle = table.begin()
    narrow = table.stage(handle, "SELECT 1 AS id, 2 AS n", task_id="narrow", merge_schema=True)
    after = [narrow.to_dict()] if on_top else []
    wide = table.stage(handle, "SELECT 3 AS id, 1L << 40 AS n", task_id="wide", merge_schema=True, after=after)
    table.publish(handle, *((wide, narrow) if turned else (narrow, wide)))
    assert table.read(table.begin()) == [(1, 2), (3, 1 << 40)]
    assert fields(table)["n"]["metadata"]["delta.typeChanges"] == [{"toType": "long", "fromType": "integer"}]


def test_the_stages_of_a_replaced_table_widen_its_columns(table):
    create(table, column("id", "string"))
    handle = table.begin()
    widening = {"delta.enableTypeWidening": "true"}
    stages = [table.operate(handle, plan_create, schema="id INT", properties=widening, mode="replace", task_id="create")]
    for number, rows in enumerate(["SELECT 1 AS id", "SELECT 1L << 40 AS id"]):
        after = [stage.to_dict() for stage in stages]
        stages.append(table.stage(handle, rows, task_id=f"rows_{number}", merge_schema=True, after=after))
    table.publish(handle, *stages)
    assert table.read(table.begin()) == [(1,), (1 << 40,)]
    assert fields(table)["id"]["metadata"]["delta.typeChanges"] == [{"toType": "long", "fromType": "integer"}]


def test_a_narrower_file_is_no_wider_one(table):
    create(table, column("id", "long"), **{"delta.enableTypeWidening": "true"})
    table.write("SELECT 1 AS id", merge_schema=True)
    assert fields(table)["id"]["type"] == "long"
    with pytest.raises(SchemaMismatchException, match="expected bigint, got string"):
        table.write("SELECT 'x' AS id", merge_schema=True)


# -- change data ---------------------------------------------------------------------------------------------------------------


def test_change_data_files(table):
    create(table, column("id", "long"), column("p", "timestamp"), partition_by=("p",), **{"delta.enableChangeDataFeed": "true"})
    table.write("SELECT id, if(id < 3, TIMESTAMP'2024-10-27 02:30:00', NULL) AS p FROM range(4)")
    table.write(
        "SELECT 9L AS id, TIMESTAMP'2024-01-01 00:00:00.5' AS p UNION ALL SELECT 9L, NULL",
        mode="overwrite",
        replace_where="id IN (1, 9)",
    )
    commit = table.actions(2)
    changes = commit["cdc"]
    assert commit["commitInfo"][0]["operationMetrics"]["numAddedChangeFiles"] == str(len(changes)) == "3"
    assert all(change["dataChange"] is False for change in changes)
    found = []
    import pyarrow.parquet as pq

    for change in changes:
        [row] = (
            pq.ParquetFile(table.path / change["path"].replace("%253A", "%3A").replace("%2520", " ").replace("%20", " "))
            .read()
            .to_pylist()
        )
        found.append((row["id"], row["_change_type"], change["partitionValues"]["p"]))
    kept = {add["partitionValues"]["p"] for add in commit["add"]}
    assert sorted(found, key=repr) == [
        (1, "delete", next(p for p in kept if p and p.startswith("2024-10-27"))),
        (9, "insert", next(p for p in kept if p and not p.startswith("2024-10-27"))),
        (9, "insert", None),
    ]
    assert len(table.rows()) == 5


def test_delta_rs_shows_the_changes(table):
    import pyarrow as pa
    from deltalake import DeltaTable

    create(table, column("id", "long"), column("v", "long"), **{"delta.enableChangeDataFeed": "true"})
    table.write("SELECT id, id AS v FROM range(4)")
    table.write("SELECT 9L AS id, 1L AS v", mode="overwrite", replace_where="v = 1")
    feed = pa.table(DeltaTable(table.path).load_cdf(starting_version=2)).to_pylist()
    assert sorted((row["id"], row["v"], row["_change_type"]) for row in feed) == [(1, 1, "delete"), (9, 1, "insert")]


def test_a_change_data_file_is_checked_like_any_other(table):
    from airflow_delta.exceptions import StagedFileException

    create(table, column("id", "long"), **{"delta.enableChangeDataFeed": "true"})
    table.write("SELECT id FROM range(4)")
    handle = table.begin()
    staged = table.stage(handle, "SELECT 9L AS id", mode="overwrite", replace_where="id = 1 OR id = 9")
    change = next(action["cdc"] for action in staged.actions if "cdc" in action)
    (table.path / change["path"]).unlink()
    with pytest.raises(StagedFileException, match="is gone"):
        table.publish(handle, staged)


def test_a_rerun_that_replaces_is_no_company_for_change_data(table):
    create(table, column("id", "long"), **{"delta.enableChangeDataFeed": "true"})
    table.write("SELECT 100L + id AS id FROM range(4)")
    table.write("SELECT id FROM range(2)", begin={"transaction_key": "again"})
    with pytest.raises(StageConflictException, match="removed whole"):
        table.write(
            "SELECT 100L AS id",
            begin={"transaction_key": "again", "rerun_policy": "replace"},
            mode="overwrite",
            replace_where="id >= 100 AND id < 102",
        )


def test_payloads_of_before_have_no_rules():
    """A request or report that an older version wrote is read: what it does not name has defaults."""
    report = StageReport.from_dict({"contract": 1, "transactionId": "t", "stage": "s", "attempt": "a"})
    assert report.change_directories == report.identities == ()
