"""ALTER TABLE as a stage: with data stages in one version, against concurrent writes, and what it looks at."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_delta.contract.changes import (
    AddColumns,
    AddConstraint,
    Change,
    ChangeColumn,
    ClusterBy,
    Column,
    DropColumns,
    DropConstraint,
    DropFeature,
    RenameColumn,
    SetProperties,
    SyncIdentity,
    UnsetProperties,
    UpgradeProtocol,
    changes_from,
)
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConstraintViolationException,
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    InvariantViolationException,
    MetadataChangedException,
    ProtocolChangedException,
    ProtocolDowngradeException,
    StageConflictException,
)
from airflow_delta.log.features.identity_columns import identity_columns
from airflow_delta.log.schema.types import parse_schema
from airflow_delta.spark.run_operation import run_operation
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.plan_create import plan_create
from support.table import Table

pytestmark = pytest.mark.spark

ROWS = "SELECT * FROM VALUES (1, 'x'), (2, NULL) AS t(a, b)"
MAPPED = {"configuration": {"delta.columnMapping.mode": "name"}}


@pytest.fixture(scope="module")
def original(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Two rows, in one version."""
    found = Table(tmp_path_factory.mktemp("original") / "table", spark)
    found.write(ROWS)
    return found


def alter(
    table: Table, handle: TransactionHandle, *changes: Change | dict[str, Any], after: Any = (), **more: Any
) -> StagedWrite:
    """Stage changes as the tasks of a run do it: everything travels as JSON."""
    planned = plan_alter(table.view(handle, task_id=more.pop("task_id", "alter"), after=after, **more), list(changes))
    if not isinstance(planned, StagedWrite):
        planned = planned.collect(planned.request, run_operation(table.spark, planned.request))
    return StagedWrite.from_dict(json.loads(json.dumps(planned.to_dict())))


def run(table: Table, *changes: Change | dict[str, Any]) -> Any:
    handle = table.begin()
    return table.publish(handle, alter(table, handle, *changes))


def fields(table: Table) -> list[str]:
    return list(table.log().update().schema.names)


def test_changes_have_a_json_form_and_refuse_what_they_do_not_know() -> None:
    change = AddColumns([Column("s.x", "INT", comment="c", position="FIRST")])
    assert changes_from([json.loads(json.dumps(change.to_dict()))]) == changes_from(change)
    for wrong in ([], {"change": "Sparkle"}, "RenameColumn", {"change": "RenameColumn", "column": "a", "newName": "b", "x": 1}):
        with pytest.raises(DeltaIllegalArgumentException):
            changes_from(wrong)


@pytest.mark.slow
def test_several_changes_and_data_make_one_version(table: Table) -> None:
    table.write(ROWS, begin=MAPPED)
    handle = table.begin()
    first = alter(table, handle, AddColumns([Column("c", "STRUCT<x: INT>")]), RenameColumn("b", "bb"))
    second = alter(table, handle, AddConstraint("positive", "a > 0"), after=[first], task_id="second")
    seen = table.view(handle, after=[first, second]).target
    assert parse_schema(seen.schema_string or "").names == ("a", "bb", "c")
    assert seen.configuration["delta.constraints.positive"] == "a > 0"
    assert "checkConstraints" in seen.features
    rows = table.stage(
        handle, "SELECT 3 AS a, 'z' AS bb, named_struct('x', 7) AS c, 1L AS d", after=[first, second], merge_schema=True
    )
    result = table.publish(handle, rows, second, first)
    assert (result.version, result.num_records) == (1, 1)
    # The schema that the stages were planned with is the one that is committed, physical names included.
    committed = table.log().update().schema
    assert committed.select(["a", "bb", "c"]) == parse_schema(seen.schema_string or "")
    assert committed.names == ("a", "bb", "c", "d")
    info = table.info(1)
    assert info["operation"] == "WRITE"
    listed = [operation["operation"] for operation in json.loads(info["tags"]["airflow.operations"])]
    assert listed == ["ADD COLUMNS", "RENAME COLUMN", "ADD CONSTRAINT", "WRITE"]
    handle = table.begin()
    assert (
        table.read(handle) == [(1, "x", None, None), (2, None, None, None), (3, "z", {"x": 7}, 1)] or len(table.read(handle)) == 3
    )
    with pytest.raises(ConstraintViolationException):
        table.write("SELECT -1 AS a")


def test_a_constraint_sees_the_rows_of_an_earlier_stage(table: Table, original: Table) -> None:
    table.copy_from(original)
    handle = table.begin()
    rows = table.stage(handle, "SELECT -5 AS a, 'n' AS b")
    with pytest.raises(ConstraintViolationException, match="1 rows"):
        alter(table, handle, AddConstraint("positive", "a > 0"), after=[rows])


def test_a_stage_that_does_not_know_of_the_change_is_refused(table: Table, original: Table) -> None:
    table.copy_from(original)
    handle = table.begin()
    change = alter(table, handle, AddColumns([Column("c", "INT")]))
    with pytest.raises(StageConflictException, match="after="):
        table.publish(handle, change, table.stage(handle, ROWS))
    replacing = table.stage(handle, ROWS, mode="overwrite", overwrite_schema=True)
    with pytest.raises(StageConflictException, match="replaces it"):
        table.publish(handle, change, replacing)
    handle = table.begin()
    drop = alter(table, handle, SetProperties({"a": "1"}), task_id="one")
    other = alter(table, handle, DropConstraint("c", if_exists=True), DropConstraint("d", if_exists=True), after=[drop])
    table.publish(handle, drop, other)
    info = table.info(1)
    assert info["operation"] == "Manual Update"
    assert len(json.loads(info["tags"]["airflow.operations"])) == 3


def test_changes_of_one_kind_are_one_operation(table: Table, original: Table) -> None:
    table.copy_from(original)
    run(table, ChangeColumn("a", comment="one"), ChangeColumn("b", position="FIRST"))
    run(table, SetProperties({"x": "1", "y": "1"}), SetProperties({"x": "2"}))
    run(table, AddColumns([Column("c", "INT")]), AddColumns([Column("d", "INT", position="FIRST")]))
    operations = [table.info(version) for version in (1, 2, 3)]
    assert [o["operation"] for o in operations] == ["CHANGE COLUMNS", "SET TBLPROPERTIES", "ADD COLUMNS"]
    assert json.loads(operations[1]["operationParameters"]["properties"]) == {"x": "2", "y": "1"}
    assert [c["column"]["name"] for c in json.loads(operations[2]["operationParameters"]["columns"])] == ["c", "d"]
    assert fields(table) == ["d", "b", "a", "c"]


@pytest.mark.parametrize(
    ("changes", "loses"),
    [
        ([AddColumns([Column("c", "INT")])], None),
        ([SetProperties({"x": "1"})], None),
        ([ClusterBy(["a"])], None),
        ([AddConstraint("positive", "a > 0")], ConcurrentAppendException),
        ([ChangeColumn("a", nullable=False)], ConcurrentAppendException),
    ],
    ids=lambda value: type(value[0]).__name__ if isinstance(value, list) else None,
)
@pytest.mark.slow
def test_a_change_against_an_append(table: Table, original: Table, changes: list[Change], loses: type[Exception] | None) -> None:
    """As the matrix of write conflicts says: an append loses against any change, a change only where it looked at rows."""
    table.copy_from(original)
    handle, other = table.begin(), table.begin()
    staged, rows = alter(table, handle, *changes), table.stage(other, "SELECT 9 AS a")
    table.write("SELECT 7 AS a")
    if loses is not None:
        with pytest.raises(loses):
            table.publish(handle, staged)
        run(table, *changes)
    else:
        table.publish(handle, staged)
    if isinstance(changes[0], ClusterBy):  # leaves the metadata as they are, and files may be added without being clustered
        assert table.publish(other, rows).version == 3
        return
    with pytest.raises((MetadataChangedException, ProtocolChangedException)):
        table.publish(other, rows)


def test_two_changes_conflict(table: Table, original: Table) -> None:
    table.copy_from(original)
    handle = table.begin()
    staged = alter(table, handle, SetProperties({"x": "1"}))
    run(table, SetProperties({"y": "1"}))
    with pytest.raises(MetadataChangedException):
        table.publish(handle, staged)


def test_not_null_by_statistics_and_by_a_look_at_rows(table: Table) -> None:
    table.write("SELECT 1 AS a, CAST(NULL AS STRING) AS b, named_struct('x', 1) AS s")
    handle = table.begin()
    planned = plan_alter(table.view(handle), [ChangeColumn("a", nullable=False)])
    assert isinstance(planned, StagedWrite), "statistics tell"
    with pytest.raises(InvariantViolationException):
        alter(table, handle, ChangeColumn("b", nullable=False))
    planned = plan_alter(table.view(handle), [ChangeColumn("s", nullable=False)])
    assert not isinstance(planned, StagedWrite), "structs have no statistics"
    run(table, ChangeColumn("a", nullable=False), ChangeColumn("s", nullable=False), ChangeColumn("s.x", nullable=False))
    assert [f.nullable for f in table.log().update().schema] == [False, True, False]
    with pytest.raises(InvariantViolationException):
        table.write("SELECT CAST(NULL AS INT) AS a, 'x' AS b, named_struct('x', 1) AS s")
    run(table, ChangeColumn("a", nullable=True))
    table.write("SELECT CAST(NULL AS INT) AS a, 'x' AS b, named_struct('x', 1) AS s")


def test_wider_columns_of_old_and_new_files(table: Table) -> None:
    table.write(ROWS, begin={"configuration": {"delta.enableTypeWidening": "true"}})
    handle = table.begin()
    change = alter(table, handle, ChangeColumn("a", "BIGINT"))
    rows = table.stage(handle, "SELECT 5000000000L AS a, 'big' AS b", after=[change])
    table.publish(handle, change, rows)
    assert table.read(table.begin()) == [(1, "x"), (2, None), (5000000000, "big")]


@pytest.mark.depends("sqlglot")
@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (RenameColumn("a", "z"), DeltaAnalysisException, "delta.columnMapping.mode"),
        (DropColumns(["a"]), DeltaAnalysisException, "delta.columnMapping.mode"),
        (DropColumns(["no"], if_exists=True), None, ""),
        (AddColumns([Column("c", "SPARKLE")]), DeltaAnalysisException, "not a Spark SQL type"),
        (AddColumns([Column("a.x", "INT")]), DeltaAnalysisException, "not a struct"),
        (UnsetProperties(["x"], if_exists=False), DeltaAnalysisException, "DELTA_UNSET_NON_EXISTENT_PROPERTY"),
        (UpgradeProtocol(1, 1), ProtocolDowngradeException, "cannot be lowered"),
        (UpgradeProtocol(1, 2), None, ""),
        (SetProperties({"delta.enableRowTracking": "true"}), DeltaUnsupportedOperationException, "no row ids"),
        (SetProperties({"delta.constraints.c": "a > 1"}), DeltaIllegalArgumentException, "DELTA_ADD_CONSTRAINTS"),
        (AddConstraint("c", "count(a) > 1"), DeltaAnalysisException, "more than one row"),
        (AddConstraint("c", "a > "), DeltaAnalysisException, "is not valid Spark SQL"),
        (DropFeature("appendOnly"), ProtocolDowngradeException, "cannot be dropped"),
    ],
)
def test_what_is_refused_names_table_and_version(
    table: Table, original: Table, change: Change, error: type[Exception] | None, text: str
) -> None:
    table.copy_from(original)
    if error is None:
        assert run(table, change).version == 1
        return
    with pytest.raises(error, match=text) as refused:
        run(table, change)
    assert "version 0" in str(refused.value) or "_delta_log" not in str(refused.value)
    assert table.uri in str(refused.value)
    assert len(table.versions()) == 1


def test_features_that_readers_know_are_not_dropped(table: Table) -> None:
    table.write(ROWS, begin={"configuration": {"delta.enableDeletionVectors": "true"}})
    with pytest.raises(DeltaUnsupportedOperationException, match="DeltaDropFeatureOperator"):
        run(table, DropFeature("deletionVectors"))


@pytest.mark.parametrize("feature", ["variantType", "icebergCompatV2"])
def test_a_feature_that_nobody_used_is_dropped(table: Table, feature: str) -> None:
    """A reader feature leaves the protection of the checkpoints before, as in Delta; a writer feature leaves nothing."""
    begin = {"configuration": {f"delta.feature.{feature}": "supported", "delta.columnMapping.mode": "name"}}
    table.write(ROWS, begin=begin)
    assert feature in (table.log().snapshot.protocol.writer_features or [])
    run(table, DropFeature(feature))
    snapshot = table.log().snapshot
    left = {*(snapshot.protocol.reader_features or ()), *(snapshot.protocol.writer_features or ())}
    assert feature not in left
    protected = snapshot.metadata.configuration.get("delta.requireCheckpointProtectionBeforeVersion")
    assert (protected, "checkpointProtection" in left) == (("1", True) if feature == "variantType" else (None, False))
    table.write("SELECT 3 AS a, 'y' AS b")
    assert table.log().snapshot.version == 2


def test_row_tracking_where_every_file_has_row_ids(table: Table) -> None:
    table.write(ROWS, begin={"configuration": {"delta.feature.rowTracking": "supported"}})
    run(table, SetProperties({"delta.enableRowTracking": "true"}))
    configuration = table.log().update().metadata.configuration
    assert configuration["delta.rowTracking.materializedRowIdColumnName"].startswith("_row-id-col-")


def test_in_commit_timestamps_and_a_missing_table(table: Table) -> None:
    with pytest.raises(DeltaTableNotFoundException):
        run(table, SetProperties({"x": "1"}))
    table.write(ROWS)
    run(table, SetProperties({"delta.enableInCommitTimestamps": "true"}))
    assert table.log().update().metadata.configuration["delta.inCommitTimestampEnablementVersion"] == "1"


def test_rows_written_again_before_the_change_data_feed_is_on(table: Table, original: Table) -> None:
    table.copy_from(original)
    handle = table.begin()
    rows = table.stage(handle, "SELECT 1 AS a, 'new' AS b", mode="overwrite", replace_where="a = 1")
    feed = alter(table, handle, SetProperties({"delta.enableChangeDataFeed": "true"}), after=[rows])
    with pytest.raises(StageConflictException, match="change data feed"):
        table.publish(handle, rows, feed)
    with pytest.raises(DeltaAnalysisException, match="Rename it first"):
        alter(table, table.begin(), ChangeColumn("a", nullable=False), RenameColumn("a", "z"))


def test_column_mapping_switched_on_and_used_in_one_version(table: Table, original: Table) -> None:
    table.copy_from(original)
    handle = table.begin()
    mapping = SetProperties({"delta.columnMapping.mode": "name", "delta.dataSkippingStatsColumns": "b,c"})
    change = alter(
        table, handle, AddColumns([Column("c", "INT")]), mapping, RenameColumn("b", "new b"), AddColumns([Column("d", "INT")])
    )
    rows = table.stage(handle, "SELECT 3 AS a, 'z' AS `new b`, 4 AS c, 5 AS d", after=[change])
    table.publish(handle, change, rows)
    assert table.read(table.begin()) == [(1, "x", None, None), (2, None, None, None), (3, "z", 4, 5)]
    assert table.read(table.begin(), "d = 5") == [(3, "z", 4, 5)]
    (add,) = table.actions(1)["add"]
    assert {"b", "c"} <= set(json.loads(add["stats"])["minValues"])
    assert table.log().update().metadata.configuration["delta.dataSkippingStatsColumns"] == "new b,c"


def test_predicates_of_other_stages_mean_the_columns_that_they_were_planned_with(table: Table) -> None:
    table.write("SELECT 1 AS p, 2 AS q, 3 AS v UNION ALL SELECT 2, 1, 4", begin={"partition_by": ["p", "q"], **MAPPED})
    handle = table.begin()
    rows = table.stage(handle, "SELECT 1 AS p, 9 AS q, 5 AS v", mode="overwrite", replace_where="p = 1")
    gone = table.operate(handle, plan_delete, predicate="v = 5 AND q = 8", after=[rows], task_id="gone")
    swap = alter(table, handle, RenameColumn("p", "x"), RenameColumn("q", "p"), after=[rows, gone])
    again = table.stage(
        handle,
        "SELECT 2 AS x, 7 AS p, 6 AS v",
        mode="overwrite",
        replace_where="x = 2",
        after=[rows, gone, swap],
        task_id="again",
    )
    last = table.operate(handle, plan_delete, predicate="p = 9", after=[rows, gone, swap, again], task_id="last")
    table.publish(handle, last, again, swap, gone, rows)
    assert table.read(table.begin()) == [(2, 7, 6)]
    assert table.log().update().metadata.partition_columns == ["x", "p"]


def test_a_rule_that_is_taken_back_and_set_again_is_checked_again(table: Table) -> None:
    table.write("SELECT 5 AS a, 1 AS b")
    handle = table.begin()
    rules = alter(table, handle, AddConstraint("c", "a > 0"), ChangeColumn("b", nullable=False))
    with pytest.raises(ConstraintViolationException):
        alter(table, handle, DropConstraint("c"), AddConstraint("C", "a > 10"), after=[rules], task_id="again")
    free = alter(table, handle, ChangeColumn("B", nullable=True), after=[rules], task_id="free")
    rows = table.stage(handle, "SELECT 6 AS a, CAST(NULL AS INT) AS b", after=[rules, free])
    with pytest.raises(InvariantViolationException):
        alter(table, handle, ChangeColumn("b", nullable=False), after=[rules, free, rows], task_id="again")


def test_new_columns_bring_no_metadata_of_delta(table: Table) -> None:
    table.write(ROWS, begin=MAPPED)
    name = table.log().update().schema.select(["b"]).fields[0].physical_name
    run(table, DropColumns(["b"]))
    own = {"delta.columnMapping.id": 7, "delta.columnMapping.physicalName": name}
    nested = {"type": "struct", "fields": [{"name": "x", "type": "string", "nullable": True, "metadata": own}]}
    for column in (Column("c", "STRING", metadata=own), Column("c", nested)):
        with pytest.raises(DeltaAnalysisException, match="only Delta itself"):
            run(table, AddColumns([column]))
    with pytest.raises(DeltaAnalysisException, match="DELTA_NESTED_NOT_NULL"):
        run(table, AddColumns([Column("l", "ARRAY<STRUCT<x: INT>>")]), ChangeColumn("l.element.x", nullable=False))


def test_clustering_by_a_column_that_is_dropped_meanwhile(table: Table) -> None:
    table.write(ROWS, begin=MAPPED)
    run(table, ClusterBy(["a"]))
    handle, other = table.begin(), table.begin()
    drop, comment = alter(table, handle, DropColumns(["b"])), alter(table, other, ChangeColumn("b", comment="c"))
    run(table, ClusterBy(["b"]))
    with pytest.raises(MetadataChangedException, match="clustering columns"):
        table.publish(handle, drop)
    table.publish(other, comment)


def test_keywords_are_no_clustering_columns(table: Table) -> None:
    table.write(ROWS, begin=MAPPED)
    with pytest.raises(DeltaAnalysisException, match="CLUSTER BY AUTO is a service of Databricks"):
        run(table, ClusterBy(["auto"]))
    with pytest.raises(DeltaAnalysisException, match="For CLUSTER BY NONE, name no columns"):
        run(table, ClusterBy(["NONE"]))
    run(table, AddColumns([Column("auto", "INT"), Column("a-b", "INT")]), ClusterBy(["AUTO"]))
    run(table, ClusterBy(["`a-b`"]))
    parameters = table.actions(table.versions()[-1])["commitInfo"][0]["operationParameters"]
    assert parameters == {"oldClusteringColumns": "auto", "newClusteringColumns": "`a-b`"}


def test_stages_know_what_earlier_ones_have_widened(table: Table) -> None:
    table.write(ROWS, begin={"configuration": {"delta.enableTypeWidening": "true"}})
    handle = table.begin()
    wide = table.stage(handle, "SELECT 5000000000L AS a, 'w' AS b", merge_schema=True)
    change = alter(table, handle, AddColumns([Column("c", "INT")]), after=[wide])
    rows = table.stage(handle, "SELECT 6000000000L AS a, 3 AS c", after=[wide, change], task_id="rows")
    table.publish(handle, change, wide, rows)
    assert table.read(table.begin())[2:] == [(5000000000, "w", None), (6000000000, None, 3)]


def test_features_switched_on_between_stages(table: Table) -> None:
    table.write("SELECT id AS a, 'x' AS b FROM range(10)")
    handle = table.begin()
    rows = table.stage(handle, "SELECT 10L AS a, 'y' AS b, 1 AS c", merge_schema=True)
    on = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"}
    with pytest.raises(DeltaIllegalStateException, match="DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_OPERATION"):
        alter(table, handle, SetProperties(on), DropColumns(["b"]), after=[rows])
    on.pop("delta.enableChangeDataFeed")
    change = alter(table, handle, SetProperties(on), DropColumns(["b"]), after=[rows])
    gone = table.operate(handle, plan_delete, predicate="a IN (1, 10)", after=[rows, change], task_id="gone")
    table.publish(handle, rows, change, gone)
    assert table.read(table.begin()) == [(a, None) for a in (0, 2, 3, 4, 5, 6, 7, 8, 9)]
    assert [bool(add.get("deletionVector")) for add in table.actions(1)["add"]] in ([True], [True, False], [False, True])


NUMBERED = "id LONG GENERATED BY DEFAULT AS IDENTITY (START WITH 10 INCREMENT BY 5), a INT"


def numbered(table: Table, *ids: int) -> Table:
    table.publish(handle := table.begin(), plan_create(table.view(handle), schema=NUMBERED))
    rows = ", ".join(f"({number}L, 1)" for number in ids)
    table.write(f"SELECT * FROM VALUES {rows} AS t(id, a)")
    return table


def mark_of(table: Table) -> int | None:
    return identity_columns(table.log().update().schema)[0].high_water_mark


@pytest.mark.parametrize(("ids", "mark"), [((33, 4), 35), ((40,), 40), ((5, 9), None), ((10,), 10)])
def test_identity_values_go_on_behind_the_rows(table: Table, ids: tuple[int, ...], mark: int | None) -> None:
    """The statistics show it, so Spark does not run; rows with values before the start change nothing."""
    numbered(table, *ids)
    planned = plan_alter(table.view(handle := table.begin()), [{"change": "SyncIdentity", "column": "ID"}])
    assert isinstance(planned, StagedWrite)
    result = table.publish(handle, planned)
    assert mark_of(table) == mark
    info = table.info(result.version)
    assert (info["operation"], info["tags"]["delta.identity.schemaUpdate"]) == ("CHANGE COLUMN", "true")
    assert "delta.identity.highWaterMark" not in json.dumps(info["operationParameters"])


def test_an_append_during_a_sync_conflicts(table: Table) -> None:
    numbered(table, 33)
    staged = alter(table, handle := table.begin(), SyncIdentity("id"))
    table.write("SELECT 70L AS id, 1 AS a")
    with pytest.raises(ConcurrentAppendException):
        table.publish(handle, staged)
    run(table, SyncIdentity("id"))
    assert mark_of(table) == 70


def test_a_sync_is_alone(table: Table) -> None:
    numbered(table, 33)
    handle = table.begin()
    with pytest.raises(StageConflictException, match="syncing an identity column needs its own transaction"):
        table.publish(handle, alter(table, handle, SyncIdentity("id"), AddColumns([Column("x", "INT")])))
    handle = table.begin()
    first = table.stage(handle, "SELECT 90L AS id, 1 AS a")
    with pytest.raises(StageConflictException, match="syncing an identity column needs its own transaction"):
        table.publish(handle, first, alter(table, handle, SyncIdentity("id"), after=[first]))


def test_a_mark_that_was_edited_on_its_way(table: Table) -> None:
    """What statistics show counts, whatever XCom says."""
    numbered(table, 33)
    staged = alter(table, handle := table.begin(), SyncIdentity("id"))
    edited = {**staged.to_dict(), "changes": [{"change": "SyncIdentity", "column": "id", "value": 10}]}
    table.publish(handle, StagedWrite.from_dict(edited))
    assert mark_of(table) == 35
