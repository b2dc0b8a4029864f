"""Every way of writing, from begin to commit, with real Spark and the real log; delta-rs reads the outcome."""

from __future__ import annotations

import datetime as dt
import json
import time
from decimal import Decimal

import pytest

from airflow_delta.contract.merge import when_matched_update, when_not_matched_insert
from airflow_delta.exceptions import (
    AppendOnlyException,
    ConcurrentAppendException,
    ConcurrentDeleteReadException,
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    InvariantViolationException,
    PredicateException,
    ReplaceWhereMismatchException,
    SchemaMismatchException,
)
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.operations.vacuum.run import vacuum
from support.actions import column, schema
from support.table import Table

pytestmark = pytest.mark.spark

ROWS = "SELECT * FROM VALUES (1, 'a', 10), (2, 'a', 20), (3, 'b', 30), (4, 'b', NULL) AS t(id, p, v)"
START = [(1, "a", 10), (2, "a", 20), (3, "b", 30), (4, "b", None)]


@pytest.fixture(scope="module")
def original(spark, tmp_path_factory):
    found = Table(tmp_path_factory.mktemp("original") / "table", spark)
    result = found.write(ROWS, begin={"partition_by": ["p"]})
    assert (result.version, result.num_records) == (0, 4)
    return found


@pytest.fixture
def filled(table, original):
    """Rows 1 to 4 in the partitions a and b."""
    table.copy_from(original)
    return table


def test_the_first_commit_creates_the_table(filled):
    actions = filled.actions(0)
    [info], [metadata], [protocol], [txn] = (actions[k] for k in ("commitInfo", "metaData", "protocol", "txn"))
    assert info["operation"] == "WRITE"
    assert info["operationParameters"] == {"mode": "Append", "partitionBy": '["p"]'}
    assert (info["operationMetrics"]["numOutputRows"], info["operationMetrics"]["numFiles"]) == ("4", str(len(actions["add"])))
    assert info["tags"]["airflow.appId"] == txn["appId"] == "key-1"
    assert metadata["partitionColumns"] == ["p"]
    assert metadata["configuration"] == {"delta.setTransactionRetentionDuration": "interval 90 days"}
    assert all(f["nullable"] for f in json.loads(metadata["schemaString"])["fields"])
    assert (protocol["minReaderVersion"], protocol["minWriterVersion"]) == (1, 2)
    assert filled.rows() == START


def test_a_value_that_means_null_in_a_directory_is_refused(filled):
    for stage in (
        lambda: filled.write("SELECT 9 AS id, '__HIVE_DEFAULT_PARTITION__' AS p, 9 AS v"),
        lambda: filled.run(plan_update, set={"p": "concat('__HIVE_DEFAULT', '_PARTITION__')"}, predicate="id = 3"),
    ):
        with pytest.raises(DeltaAnalysisException, match="Partition column p has the value '__HIVE_DEFAULT_PARTITION__'"):
            stage()
    assert filled.rows() == START


def test_nothing_is_visible_before_the_commit(filled):
    handle = filled.begin()
    staged = filled.stage(handle, "SELECT 9 AS id, 'z' AS p, 9 AS v")
    assert filled.rows() == START
    result = filled.publish(handle, staged)
    assert (result.version, result.read_version, result.is_blind_append, result.num_removed_files) == (1, 0, True, 0)
    assert result.partitions == ({"p": "z"},)
    assert filled.rows() == sorted([*START, (9, "z", 9)], key=repr)


def test_overwrite(filled):
    result = filled.write("SELECT 9 AS id, 'z' AS p, 9 AS v", mode="overwrite")
    assert filled.rows() == [(9, "z", 9)]
    actions = filled.actions(1)
    assert result.num_removed_files == len(actions["remove"]) == len(filled.actions(0)["add"])
    assert len({remove["deletionTimestamp"] for remove in actions["remove"]}) == 1
    assert actions["remove"][0]["deletionTimestamp"] > 0
    assert actions["commitInfo"][0]["operationParameters"]["mode"] == "Overwrite"


def test_replace_where_on_partitions_touches_nothing_else(filled):
    handle = filled.begin()
    staged = filled.stage(handle, "SELECT 9 AS id, 'b' AS p, 9 AS v", mode="overwrite", replace_where="p = 'b'")
    filled.write("SELECT 5 AS id, 'a' AS p, 5 AS v")  # another partition: no conflict
    result = filled.publish(handle, staged)
    assert result.version == 2
    assert filled.rows() == sorted([*START[:2], (5, "a", 5), (9, "b", 9)], key=repr)
    assert filled.info(2)["operationParameters"]["predicate"] == "p = 'b'"


def test_replace_where_conflicts_with_an_append_to_its_partition(filled):
    handle = filled.begin()
    staged = filled.stage(handle, "SELECT 9 AS id, 'b' AS p, 9 AS v", mode="overwrite", replace_where="p = 'b'")
    filled.write("SELECT 5 AS id, 'b' AS p, 5 AS v")
    with pytest.raises(ConcurrentAppendException):
        filled.publish(handle, staged)


def test_replace_where_on_data_keeps_the_rows_it_does_not_select(filled):
    """Also those for which it is null; a file without a selected row is left alone."""
    handle = filled.begin()
    staged = filled.stage(handle, "SELECT 9 AS id, 'c' AS p, 99 AS v", mode="overwrite", replace_where="v >= 30")
    assert (staged.num_records, staged.num_copied_records) == (1, 1)
    result = filled.publish(handle, staged)
    assert filled.rows() == sorted([(1, "a", 10), (2, "a", 20), (4, "b", None), (9, "c", 99)], key=repr)
    removed = {remove["partitionValues"]["p"] for remove in filled.actions(1)["remove"]}
    assert removed == {"b"}
    metrics = filled.info(1)["operationMetrics"]
    assert (metrics["numOutputRows"], metrics["numCopiedRows"], metrics["numDeletedRows"]) == ("1", "1", "1")
    assert (result.num_records, result.num_removed_files) == (1, len(filled.actions(1)["remove"]))


def test_replace_where_on_data_conflicts_with_a_delete_of_what_it_rewrote(filled):
    handle = filled.begin()
    staged = filled.stage(handle, "SELECT 9 AS id, 'c' AS p, 99 AS v", mode="overwrite", replace_where="v >= 30")
    filled.write("SELECT 8 AS id, 'b' AS p, 8 AS v", mode="overwrite", replace_where="p = 'b'")
    with pytest.raises((ConcurrentDeleteReadException, ConcurrentAppendException)):
        filled.publish(handle, staged)


@pytest.mark.parametrize("predicate", ["p = 'b'", "p = 'b' AND id > 0", "v > 8"])
def test_rows_outside_replace_where_are_refused_when_they_are_staged(filled, predicate):
    with pytest.raises(ReplaceWhereMismatchException):
        filled.write("SELECT 9 AS id, 'z' AS p, 1 AS v", mode="overwrite", replace_where=predicate)
    assert len(filled.versions()) == 1


@pytest.mark.parametrize("predicate", ["nope = 1", "p = "])
def test_a_predicate_that_means_nothing_is_refused_before_spark_runs(filled, predicate):
    with pytest.raises(PredicateException):
        filled.write("SELECT 9 AS id, 'z' AS p, 1 AS v", mode="overwrite", replace_where=predicate)


def test_dynamic_overwrite_replaces_the_partitions_of_the_rows(filled):
    result = filled.write("SELECT * FROM VALUES (9, 'b', 9), (8, 'c', 8) AS t(id, p, v)", mode="dynamic")
    assert filled.rows() == sorted([*START[:2], (9, "b", 9), (8, "c", 8)], key=repr)
    assert filled.info(1)["operationParameters"]["isDynamicPartitionOverwrite"] is True
    assert result.num_removed_files == len(filled.actions(1)["remove"])


def test_an_empty_dataframe_commits_no_file(filled):
    result = filled.write(f"{ROWS} WHERE id > 9")
    assert (result.version, result.num_files, result.num_records) == (1, 0, 0)
    assert "add" not in filled.actions(1)
    assert filled.rows() == START


def test_merge_schema_adds_a_column(filled):
    with pytest.raises(SchemaMismatchException, match="column extra"):
        filled.write("SELECT 5 AS id, 'a' AS p, 5 AS v, 'new' AS extra")
    filled.write("SELECT 5 AS id, 'a' AS p, 5 AS v, 'new' AS extra", merge_schema=True)
    assert filled.rows() == sorted([*[(*row, None) for row in START], (5, "a", 5, "new")], key=repr)
    assert filled.actions(1)["metaData"][0]["id"] == filled.actions(0)["metaData"][0]["id"]


def test_merge_schema_without_a_new_column_changes_no_metadata(filled):
    filled.write("SELECT 5 AS id, 'a' AS p, 5 AS v", merge_schema=True)
    assert "metaData" not in filled.actions(1)


def test_overwrite_schema_replaces_schema_and_partitioning(filled):
    filled.write("SELECT 1.5D AS x, 7 AS q", mode="overwrite", overwrite_schema=True, partition_by=["q"])
    assert filled.rows() == [(1.5, 7)]
    assert filled.actions(1)["metaData"][0]["partitionColumns"] == ["q"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": "upsert"}, DeltaIllegalArgumentException),
        ({"mode": "append", "replace_where": "p = 'a'"}, DeltaIllegalArgumentException),
        ({"mode": "dynamic", "overwrite_schema": True}, DeltaIllegalArgumentException),
        ({"mode": "overwrite", "overwrite_schema": True, "replace_where": "p = 'a'"}, DeltaIllegalArgumentException),
        ({"partition_by": ["v"]}, DeltaIllegalArgumentException),
    ],
)
def test_options_that_contradict_each_other_are_refused(filled, options, error):
    with pytest.raises(error, match=r"version|table"):
        filled.stage(filled.begin(), ROWS, **options)


def test_not_null_columns_of_a_table_that_start_describes(table):
    given = schema(column("id", "integer", False), column("name", "string"))
    table.write("SELECT 1S AS id", begin={"schema": given})
    assert table.rows() == [(1, None)]
    with pytest.raises(InvariantViolationException, match="NOT NULL column id"):
        table.write("SELECT CAST(NULL AS INT) AS id")


def test_an_append_only_table_refuses_an_overwrite_before_spark_runs(table):
    table.write("SELECT 1 AS id", begin={"configuration": {"delta.appendOnly": "true"}})
    with pytest.raises(AppendOnlyException):
        table.stage(table.begin(), "SELECT 2 AS id", mode="overwrite")
    assert table.write("SELECT 2 AS id").version == 1


VALUES = {
    "string": ["a b", "per%cent", "co:lon", "pl+us", "sl/ash", "grüße", "[x]{y}*?", None, ""],
    "int": [-1, None],
    "date": [dt.date(2024, 2, 29), None],
    "timestamp": [dt.datetime(2024, 10, 27, 0, 30), dt.datetime(2024, 10, 27, 1, 30, 0, 5), None],
    "timestamp_ntz": [dt.datetime(2024, 10, 27, 2, 30), None],
    "boolean": [True, False, None],
    "decimal(10,2)": [Decimal("3.50"), None],
    "double": [1.5, 1e10, None],
}


@pytest.mark.slow
@pytest.mark.parametrize("data_type", VALUES)
def test_partition_values_of_every_type_and_kind(table, spark, data_type):
    given = [
        dt.datetime.fromtimestamp(v.replace(tzinfo=dt.UTC).timestamp()) if data_type == "timestamp" and v else v
        for v in VALUES[data_type]
    ]
    df = spark.createDataFrame([(i, v) for i, v in enumerate(given)], f"id INT, p {data_type}").coalesce(1)
    table.write(df, begin={"partition_by": ["p"]})
    expected = [None if v == "" else v for v in VALUES[data_type]]
    found = [value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value for _, value in sorted(table.rows())]
    assert found == expected
    handle = table.begin()
    read = sorted(table.read(handle))
    assert [value for _, value in read] == [None if v == "" else v for v in given]
    selected = [i for i, v in enumerate(expected) if v is None]
    assert [i for i, _ in table.read(handle, "p IS NULL")] == selected
    table.write(df.where("p IS NULL"), mode="overwrite", replace_where="p IS NULL")
    assert len(table.rows()) == len(expected) - given.count("")


def test_a_table_path_with_characters_of_globs_and_urls(table, tmp_path):
    table.path = tmp_path / "ta ble%20[1]{a}*ü"
    table.write(ROWS, begin={"partition_by": ["p"]})
    table.write("SELECT 9 AS id, 'b' AS p, 99 AS v", mode="overwrite", replace_where="v >= 30")
    handle = table.begin()
    expected = sorted([(1, "a", 10), (2, "a", 20), (4, "b", None), (9, "b", 99)], key=repr)
    assert table.read(handle) == expected
    assert [row for _, row in sorted((r[0], r) for r in table.read(handle, "p = 'b'"))] == [(4, "b", None), (9, "b", 99)]


def test_a_stage_reads_the_version_that_start_pinned(filled):
    handle = filled.begin()
    filled.write("SELECT 9 AS id, 'a' AS p, 9 AS v")
    filled.write("SELECT 7 AS id, 'a' AS p, 7 AS v", mode="overwrite")
    assert filled.read(handle) == sorted(START, key=repr)
    assert filled.read(handle, "p = 'a' AND v > 10") == [(2, "a", 20)]


def test_a_retried_stage_leaves_orphans_only(filled):
    handle = filled.begin()
    filled.stage(handle, "SELECT 9 AS id, 'a' AS p, 9 AS v")  # its attempt died after writing
    staged = filled.stage(handle, "SELECT 9 AS id, 'a' AS p, 9 AS v")
    filled.publish(handle, staged)
    assert filled.rows() == sorted([*START, (9, "a", 9)], key=repr)


def test_mapped_stages_are_one_commit(filled):
    handle = filled.begin()
    staged = [
        filled.stage(handle, f"SELECT {i} AS id, 'm{i}' AS p, 0 AS v", map_index=i, mode="overwrite", replace_where=f"p = 'm{i}'")
        for i in range(2)
    ]
    result = filled.publish(handle, *staged, expected={("stage", 0): None, ("stage", 1): None})
    assert (result.version, result.num_records) == (1, 2)
    assert len(filled.rows()) == 6
    assert filled.info(1)["operationParameters"]["predicate"] == "(p = 'm0') OR (p = 'm1')"


def test_a_replace_where_on_data_columns_sees_rows_of_whoever_created_the_table_meanwhile(table):
    first, near, far = (table.begin(partition_by=["p"]) for _ in range(3))
    overlapping = table.stage(near, "SELECT 7L AS id, 'a' AS p", mode="overwrite", replace_where="p = 'a' AND id > 5")
    apart = table.stage(far, "SELECT 8L AS id, 'b' AS p", mode="overwrite", replace_where="p = 'b' AND id > 5")
    table.publish(first, table.stage(first, "SELECT 6L AS id, 'a' AS p"))
    with pytest.raises(ConcurrentAppendException, match="did not exist"):
        table.publish(near, overlapping)
    table.publish(far, apart)
    assert table.rows() == [(6, "a"), (8, "b")]


@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["false", "true"])
def test_partition_columns_whose_names_look_hidden(table, vectors):
    """Directories ``.p=1`` and ``_p=1`` are data: through every operation, and a VACUUM at the end."""
    rows = "SELECT id, CONCAT('d', id % 2) AS `.p`, CONCAT('u', id % 3) AS `_p`, id AS v FROM range({}, {})"
    configuration = {"delta.enableDeletionVectors": vectors, "delta.enableChangeDataFeed": "true"}
    table.write(rows.format(0, 12), begin={"partition_by": [".p", "_p"], "configuration": configuration})
    assert any("/.p=d1/_p=u2/" in add["path"] for add in table.actions(0)["add"])
    expected = {n: (n, f"d{n % 2}", f"u{n % 3}", n) for n in range(12)}
    table.run(plan_delete, predicate="v = 3 AND `.p` = 'd1'")
    del expected[3]
    table.run(plan_delete, predicate="`_p` = 'u1' AND `.p` = 'd0'")
    expected = {n: row for n, row in expected.items() if row[1:3] != ("d0", "u1")}
    table.run(plan_update, set={"v": "v + 100"}, predicate="`.p` = 'd1' AND id < 8")
    expected |= {n: (*row[:3], n + 100) for n, row in expected.items() if n % 2 and n < 8}
    table.run(
        plan_merge,
        source=rows.format(8, 14).replace("id AS v", "-id AS v"),
        condition="target.id = source.id AND target.`.p` = source.`.p`",
        clauses=[when_matched_update({"v": "source.v"}), when_not_matched_insert()],
    )
    expected |= {n: (n, f"d{n % 2}", f"u{n % 3}", -n) for n in range(8, 14)}
    table.write("SELECT 50 AS id, 'd0' AS `.p`, 'u0' AS `_p`, 50 AS v", mode="overwrite", replace_where="`.p` = 'd0'")
    expected = {n: row for n, row in expected.items() if row[1] != "d0"} | {50: (50, "d0", "u0", 50)}
    assert sorted(table.read(table.begin())) == sorted(expected.values())
    age = {"retention_hours": 0, "retention_check": False, "clock": lambda: int(time.time() * 1000) + 3_600_000}
    vacuum(table.log(), **age)
    assert sorted(table.read(table.begin())) == sorted(expected.values())
    if vectors == "false":
        assert sorted(table.rows()) == sorted(expected.values())
