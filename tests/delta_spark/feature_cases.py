"""One case for each table feature: how each engine creates such a table, and what each does with it in turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from delta_spark.writer import Writer
from support.actions import column

Row = dict[str, Any]
OurStep = Callable[[Writer, int], Any]

PARTITIONS = ("a", "b")


def plain_row(number: int) -> Row:
    return {"id": number, "p": PARTITIONS[number % 2], "v": number % 7}


def with_metadata(field_: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    return {**field_, "metadata": metadata}


ID, PART, VALUE = column("id", "long"), column("p", "string"), column("v", "integer")

INSERT = "INSERT INTO TABLE_ (id, p, v) VALUES (N_, 'a', 1), (N_ + 1, 'b', 2)"
DELETE = "DELETE FROM TABLE_ WHERE id % 5 = N_ % 5"
UPDATE = "UPDATE TABLE_ SET v = 3 WHERE id % 4 = N_ % 4"
MERGE = (
    "MERGE INTO TABLE_ t USING (SELECT N_ - 2 AS id, 'a' AS p, 5 AS v UNION ALL SELECT N_ + 2, 'b', 6) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT (id, p, v) VALUES (s.id, s.p, s.v)"
)
OPTIMIZE = "OPTIMIZE TABLE_"
PROPERTY = "ALTER TABLE TABLE_ SET TBLPROPERTIES ('theirs' = 'N_')"
VACUUM = "VACUUM TABLE_ RETAIN 0 HOURS"
ROWS_AND_MORE = (INSERT, DELETE, MERGE, OPTIMIZE, UPDATE, PROPERTY)


@dataclass(frozen=True)
class Case:
    """A table with one feature.

    :param ddl: columns and what follows them, as Delta Spark creates the table.
    :param columns: the same columns in Spark's JSON form, as we create it.
    :param properties: table properties, for both; our own add ``our_properties``.
    :param our_setup: statements of Delta Spark after we created the table; ``delta_setup`` likewise.
    :param delta_steps: statements in turn; ``TABLE_`` is the table, ``N_`` a new number.
    :param our_steps: names of the steps of :mod:`delta_spark.test_fifty_commits`, in turn.
    :param row: a row by number, all columns that a direct write must give.
    :param staged_row: a row as Spark stages it: without the columns that the engine computes.
    :param expects: features that the protocol must list at the end.
    :param conf: settings of the Spark session.
    :param delta_rs: delta-rs reads the rows of such tables.
    """

    name: str
    ddl: str = "(id BIGINT, p STRING, v INT) USING delta PARTITIONED BY (p)"
    columns: Sequence[Mapping[str, Any]] = (ID, PART, VALUE)
    partition_by: Sequence[str] = ("p",)
    properties: Mapping[str, str] = field(default_factory=dict)
    our_properties: Mapping[str, str] = field(default_factory=dict)
    our_setup: Sequence[str] = ()
    delta_setup: Sequence[str] = ()
    delta_steps: Sequence[str] = ROWS_AND_MORE
    our_steps: Sequence[str] = ("append", "append_once", "replace_where", "append", "overwrite_partitions", "property")
    row: Callable[[int], Row] = plain_row
    staged_row: Callable[[int], Row] | None = None
    staged_ddl: str = "id BIGINT, p STRING, v INT"
    expects: Sequence[str] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    delta_rs: bool = True
    creators: Sequence[str] = ("delta", "ours")


APPENDS = ("append", "append_once", "append", "property")


def _identity(start: int, step: int) -> dict[str, Any]:
    return {"delta.identity.start": start, "delta.identity.step": step, "delta.identity.allowExplicitInsert": False}


CASES = (
    Case("plain", delta_steps=(*ROWS_AND_MORE, VACUUM)),
    Case(
        "appendOnly",
        properties={"delta.appendOnly": "true"},
        delta_steps=(INSERT, OPTIMIZE, PROPERTY),
        our_steps=APPENDS,
    ),
    Case(
        "invariants",
        ddl="(id BIGINT NOT NULL, p STRING, v INT) USING delta PARTITIONED BY (p)",
        columns=(
            column("id", "long", False),
            PART,
            with_metadata(VALUE, **{"delta.invariants": json.dumps({"expression": {"expression": "v >= 0"}})}),
        ),
    ),
    Case(
        "checkConstraints",
        delta_setup=("ALTER TABLE TABLE_ ADD CONSTRAINT positive CHECK (v >= 0)",),
        our_properties={"delta.constraints.positive": "v >= 0"},
    ),
    Case(
        "generatedColumns",
        ddl="(id BIGINT, p STRING, v INT, g BIGINT GENERATED ALWAYS AS (id * 2)) USING delta PARTITIONED BY (p)",
        columns=(ID, PART, VALUE, with_metadata(column("g", "long"), **{"delta.generationExpression": "id * 2"})),
        row=lambda n: {**plain_row(n), "g": 2 * n},
        staged_row=plain_row,
    ),
    Case(
        "identityColumns",
        ddl="(n BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 100 INCREMENT BY 10), id BIGINT, p STRING, v INT) USING delta "
        "PARTITIONED BY (p)",
        columns=(with_metadata(column("n", "long"), **_identity(100, 10)), ID, PART, VALUE),
        our_steps=("property", "staged", "delete_where", "transaction"),
        staged_row=plain_row,
    ),
    Case("changeDataFeed", properties={"delta.enableChangeDataFeed": "true"}),
    Case(
        "columnMapping name",
        properties={"delta.columnMapping.mode": "name"},
        delta_steps=(
            INSERT,
            "ALTER TABLE TABLE_ ADD COLUMNS (extra STRING)",
            DELETE,
            "ALTER TABLE TABLE_ RENAME COLUMN extra TO other",
            MERGE,
            "ALTER TABLE TABLE_ DROP COLUMN other",
            OPTIMIZE,
        ),
    ),
    Case(
        "columnMapping id",
        properties={"delta.columnMapping.mode": "id"},
        delta_steps=(
            INSERT,
            "ALTER TABLE TABLE_ ADD COLUMNS (extra STRING)",
            DELETE,
            "ALTER TABLE TABLE_ RENAME COLUMN extra TO other",
            MERGE,
            "ALTER TABLE TABLE_ DROP COLUMN other",
            OPTIMIZE,
        ),
    ),
    Case(
        "timestampNtz",
        ddl="(id BIGINT, p STRING, v INT, t TIMESTAMP_NTZ) USING delta PARTITIONED BY (p)",
        columns=(ID, PART, VALUE, column("t", "timestamp_ntz")),
        row=lambda n: {**plain_row(n), "t": f"2024-10-27T02:30:00.{n:06d}"},
        staged_ddl="id BIGINT, p STRING, v INT, t TIMESTAMP_NTZ",
        delta_steps=(INSERT, "UPDATE TABLE_ SET t = TIMESTAMP_NTZ'2024-03-31 02:30:00.000001' WHERE t IS NULL", DELETE, OPTIMIZE),
        expects=("timestampNtz",),
    ),
    Case(
        "deletionVectors",
        properties={"delta.enableDeletionVectors": "true"},
        delta_steps=(INSERT, DELETE, UPDATE, MERGE, DELETE, PROPERTY),
        expects=("deletionVectors",),
    ),
    Case(
        "v2Checkpoint json",
        properties={"delta.checkpointPolicy": "v2"},
        conf={
            "spark.databricks.delta.checkpointV2.topLevelFileFormat": "json",
            "spark.databricks.delta.checkpoint.partSize": "5",
        },
        expects=("v2Checkpoint",),
    ),
    Case(
        "v2Checkpoint parquet",
        properties={"delta.checkpointPolicy": "v2"},
        conf={
            "spark.databricks.delta.checkpointV2.topLevelFileFormat": "parquet",
            "spark.databricks.delta.checkpoint.partSize": "5",
        },
        expects=("v2Checkpoint",),
    ),
    Case("inCommitTimestamp", properties={"delta.enableInCommitTimestamps": "true"}, expects=("inCommitTimestamp",)),
    Case(
        "domainMetadata",
        properties={"delta.feature.domainMetadata": "supported"},
        our_steps=("domain", "append", "append_once", "domain", "replace_where", "no_domain"),
        expects=("domainMetadata",),
    ),
    Case("rowTracking", properties={"delta.enableRowTracking": "true"}, expects=("rowTracking", "domainMetadata")),
    Case(
        "clustering",
        ddl="(id BIGINT, p STRING, v INT) USING delta CLUSTER BY (id)",
        partition_by=(),
        our_setup=("ALTER TABLE TABLE_ CLUSTER BY (id)",),
        delta_steps=(INSERT, DELETE, OPTIMIZE, MERGE, PROPERTY, "ALTER TABLE TABLE_ CLUSTER BY (id, v)"),
        our_steps=("append", "append_once", "overwrite", "append", "property"),
        expects=("clustering", "domainMetadata"),
    ),
    Case(
        "typeWidening",
        ddl="(id BIGINT, p STRING, v SMALLINT) USING delta PARTITIONED BY (p)",
        columns=(ID, PART, column("v", "short")),
        properties={"delta.enableTypeWidening": "true"},
        delta_steps=(
            INSERT,
            "ALTER TABLE TABLE_ ALTER COLUMN v TYPE INT",
            DELETE,
            MERGE,
            "ALTER TABLE TABLE_ ALTER COLUMN v TYPE BIGINT",
            UPDATE,
            INSERT,
        ),
        expects=("typeWidening",),
        delta_rs=False,
    ),
    Case(
        "allowColumnDefaults",
        ddl="(id BIGINT, p STRING, v INT DEFAULT 7) USING delta PARTITIONED BY (p)",
        columns=(ID, PART, with_metadata(VALUE, CURRENT_DEFAULT="7", EXISTS_DEFAULT="7")),
        properties={"delta.feature.allowColumnDefaults": "supported"},
        delta_steps=("INSERT INTO TABLE_ (id, p) VALUES (N_, 'a')", *ROWS_AND_MORE),
        staged_row=lambda n: {"id": n, "p": "b"},
        expects=("allowColumnDefaults",),
    ),
    Case(
        "vacuumProtocolCheck",
        properties={"delta.feature.vacuumProtocolCheck": "supported"},
        delta_steps=(INSERT, DELETE, VACUUM, MERGE, OPTIMIZE),
        expects=("vacuumProtocolCheck",),
        delta_rs=False,
    ),
    Case(
        "variantType",
        ddl="(id BIGINT, p STRING, v INT, x VARIANT) USING delta PARTITIONED BY (p)",
        columns=(ID, PART, VALUE, column("x", "variant")),
        delta_steps=(
            "INSERT INTO TABLE_ VALUES (N_, 'a', 1, parse_json('{\"a\": N_, \"b\": [1, null]}')), (N_ + 1, 'b', NULL, NULL)",
            DELETE,
            UPDATE,
            PROPERTY,
            "INSERT INTO TABLE_ VALUES (N_, 'b', 1, parse_json('N_'))",
        ),
        our_steps=("property", "delete_where", "transaction", "property", "staged"),  # only Spark writes variants
        expects=("variantType",),
        delta_rs=False,
    ),
)
