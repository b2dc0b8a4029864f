"""ALTER TABLE by Delta Spark and by us, on copies of one table: the same metadata, protocol and commitInfo after each."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    ReplaceColumns,
    SetProperties,
    UnsetProperties,
    UpgradeProtocol,
)
from airflow_delta.contract.files import new_attempt
from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.exceptions import DeltaError
from airflow_delta.spark.job import run_operation
from airflow_delta.table.run import run_transaction
from airflow_delta.table.stage.plan_table import plan_alter
from airflow_delta.table.stage.stage_view import open_stage
from delta_spark.support import delta_rows, jvm, open_log, plain_protocol
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UUID = re.compile(r"(col|_row-id-col|_row-commit-version-col)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MAPPED = {"delta.columnMapping.mode": "name"}


@dataclass(frozen=True)
class Step:
    """A statement of Delta Spark and the changes that say the same.

    :param error: Delta's error class or message, where it refuses.
    :param ours: what our error says, where that is not Delta's error class.
    """

    sql: str
    changes: Sequence[Change]
    error: str | None = None
    ours: str | None = None


@dataclass(frozen=True)
class Case:
    name: str
    ddl: str
    steps: Sequence[Step]
    properties: dict[str, str] = field(default_factory=dict)
    values: str | None = None
    clause: str = ""


def s(sql: str, *changes: Change, error: str | None = None, ours: str | None = None) -> Step:
    return Step(sql, changes, error, ours)


NESTED = "a INT, s STRUCT<x: INT, l: ARRAY<STRUCT<y: INT>>>, m MAP<STRING, STRUCT<k:INT>>, d DATE COMMENT 'old'"
CASES = [
    Case(
        "columns",
        NESTED,
        [
            s(
                "ADD COLUMNS (b STRING COMMENT 'hi' AFTER a, c DECIMAL(5,2) FIRST, s.z DOUBLE FIRST, s.l.element.q INT AFTER y, "
                "m.value.w INT, `e` STRUCT<i: INT>, vc VARCHAR(5))",
                AddColumns(
                    [
                        Column("b", "STRING", "hi", "AFTER a"),
                        Column("c", "DECIMAL(5,2)", position="FIRST"),
                        Column("s.z", "DOUBLE", position="FIRST"),
                        Column("s.l.element.q", "INT", position="AFTER y"),
                        Column("m.value.w", "INT"),
                        Column("e", "STRUCT<i: INT>"),
                        Column("vc", "VARCHAR(5)"),
                    ]
                ),
            ),
            s("ADD COLUMN n INT NOT NULL", AddColumns([Column("n", "INT", nullable=False)]), error="DELTA_OPERATION_NOT_ALLOWED"),
            s("ADD COLUMN A INT", AddColumns([Column("A", "INT")]), error="FIELD_ALREADY_EXISTS"),
            s("ADD COLUMN z.x INT", AddColumns([Column("z.x", "INT")]), error="UNRESOLVED_COLUMN", ours="no column z"),
            s("ADD COLUMN q INT AFTER no", AddColumns([Column("q", "INT", position="AFTER no")]), error="FIELD_NOT_FOUND"),
            s("ALTER COLUMN a COMMENT 'aa'", ChangeColumn("a", comment="aa")),
            s("ALTER COLUMN a AFTER d", ChangeColumn("a", position="AFTER d")),
            s("ALTER COLUMN s.x AFTER l", ChangeColumn("s.x", position="AFTER l")),
            s("ALTER COLUMN s.l.element.y COMMENT 'deep'", ChangeColumn("s.l.element.y", comment="deep")),
            s("ALTER COLUMN a TYPE BIGINT", ChangeColumn("a", "BIGINT"), error="DELTA_UNSUPPORTED_ALTER_TABLE_CHANGE_COL_OP"),
            s(
                "ALTER COLUMN a COMMENT 'x', s.x FIRST",
                ChangeColumn("a", comment="x"),
                ChangeColumn("s.x", position="FIRST"),
            ),
            s("RENAME COLUMN a TO b2", RenameColumn("a", "b2"), error="DELTA_UNSUPPORTED_RENAME_COLUMN"),
            s("DROP COLUMN a", DropColumns(["a"]), error="DELTA_UNSUPPORTED_DROP_COLUMN"),
            s(
                "REPLACE COLUMNS (a INT, z STRING)",
                ReplaceColumns([Column("a", "INT"), Column("z", "STRING")]),
                error="DELTA_AMBIGUOUS_DATA_TYPE_CHANGE",
            ),
            s(
                "REPLACE COLUMNS (z STRING, c DECIMAL(5,2), a INT COMMENT 'r', b STRING, "
                "s STRUCT<x: INT, l: ARRAY<STRUCT<y: INT, q: INT>>, z: DOUBLE>, "
                "m MAP<STRING, STRUCT<k: INT, w: INT>>, d DATE, e STRUCT<i: INT>, vc STRING)",
                ReplaceColumns(
                    [
                        Column("z", "STRING"),
                        Column("c", "DECIMAL(5,2)"),
                        Column("a", "INT", "r"),
                        Column("b", "STRING"),
                        Column("s", "STRUCT<x: INT, l: ARRAY<STRUCT<y: INT, q: INT>>, z: DOUBLE>"),
                        Column("m", "MAP<STRING, STRUCT<k: INT, w: INT>>"),
                        Column("d", "DATE"),
                        Column("e", "STRUCT<i: INT>"),
                        Column("vc", "STRING"),
                    ]
                ),
            ),
            s("REPLACE COLUMNS (a INT)", ReplaceColumns([Column("a", "INT")]), error="DELTA_UNSUPPORTED_ALTER_TABLE_REPLACE"),
        ],
        values="(1, struct(1, array(struct(1))), map('a', struct(1)), date'2024-01-01')",
    ),
    Case(
        "mapped columns",
        "a INT NOT NULL, b INT, g INT, p INT",
        [
            s("ALTER COLUMN a DROP NOT NULL", ChangeColumn("a", nullable=True)),
            s("ALTER COLUMN b SET DEFAULT 7", ChangeColumn("b", default="7")),
            s("ALTER COLUMN b DROP DEFAULT", ChangeColumn("b", drop_default=True)),
            s("ALTER COLUMN b TYPE BIGINT", ChangeColumn("b", "BIGINT")),
            s("ALTER COLUMN b TYPE STRING", ChangeColumn("b", "STRING"), error="DELTA_UNSUPPORTED_ALTER_TABLE_CHANGE_COL_OP"),
            s("ADD COLUMNS (n STRUCT<x: INT, y: ARRAY<INT>>)", AddColumns([Column("n", "STRUCT<x: INT, y: ARRAY<INT>>")])),
            s("ALTER COLUMN n.x TYPE BIGINT", ChangeColumn("n.x", "BIGINT")),
            s("ALTER COLUMN n.y.element TYPE BIGINT", ChangeColumn("n.y.element", "BIGINT")),
            s("RENAME COLUMN b TO bb", RenameColumn("b", "bb")),
            s("RENAME COLUMN n.x TO xx", RenameColumn("n.x", "xx")),
            s("RENAME COLUMN bb TO a", RenameColumn("bb", "a"), error="FIELD_ALREADY_EXISTS", ours="DELTA_DUPLICATE_COLUMNS"),
            s("DROP COLUMNS (bb, n.xx)", DropColumns(["bb", "n.xx"])),
            s("DROP COLUMN nope", DropColumns(["nope"]), error="UNRESOLVED_COLUMN", ours="no column nope"),
            s("DROP COLUMN n.y", DropColumns(["n.y"]), error="DELTA_DROP_COLUMN_ON_SINGLE_FIELD_SCHEMA", ours="only one"),
            s("DROP COLUMN p", DropColumns(["p"]), error="DELTA_UNSUPPORTED_DROP_PARTITION_COLUMN"),
            s("ALTER COLUMN p TYPE BIGINT", ChangeColumn("p", "BIGINT")),
            s("RENAME COLUMN p TO pp", RenameColumn("p", "pp")),
            s("ALTER COLUMN pp COMMENT 'part'", ChangeColumn("pp", comment="part")),
            s(
                "REPLACE COLUMNS (pp BIGINT, g BIGINT, h INT, n STRUCT<y: ARRAY<BIGINT>>, a INT)",
                ReplaceColumns(
                    [
                        Column("pp", "BIGINT"),
                        Column("g", "BIGINT"),
                        Column("h", "INT"),
                        Column("n", "STRUCT<y: ARRAY<BIGINT>>"),
                        Column("a", "INT"),
                    ]
                ),
            ),
        ],
        {"delta.feature.allowColumnDefaults": "supported", "delta.enableTypeWidening": "true", **MAPPED},
        "(1,1,1,1)",
        "PARTITIONED BY (p)",
    ),
    Case(
        "properties and constraints",
        "a INT, b INT, g INT",
        [
            s("SET TBLPROPERTIES ('Foo'='1','delta.appendonly'='true')", SetProperties({"Foo": "1", "delta.appendonly": "true"})),
            s("UNSET TBLPROPERTIES ('Foo','nope')", UnsetProperties(["Foo", "nope"])),
            s("UNSET TBLPROPERTIES ('delta.appendonly')", UnsetProperties(["delta.appendonly"])),
            s("SET TBLPROPERTIES ('comment'='c')", SetProperties({"comment": "c"})),
            s("UNSET TBLPROPERTIES ('comment')", UnsetProperties(["comment"])),
            s("SET TBLPROPERTIES ('delta.foo'='c')", SetProperties({"delta.foo": "c"}), error="DELTA_UNKNOWN_CONFIGURATION"),
            s("ADD CONSTRAINT C1 CHECK (a > 0)", AddConstraint("C1", "a > 0")),
            s("ADD CONSTRAINT c1 CHECK (a > 1)", AddConstraint("c1", "a > 1"), error="DELTA_CONSTRAINT_ALREADY_EXISTS"),
            s("ADD CONSTRAINT c2 CHECK (a > 1)", AddConstraint("c2", "a > 1"), error="DELTA_NEW_CHECK_CONSTRAINT_VIOLATION"),
            s("ADD CONSTRAINT c3 CHECK (b > 0)", AddConstraint("c3", "b > 0"), error="DELTA_NEW_CHECK_CONSTRAINT_VIOLATION"),
            s("ADD CONSTRAINT c4 CHECK (nope > 0)", AddConstraint("c4", "nope > 0"), error="UNRESOLVED_COLUMN"),
            s("ADD CONSTRAINT c5 CHECK (a)", AddConstraint("c5", "a"), error="DELTA_NON_BOOLEAN_CHECK_CONSTRAINT"),
            s("DROP CONSTRAINT no", DropConstraint("no"), error="DELTA_CONSTRAINT_DOES_NOT_EXIST"),
            s("DROP CONSTRAINT IF EXISTS no", DropConstraint("no", if_exists=True)),
            s("DROP CONSTRAINT c1", DropConstraint("c1")),
            s("DROP FEATURE checkConstraints", DropFeature("checkConstraints")),
            s("SET TBLPROPERTIES ('delta.columnMapping.mode'='name')", SetProperties(MAPPED)),
            s("ADD COLUMN z INT", AddColumns([Column("z", "INT")])),
            s(
                "SET TBLPROPERTIES ('delta.enableDeletionVectors'='true','delta.enableChangeDataFeed'='true')",
                SetProperties({"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}),
            ),
            s("CLUSTER BY (a, g)", ClusterBy(["a", "g"])),
            s("CLUSTER BY (a, a)", ClusterBy(["a", "a"]), error="DELTA_DUPLICATE_COLUMNS_FOUND.CLUSTER_BY"),
            s("CLUSTER BY (nope)", ClusterBy(["nope"]), error="DELTA_COLUMN_NOT_FOUND_IN_SCHEMA"),
            s("DROP COLUMN a", DropColumns(["a"]), error="DELTA_UNSUPPORTED_DROP_CLUSTERING_COLUMN"),
            s("RENAME COLUMN g TO gg", RenameColumn("g", "gg")),
            s("CLUSTER BY (b)", ClusterBy(["b"])),
            s("CLUSTER BY NONE", ClusterBy()),
        ],
        {},
        "(1, NULL, 1), (2, 3, 4)",
    ),
    Case(
        "features that writers know",
        "a INT",
        [
            s("DROP FEATURE domainMetadata", DropFeature("domainMetadata")),
            s("DROP FEATURE inCommitTimestamp", DropFeature("inCommitTimestamp")),
            s(
                "DROP FEATURE nope",
                DropFeature("nope"),
                error="Py4JJavaError|An error occurred",
                ours="DELTA_FEATURE_DROP_FEATURE_NOT_PRESENT",
            ),
            s(
                "DROP FEATURE appendOnly",
                DropFeature("appendOnly"),
                error="Py4JJavaError|An error occurred",
                ours="cannot be dropped",
            ),
        ],
        {"delta.feature.domainMetadata": "supported", "delta.feature.inCommitTimestamp": "supported"},
    ),
    Case(
        "dependents",
        "a INT, b INT, s STRUCT<x: INT>",
        [
            s("ALTER COLUMN a TYPE BIGINT", ChangeColumn("a", "BIGINT"), error="DELTA_CONSTRAINT_DEPENDENT_COLUMN_CHANGE"),
            s("RENAME COLUMN a TO z", RenameColumn("a", "z"), error="DELTA_CONSTRAINT_DEPENDENT_COLUMN_CHANGE"),
            s("DROP COLUMN a", DropColumns(["a"]), error="DELTA_CONSTRAINT_DEPENDENT_COLUMN_CHANGE"),
            s("ALTER COLUMN a COMMENT 'still'", ChangeColumn("a", comment="still")),
            s("DROP COLUMN IF EXISTS s.x", DropColumns(["s.x"], if_exists=True), error="SINGLE_FIELD", ours="only one"),
        ],
        {"delta.constraints.c": "a > 0", "delta.enableTypeWidening": "true", **MAPPED},
    ),
]


def run_alter(spark: SparkSession, path: Path, changes: Sequence[Change], key: str, **options: Any) -> CommitResult:
    log = open_log(path)

    def stage(handle: TransactionHandle) -> list[StagedWrite]:
        planned = plan_alter(open_stage(log, handle, task_id="alter", attempt=new_attempt()), changes)
        if isinstance(planned, StagedWrite):
            return [planned]
        return [planned.collect(planned.request, run_operation(spark, planned.request))]

    return run_transaction(log, stage, attempt=new_attempt(), transaction_key=key, create=False, **options)


def masked(value: Any) -> Any:
    return json.loads(UUID.sub(r"\1-<uuid>", json.dumps(value)))


def state(path: Path) -> dict[str, Any]:
    """Replay protocol, metadata and domains without the code under test."""
    found: dict[str, Any] = {"domains": {}}
    for file in sorted((path / "_delta_log").glob("0*.json")):
        for line in file.read_text().splitlines():
            for kind, action in json.loads(line).items():
                if kind == "domainMetadata":
                    found["domains"][action["domain"]] = (action["configuration"], action["removed"])
                elif kind in ("protocol", "metaData", "commitInfo"):
                    found[kind] = action
    info = found["commitInfo"]
    metadata = found["metaData"]
    parameters = {k: json.loads(v) if v[:1] in "[{" and v else v for k, v in _texts(info["operationParameters"]).items()}
    return masked(
        {
            "operation": info["operation"],
            "parameters": parameters,
            "metrics": info["operationMetrics"],
            "schema": json.loads(metadata["schemaString"]),
            "configuration": metadata["configuration"],
            "description": metadata.get("description"),
            "partitionColumns": metadata["partitionColumns"],
            "protocol": plain_protocol(found["protocol"]),
            "domains": found["domains"],
        }
    )


def _texts(parameters: dict[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in parameters.items()}


def create(delta: SparkSession, case: Case, tmp_path: Path) -> tuple[Path, Path]:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    pairs = ", ".join(f"'{k}'='{v}'" for k, v in case.properties.items())
    properties = f"TBLPROPERTIES ({pairs})" if pairs else ""
    delta.sql(f"CREATE TABLE delta.`{theirs}` ({case.ddl}) USING delta {case.clause} {properties}")
    if case.values:
        delta.sql(f"INSERT INTO delta.`{theirs}` VALUES {case.values}")
    shutil.copytree(theirs, ours)
    return theirs, ours


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_statement_does_what_delta_spark_does(case: Case, delta: SparkSession, tmp_path: Path) -> None:
    theirs, ours = create(delta, case, tmp_path)
    for number, step in enumerate(case.steps):
        statement = f"ALTER TABLE delta.`{theirs}` {step.sql}"
        if step.error is not None:
            with pytest.raises(Exception, match=step.error):
                delta.sql(statement)
            with pytest.raises(DeltaError, match=step.ours or step.error):
                run_alter(delta, ours, step.changes, f"key-{number}")
            continue
        delta.sql(statement)
        result = run_alter(delta, ours, step.changes, f"key-{number}")
        assert state(ours) == state(theirs), step.sql
        # Once only: the same identity is not run again.
        assert run_alter(delta, ours, step.changes, f"key-{number}").version == result.version
    if case.values:
        assert delta_rows(delta, ours) == delta_rows(delta, theirs)


@pytest.mark.parametrize(("reader", "writer"), [(1, 2), (1, 3), (2, 5)])
def test_protocol_upgrade_to_versions(reader: int, writer: int, delta: SparkSession, tmp_path: Path) -> None:
    theirs, ours = create(delta, Case("", "a INT", []), tmp_path)
    jvm(delta).io.delta.tables.DeltaTable.forPath(delta._jsparkSession, str(theirs)).upgradeTableProtocol(reader, writer)
    run_alter(delta, ours, [UpgradeProtocol(reader, writer)], "key")
    assert state(ours) == state(theirs)


def test_a_feature_by_name(delta: SparkSession, tmp_path: Path) -> None:
    theirs, ours = create(delta, Case("", "a INT", []), tmp_path)
    jvm(delta).io.delta.tables.DeltaTable.forPath(delta._jsparkSession, str(theirs)).addFeatureSupport("deletionVectors")
    run_alter(delta, ours, [UpgradeProtocol(features=["deletionVectors"])], "key")
    assert state(ours) == state(theirs)


def test_alter_and_data_make_one_version_that_delta_spark_reads(delta: SparkSession, table: Table) -> None:
    delta.sql(
        f"CREATE TABLE delta.`{table.path}` (a INT, b STRING) USING delta TBLPROPERTIES ('delta.columnMapping.mode'='name')"
    )
    delta.sql(f"INSERT INTO delta.`{table.path}` VALUES (1, 'x')")
    handle = table.begin()
    planned = plan_alter(
        table.view(handle, task_id="alter"),
        changes=[AddColumns([Column("c", "STRUCT<x: INT>"), Column("d", "INT")]), RenameColumn("b", "bb"), DropColumns(["d"])],
    )
    assert isinstance(planned, StagedWrite)
    rows = table.stage(handle, "SELECT 2 AS a, 'y' AS bb, named_struct('x', 7) AS c", after=[planned])
    result = table.publish(handle, rows, planned.to_dict())
    assert (result.version, result.operation) == (2, "WRITE")
    assert delta_rows(delta, table.path) == ["a=1, bb='x', c=None", "a=2, bb='y', c={'x': 7}"]
    tag = json.loads(table.info(2)["tags"]["airflow.operations"])
    assert [o["operation"] for o in tag] == ["ADD COLUMNS", "RENAME COLUMN", "DROP COLUMNS", "WRITE"]


def test_a_table_of_delta_rs_that_lists_variants(tmp_path: Path, delta: SparkSession) -> None:
    """delta-rs lists variantType with every deletion vector: we write the table and drop the feature, Delta Spark goes on."""
    import deltalake
    import pyarrow as pa

    table = Table(tmp_path / "table", delta)
    rows = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
    deltalake.write_deltalake(table.uri, rows, configuration={"delta.enableDeletionVectors": "true"})
    assert "variantType" in (table.log().snapshot.protocol.reader_features or [])
    table.write("SELECT 4L AS a")
    delta.sql(f"INSERT INTO delta.`{table.uri}` VALUES (5)")
    table.publish(handle := table.begin(), plan_alter(table.view(handle), [DropFeature("variantType")]))
    features = table.log().snapshot.protocol.writer_features or []
    assert "variantType" not in features
    assert "checkpointProtection" in features
    delta.sql(f"DELETE FROM delta.`{table.uri}` WHERE a = 1")
    table.write("SELECT 6L AS a")
    assert table.rows() == [(2,), (3,), (4,), (5,), (6,)]
    assert delta.table(f"delta.`{table.uri}`").count() == 5
