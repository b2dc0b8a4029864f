"""``commitInfo`` of every operation, as Delta Spark writes it and as our constructors give it for the same input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.log.checkpoint.file_columns import to_add_files
from airflow_delta.transaction import CommitPolicy, Operation
from airflow_delta.transaction.commit.symlink_manifest import DIRECTORY, generate_manifests
from airflow_delta.transaction.operation_kinds import KINDS
from support.actions import column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPERATIONS = "org.apache.spark.sql.delta.DeltaOperations"
_EXPRESSION_ID = re.compile(r"#\d+L?")


def lines(table: Path, version: int) -> list[dict[str, Any]]:
    text = (table / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def latest(table: Path) -> int:
    return max(int(path.stem) for path in (table / "_delta_log").glob("*.json"))


MERGE = """MERGE INTO {t} t USING (SELECT 13L id, 'c' part, 100 v) s ON t.id = s.id
WHEN MATCHED AND s.v > 3 THEN UPDATE SET * WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *
WHEN NOT MATCHED BY SOURCE AND t.v < 0 THEN DELETE"""

# One after the other on one table. Where one statement makes several commits, the last is compared.
STATEMENTS: list[tuple[str, Operation]] = [
    (
        "CREATE TABLE {t} (id LONG, part STRING, v INT) USING delta PARTITIONED BY (part) COMMENT 'c' "
        "TBLPROPERTIES ('delta.checkpointInterval'='50')",
        Operation.create_table(["part"], description="c", properties={"delta.checkpointInterval": "50"}),
    ),
    ("INSERT INTO {t} VALUES (1, 'a', 1), (2, 'b', 2), (3, 'b', 3), (13, 'c', 1)", Operation.write()),
    (
        "INSERT OVERWRITE {t} VALUES (1, 'a', 1), (2, 'b', 2), (3, 'b', 3), (13, 'c', 9), (14, 'c', 3)",
        Operation.write("overwrite"),
    ),
    (
        "INSERT INTO {t} REPLACE WHERE part = 'a' SELECT 5L id, 'a' part, 9 v",
        Operation.write("overwrite", predicate="(part = 'a')"),
    ),
    ("DELETE FROM {t} WHERE v = 2", Operation.delete(["(v = 2)"])),
    ("UPDATE {t} SET v = 5 WHERE id = 3", Operation.update("(id = 3)")),
    ("UPDATE {t} SET v = v + 1", Operation.update()),
    (
        MERGE,
        Operation.merge(
            "(id = id)",
            matched=[{"predicate": "(v > 3)", "actionType": "update"}, {"actionType": "delete"}],
            not_matched=[{"actionType": "insert"}],
            not_matched_by_source=[{"predicate": "(v < 0)", "actionType": "delete"}],
        ),
    ),
    ("INSERT INTO {t} VALUES (1, 'a', 1)", Operation.write()),
    ("OPTIMIZE {t} WHERE part = 'a'", Operation.optimize(["('part = a)"])),
    ("INSERT INTO {t} VALUES (1, 'a', 1)", Operation.write()),
    ("OPTIMIZE {t} ZORDER BY (id)", Operation.optimize(z_order_by=["id"])),
    ("ALTER TABLE {t} SET TBLPROPERTIES ('x'='y')", Operation.set_table_properties({"x": "y"})),
    ("ALTER TABLE {t} UNSET TBLPROPERTIES IF EXISTS ('x')", Operation.unset_table_properties(["x"], if_exists=True)),
    (
        "ALTER TABLE {t} ADD COLUMNS (n STRUCT<a: INT> COMMENT 'cc' AFTER id, o STRING)",
        Operation.add_columns(
            [
                {"column": column("n", "struct", comment="cc"), "position": "AFTER id"},
                {"column": column("o", "string")},
            ]
        ),
    ),
    ("ALTER TABLE {t} ALTER COLUMN v COMMENT 'h'", Operation.change_column(column("v", "integer", comment="h"))),
    ("ALTER TABLE {t} ALTER COLUMN o AFTER id", Operation.change_column(column("o", "string"), "AFTER id")),
    (
        "ALTER TABLE {t} ALTER COLUMN v COMMENT '1', o COMMENT '2'",
        Operation.change_columns([column("o", "string", comment="2"), column("v", "integer", comment="1")]),
    ),
    ("ALTER TABLE {t} ADD CONSTRAINT pos CHECK (v > -10)", Operation.add_constraint("pos", "v > - 10")),
    ("ALTER TABLE {t} DROP CONSTRAINT pos", Operation.drop_constraint("pos", "v > - 10")),
    ("ALTER TABLE {t} DROP CONSTRAINT IF EXISTS nope", Operation.drop_constraint("nope")),
    (
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode'='name')",
        Operation.set_table_properties({"delta.columnMapping.mode": "name"}),
    ),
    ("ALTER TABLE {t} RENAME COLUMN o TO o2", Operation.rename_column("o", "o2")),
    ("ALTER TABLE {t} DROP COLUMNS (o2)", Operation.drop_columns(["o2"])),
    (
        "ALTER TABLE {t} REPLACE COLUMNS (id LONG, n STRUCT<a: INT>, v INT, part STRING, z STRING)",
        Operation.replace_columns(
            [column("id", "long"), column("n", "struct"), column("v", "integer"), column("part", "string"), column("z", "string")]
        ),
    ),
    (
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors'='true')",
        Operation.set_table_properties({"delta.enableDeletionVectors": "true"}),
    ),
    ("DELETE FROM {t} WHERE id = 13", Operation.delete(["(id = 13)"])),
    ("REORG TABLE {t} APPLY (PURGE)", Operation.reorg()),
    ("RESTORE TABLE {t} TO VERSION AS OF 5", Operation.restore(5)),
    ("VACUUM {t}", Operation.vacuum_end("COMPLETED")),
    ("TRUNCATE TABLE {t}", Operation.truncate()),
]

REPLACEMENTS: list[tuple[str, Operation]] = [
    ("CREATE OR REPLACE TABLE {t} (id INT) USING delta", Operation.replace_table(or_create=True)),
    (
        "REPLACE TABLE {t} (id INT) USING delta COMMENT 'x'",
        Operation.replace_table(description="x"),
    ),
    ("REPLACE TABLE {t} USING delta AS SELECT 1 id", Operation.replace_table(as_select=True)),
    ("CREATE OR REPLACE TABLE {t} USING delta AS SELECT 1 id, 2 y", Operation.replace_table(or_create=True, as_select=True)),
]


def check(info: dict[str, Any], operation: Operation, what: str) -> None:
    """Compare operation, parameters with their JSON types, and that our list of metrics lets all of Delta's through."""
    assert info["operation"] == operation.name, what
    theirs = {
        key: _EXPRESSION_ID.sub("", value) if isinstance(value, str) else value
        for key, value in info["operationParameters"].items()
    }
    ours = operation.encoded_parameters()
    assert theirs == ours, what
    assert {key: type(value) for key, value in theirs.items()} == {key: type(value) for key, value in ours.items()}, what
    assert operation.with_metrics(info["operationMetrics"]).encoded_metrics() == info["operationMetrics"], what


def test_statements(delta: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    seen = set()
    for statement, operation in STATEMENTS:
        delta.sql(statement.format(t=f"delta.`{table}`")).collect()
        check(lines(table, latest(table))[0]["commitInfo"], operation, statement)
        seen.add(operation.name)
    start = next(
        info
        for version in range(latest(table) + 1)
        if (info := lines(table, version)[0]["commitInfo"])["operation"] == "VACUUM START"
    )
    retention = 7 * 24 * 3600 * 1000
    check(start, Operation.vacuum_start(retention_check_enabled=False, default_retention_millis=retention), "VACUUM START")
    assert len(seen) == 20


def test_statements_on_other_tables(delta: SparkSession, tmp_path: Path) -> None:
    def run(name: str, statement: str, operation: Operation) -> None:
        delta.sql(statement.format(t=f"delta.`{tmp_path / name}`")).collect()
        check(lines(tmp_path / name, latest(tmp_path / name))[0]["commitInfo"], operation, statement)

    run(
        "ctas",
        "CREATE TABLE {t} USING delta PARTITIONED BY (id) AS SELECT 1L id, 2 v",
        Operation.create_table(["id"], as_select=True),
    )
    source = tmp_path / "ctas"
    run("clone", f"CREATE TABLE {{t}} SHALLOW CLONE delta.`{source}`", Operation.clone(f"delta.`file:{source}`", 0))
    delta.range(3).selectExpr("id", "id % 2 p").write.partitionBy("p").parquet(str(tmp_path / "convert"))
    files = len(list((tmp_path / "convert").rglob("*.parquet")))
    delta.sql(f"CONVERT TO DELTA parquet.`{tmp_path / 'convert'}` NO STATISTICS PARTITIONED BY (p LONG)").collect()
    check(
        lines(tmp_path / "convert", 0)[0]["commitInfo"],
        Operation.convert(files, ["p"], collect_stats=False, source_format="parquet"),
        "CONVERT",
    )
    for statement, operation in REPLACEMENTS:
        run("replaced", statement, operation)
    query = (
        delta.readStream.format("delta")
        .load(str(source))
        .writeStream.format("delta")
        .option("checkpointLocation", str(tmp_path / "checkpoints"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "stream"))
    )
    query.awaitTermination()
    info = lines(tmp_path / "stream", 0)[0]["commitInfo"]
    check(info, Operation.streaming_update("Append", info["operationParameters"]["queryId"], 0), "STREAMING UPDATE")


def test_clustering(delta: SparkSession) -> None:
    delta.sql("DROP TABLE IF EXISTS clustered")
    delta.sql("CREATE TABLE clustered (id INT, g INT) USING delta CLUSTER BY (id)")
    location = delta.sql("DESCRIBE DETAIL clustered").first()["location"].removeprefix("file:")
    table = Path(location)
    check(lines(table, 0)[0]["commitInfo"], Operation.create_table(cluster_by=["id"], is_managed=True), "CREATE ... CLUSTER BY")
    delta.sql("ALTER TABLE clustered CLUSTER BY (g)")
    check(lines(table, 1)[0]["commitInfo"], Operation.cluster_by(["id"], ["g"]), "CLUSTER BY")
    delta.sql("INSERT INTO clustered VALUES (1, 2)")
    delta.sql("INSERT INTO clustered VALUES (1, 2)")
    delta.sql("OPTIMIZE clustered")
    check(lines(table, latest(table))[0]["commitInfo"], Operation.optimize(cluster_by=["g"]), "OPTIMIZE clustered")
    delta.sql("DROP TABLE clustered")


def test_save_as_table(delta: SparkSession) -> None:
    delta.sql("DROP TABLE IF EXISTS saved")
    for options in ({}, {"overwriteSchema": "true"}):
        delta.range(3).write.format("delta").mode("overwrite").options(**options).saveAsTable("saved")
        location = delta.sql("DESCRIBE DETAIL saved").first()["location"].removeprefix("file:")
        operation = Operation.replace_table(
            or_create=True,
            as_select=True,
            is_managed=True,
            can_overwrite_schema=True if options else None,
            is_v1_save_as_table=True,
        )
        check(lines(Path(location), latest(Path(location)))[0]["commitInfo"], operation, str(options))
    delta.sql("DROP TABLE saved")


# -- what only the engine sees -------------------------------------------------------------------------------------------------


class Operations:
    """Delta's own operations, made without a statement."""

    def __init__(self, delta: SparkSession) -> None:
        self._jvm = delta.sparkContext._jvm
        self.none = self._jvm.scala.Option.empty()
        self.nil = self._jvm.org.apache.spark.api.python.PythonUtils.toSeq([])
        self.empty = self._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})
        self.modes = self._jvm.org.apache.spark.sql.SaveMode

    def some(self, value: Any) -> Any:
        return self._jvm.scala.Option.apply(value)

    def new(self, name: str, *arguments: Any) -> Any:
        return getattr(self._jvm, f"{_OPERATIONS}${name}")(*arguments)

    def object(self, name: str) -> Any:
        return getattr(getattr(self._jvm, f"{_OPERATIONS}${name}$"), "MODULE$")

    def metrics(self, operation: Any) -> set[str]:
        return set(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(operation.operationMetrics()))

    def parameters(self, operation: Any) -> dict[str, Any]:
        encoded = self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(operation.jsonEncodedValues())
        return {key: json.loads(value) for key, value in dict(encoded).items()}

    def all(self) -> list[tuple[Any, Operation]]:
        nil, none, new = self.nil, self.none, self.new
        overwrite = [
            (self.modes.Overwrite, none, none, none, none, self.some(True), none, none, none),
            (self.modes.Overwrite, self.some(nil), self.some("x"), none, none, none, none, none, none),
            (self.modes.Append, self.some(nil), none, none, none, none, none, none, none),
        ]
        written = [
            Operation("WRITE", {"mode": "Overwrite", "canOverwriteSchema": True}, can_change_partition_columns=True),
            Operation.write("overwrite", predicate="x"),
            Operation.write(),
        ]
        return [
            *zip([new("Write", *arguments) for arguments in overwrite], written, strict=True),
            (new("Delete", nil), Operation.delete()),
            (new("Truncate"), Operation.truncate()),
            (new("Update", none), Operation.update()),
            (new("Merge", none, none, none, none, nil, nil, nil), Operation.merge(None)),
            (new("Optimize", nil, nil, True, none, False), Operation.optimize(auto=True)),
            (new("Reorg", nil, True), Operation.reorg()),
            (new("ComputeStats", nil), Operation.compute_stats()),
            (new("Restore", none, self.some("t")), Operation.restore(timestamp="t")),
            (new("Clone", "s", 3), Operation.clone("s", 3)),
            (new("Convert", 3, nil, True, none, none), Operation.convert(3)),
            (
                new("VacuumStart", True, none, 5),
                Operation.vacuum_start(retention_check_enabled=True, default_retention_millis=5),
            ),
            (new("VacuumEnd", "FAILED"), Operation.vacuum_end("FAILED")),
            (new("SetTableProperties", self.empty), Operation.set_table_properties({})),
            (new("UnsetTableProperties", nil, False), Operation.unset_table_properties([])),
            (new("AddColumns", nil), Operation.add_columns([])),
            (new("DropColumns", nil), Operation.drop_columns([])),
            (new("RenameColumn", nil, nil), Operation.rename_column("", "")),
            (new("ChangeColumns", nil), Operation.change_columns([])),
            (new("ReplaceColumns", nil), Operation.replace_columns([])),
            (new("UpdateColumnMetadata", "X", nil), Operation("X", {"columns": []})),
            (new("AddConstraint", "n", "e"), Operation.add_constraint("n", "e")),
            (new("DropConstraint", "n", none), Operation.drop_constraint("n")),
            (new("ClusterBy", "a", "b,c"), Operation.cluster_by(["a"], ["b", "c"])),
            (new("DropTableFeature", "f", True), Operation.drop_feature("f", truncate_history=True)),
            (new("RemoveColumnMapping", none), Operation("REMOVE COLUMN MAPPING")),
            (new("UpgradeUniformProperties", self.empty), Operation("REORG TABLE UPGRADE UNIFORM", {"properties": {}})),
            (new("RowTrackingBackfill", 1), Operation("ROW TRACKING BACKFILL", {"batchId": "1"})),
            (new("RowTrackingUnBackfill", 1), Operation("ROW TRACKING UNBACKFILL", {"batchId": "1"})),
            (new("DomainMetadataCleanup", 2), Operation("DOMAIN METADATA CLEANUP", {"domainMetadataRemovedCount": 2})),
            (new("OptimizeCheckpoint", True, "x"), Operation("OPTIMIZE CHECKPOINT", {"incremental": True, "triggerName": "x"})),
            (self.object("AddDeletionVectorsTombstones"), Operation("Deletion Vector Tombstones")),
            (self.object("EmptyCommit"), Operation("Empty Commit")),
            (self.object("ManualUpdate"), Operation.manual_update()),
        ]


def test_flags_metrics_and_parameters(delta: SparkSession) -> None:
    operations = Operations(delta)
    pairs = operations.all()
    for theirs, ours in pairs:
        name = theirs.name()
        assert ours.name == name
        assert ours.changes_data == theirs.changesData(), name
        assert ours.may_change_partition_columns == theirs.canChangePartitionColumns(), name
        assert ours.checks_loose_bounds == theirs.checkAddFileWithDeletionVectorStatsAreNotTightBounds(), name
        in_place = theirs.isInPlaceFileMetadataUpdate()
        assert ours.updates_in_place == (in_place.isDefined() and in_place.get()), name
        assert (ours.metric_names or frozenset()) == operations.metrics(theirs), name
        assert ours.encoded_parameters() == operations.parameters(theirs), name
    missing = KINDS.keys() - {ours.name for _theirs, ours in pairs}
    assert missing == {
        "STREAMING UPDATE",
        "CREATE TABLE",
        "CREATE TABLE AS SELECT",
        "REPLACE TABLE",
        "REPLACE TABLE AS SELECT",
        "CREATE OR REPLACE TABLE",
        "CREATE OR REPLACE TABLE AS SELECT",
        "CHANGE COLUMN",
        "UPDATE SCHEMA",
        "UPGRADE PROTOCOL",
    }, "these are compared by what a statement writes, or take what is hard to make by hand"


# -- hooks ---------------------------------------------------------------------------------------------------------------------


def manifests(table: Path) -> dict[str, list[str]]:
    root = table / DIRECTORY
    return {
        str(path.relative_to(root)): sorted(path.read_text().splitlines()) for path in root.rglob("*") if path.name == "manifest"
    }


@pytest.mark.parametrize("partitioned", [True, False])
def test_symlink_manifests_are_those_of_delta(delta: SparkSession, tmp_path: Path, partitioned: bool) -> None:
    table = tmp_path / "a b"
    name = f"delta.`{table}`"
    partitioning = "PARTITIONED BY (part, day)" if partitioned else ""
    delta.sql(f"CREATE TABLE {name} (id LONG, part STRING, day DATE) USING delta {partitioning}")
    delta.sql(
        f"INSERT INTO {name} VALUES (1, 'a b', date'2020-01-01'), (2, 'b/c:%', date'2020-01-02'), (3, null, null), "
        "(4, 'ü=', date'2020-01-01'), (5, 'x', date'2020-01-01')"
    )
    log = DeltaLog.for_table(str(table))
    generate_manifests(log)
    ours = manifests(table)
    delta.sql(f"GENERATE symlink_format_manifest FOR TABLE {name}")
    assert manifests(table) == ours
    assert len(ours) == (5 if partitioned else 1)
    delta.sql(f"DELETE FROM {name} WHERE part = 'x'")
    delta.sql(f"GENERATE symlink_format_manifest FOR TABLE {name}")
    theirs = manifests(table)
    generate_manifests(log)
    assert manifests(table) == theirs


def test_the_manifest_hook_goes_on_where_delta_left_off(delta: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    name = f"delta.`{table}`"
    delta.sql(
        f"CREATE TABLE {name} (id LONG, part STRING) USING delta PARTITIONED BY (part) "
        "TBLPROPERTIES ('delta.compatibility.symlinkFormatManifest.enabled'='true')"
    )
    delta.sql(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b c')")
    log = DeltaLog.for_table(str(table))
    transaction = log.start_transaction()
    files = transaction.filter_files("part = 'a'")
    removes = [file.remove(1) for file in to_add_files(files)]
    transaction.commit(removes, Operation.delete(["(part = a)"]))
    ours = manifests(table)
    assert set(ours) == {"part=b c/manifest"}
    delta.sql(f"INSERT INTO {name} VALUES (3, 'd')")
    delta.sql(f"GENERATE symlink_format_manifest FOR TABLE {name}")
    theirs = manifests(table)
    assert set(theirs) == {"part=b c/manifest", "part=d/manifest"}
    generate_manifests(log)
    assert manifests(table) == theirs


def test_auto_compaction_is_asked_for_where_delta_compacts(delta: SparkSession, tmp_path: Path) -> None:
    """Both look at one history: Delta compacts after the commits after which we would have asked."""
    table = tmp_path / "table"
    name = f"delta.`{table}`"
    delta.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "3")
    try:
        delta.sql(
            f"CREATE TABLE {name} (id INT, p INT) USING delta PARTITIONED BY (p) "
            "TBLPROPERTIES ('delta.autoOptimize.autoCompact'='true')"
        )
        for statement in (
            "INSERT INTO {t} VALUES (1, 1)",
            "INSERT INTO {t} VALUES (2, 1)",
            "INSERT INTO {t} VALUES (3, 2)",
            "INSERT INTO {t} VALUES (4, 1)",
            "INSERT INTO {t} VALUES (5, 2)",
            "INSERT INTO {t} VALUES (6, 2)",
        ):
            delta.sql(statement.format(t=name))
    finally:
        delta.conf.unset("spark.databricks.delta.autoCompact.minNumFiles")
    asked: list[int] = []
    replay = DeltaLog.for_table(str(tmp_path / "replay"))
    first = replay.start_transaction()
    first.update_metadata_for_new_table(DeltaLog.for_table(str(table)).snapshot_at(0).metadata)
    first.commit([], Operation.create_table(["p"]))
    compacted = []
    for version in range(1, latest(table) + 1):
        content = lines(table, version)
        info = content[0]["commitInfo"]
        if info["operation"] == "OPTIMIZE":
            assert info["operationParameters"]["auto"] is True
            compacted.append(version - 1)
        adds = [line["add"] for line in content if "add" in line]
        removes = [line["remove"] for line in content if "remove" in line]
        actions = [*(msgspec.convert(a, AddFile) for a in adds), *(msgspec.convert(r, RemoveFile) for r in removes)]
        transaction = replay.start_transaction(policy=CommitPolicy(auto_compact_min_files=3))
        operation = Operation.optimize(auto=True) if info["operation"] == "OPTIMIZE" else Operation.write()
        transaction.commit(actions, operation)
        if transaction.outcome is not None and transaction.outcome.auto_compaction is not None:
            asked.append(version)
    assert asked == compacted
    assert len(compacted) == 2


# -- lines of a commit ---------------------------------------------------------------------------------------------------------


def kinds(table: Path, version: int) -> list[str]:
    return [next(iter(line)) for line in lines(table, version)]


def test_order_of_lines(delta: SparkSession, tmp_path: Path) -> None:
    """Of a CREATE TABLE, of a change that upgrades the protocol, and of a commitLarge."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    name = f"delta.`{theirs}`"
    delta.sql(f"CREATE TABLE {name} (id LONG) USING delta")
    delta.sql(f"INSERT INTO {name} VALUES (1)")
    delta.sql(f"ALTER TABLE {name} ADD CONSTRAINT pos CHECK (id > 0)")
    delta.sql(f"RESTORE TABLE {name} TO VERSION AS OF 0")
    source = DeltaLog.for_table(str(theirs))
    log = DeltaLog.for_table(str(ours))
    transaction = log.start_transaction()
    transaction.update_metadata_for_new_table(source.snapshot_at(0).metadata)
    transaction.commit([], Operation.create_table())
    assert kinds(ours, 0) == kinds(theirs, 0)
    files = [msgspec.structs.replace(f, data_change=True) for f in source.snapshot_at(1).add_files()]
    log.start_transaction().commit(files, Operation.write())
    assert kinds(ours, 1) == kinds(theirs, 1)
    transaction = log.start_transaction()
    transaction.filter_files()  # as the command does, to look for rows that break the constraint
    transaction.commit([source.snapshot_at(2).metadata], Operation.add_constraint("pos", "id > 0"))
    assert kinds(ours, 2) == kinds(theirs, 2)
    transaction = log.start_transaction()
    transaction.update_metadata(source.snapshot_at(0).metadata)
    transaction.commit_large([transaction.protocol, *(file.remove(1) for file in files)], Operation.restore(0))
    assert kinds(ours, 3) == kinds(theirs, 3)
    for version in range(4):
        mine, other = lines(ours, version)[0]["commitInfo"], lines(theirs, version)[0]["commitInfo"]
        assert mine.keys() - {"dataChange"} == other.keys(), version
        for key in ("readVersion", "isolationLevel", "isBlindAppend"):
            assert mine.get(key) == other.get(key), (version, key)
