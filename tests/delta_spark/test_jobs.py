"""Tables that jobs write, beside the same written by Delta Spark: operation by operation, for each kind of table.

The jobs' Spark is this environment's, or the one that ``TEST_JOB_PYTHON`` names: ``make test-versions`` has a cell of Spark 3.5.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.merge import when_matched_update, when_not_matched_insert
from airflow_delta.exceptions import SparkVersionException
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from delta_spark.feature_cases import CASES
from delta_spark.jvm import configured
from delta_spark.support import assert_same_state, changes, delta_rows, rows_of, sql_name
from support.jobs import JobSession, JobTable

BY_NAME = {case.name: case for case in CASES}
KINDS = {
    **{name: case for name, case in BY_NAME.items() if name != "typeWidening"},
    "typeWidening in Parquet's INT32": BY_NAME["typeWidening"],
    "typeWidening to BIGINT": BY_NAME["typeWidening"],
}
QUICK = ("plain", "deletionVectors")

WIDER = {"typeWidening in Parquet's INT32": "INT", "typeWidening to BIGINT": "BIGINT"}
"""The type that the column ``v`` gets when it has rows."""

REFUSED = {"variantType": "has no variants", "typeWidening to BIGINT": "cannot read files from before"}
"""What Spark 3.5 lacks, and says when it is asked for."""

MORE_COLUMNS = {
    "timestampNtz": {"t": "CAST(CONCAT('2024-10-27 02:30:00.0', id) AS TIMESTAMP_NTZ)"},
    "variantType": {"x": "PARSE_JSON(CONCAT('{\"a\": ', id, '}'))"},
}

KEPT = {"identityColumns": "n", "rowTracking": "_metadata.row_id"}
"""What the rows that are there at first keep, and each writer gives to new rows in an order of its own."""

FIRST_NEW = 35
"""The lowest id that is added later."""


@dataclass(frozen=True)
class Rows:
    """Rows in SQL.

    :param columns: their names.
    """

    columns: tuple[str, ...]
    text: str

    @classmethod
    def made(cls, kind: str, numbers: str, part: str, value: str) -> Rows:
        """Return rows with the columns of a kind of table that a writer gives."""
        computed = {"id": "id", "p": part, "v": f"CAST({value} AS INT)", **MORE_COLUMNS.get(kind, {})}
        listed = ", ".join(f"{expression} AS {name}" for name, expression in computed.items())
        return cls(tuple(computed), f"SELECT {listed} FROM range({numbers}, 1, 2)")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobSession]:
    session = JobSession(tmp_path_factory.mktemp("jobs"))
    yield session
    session.close()


class Twins:
    """One table twice: jobs of ours write the one, Delta Spark the other."""

    def __init__(self, delta: Any, path: Path, kind: str, jobs: JobSession) -> None:
        self.delta, self.kind = delta, kind
        self.ours, self.theirs = JobTable(path / "ours", jobs), path / "theirs"
        case, name = KINDS[kind], sql_name(self.ours.path)
        properties = {"delta.checkpointInterval": "3", **case.properties}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        delta.sql(f"CREATE TABLE {name} {case.ddl} TBLPROPERTIES ({listed})")
        for statement in case.delta_setup:
            delta.sql(statement.replace("TABLE_", name))
        self.insert(Rows.made(kind, "1, 41", "IF(id % 2 = 0, 'a', 'b')", "id % 7"), self.ours.path)
        if kind in WIDER:
            delta.sql(f"ALTER TABLE {name} ALTER COLUMN v TYPE {WIDER[kind]}")
        shutil.copytree(self.ours.path, self.theirs)

    def sql(self, text: str) -> None:
        self.delta.sql(text.replace("TABLE_", sql_name(self.theirs)))

    def insert(self, rows: Rows, path: Path | None = None) -> None:
        self.delta.sql(f"INSERT INTO {sql_name(path or self.theirs)} ({', '.join(rows.columns)}) {rows.text}")

    def compare(self, what: str) -> None:
        assert self.rows(self.ours.path) == self.rows(self.theirs), what
        if self.kind == "changeDataFeed" and what != "OPTIMIZE":
            assert changes(self.delta, self.ours.path) == changes(self.delta, self.theirs), what
        if self.kind in KEPT:
            assert self.kept(self.ours.path) == self.kept(self.theirs), what

    def close(self) -> None:
        """Compare how Delta Spark and our own log read what has become of the table: rows, files, history, and all else."""
        state = assert_same_state(None, self.delta, self.ours.path, label=self.kind)
        assert set(KINDS[self.kind].expects) <= set(state.protocol["writerFeatures"])

    def rows(self, path: Path) -> list[str]:
        found = delta_rows(self.delta, path)
        return sorted(row.partition(", ")[2] for row in found) if self.kind == "identityColumns" else found

    def kept(self, path: Path) -> list[str]:
        return rows_of(self.delta.sql(f"SELECT id, {KEPT[self.kind]} AS kept FROM {sql_name(path)} WHERE id < {FIRST_NEW}"))


def append(twins: Twins) -> None:
    rows = Rows.made(twins.kind, "50, 60", "'a'", "1")
    twins.ours.write(rows.text)
    twins.insert(rows)
    twins.compare("an append")


def rewrite(twins: Twins) -> None:
    ours = twins.ours
    ours.run(plan_delete, predicate="id % 5 = 3 AND p = 'a'")
    twins.sql("DELETE FROM TABLE_ WHERE id % 5 = 3 AND p = 'a'")
    twins.compare("DELETE")
    ours.run(plan_update, set={"v": "v + 1", "p": "'b'"}, predicate="v = 1 OR id = 12")
    twins.sql("UPDATE TABLE_ SET v = v + 1, p = 'b' WHERE v = 1 OR id = 12")
    twins.compare("UPDATE")
    source = Rows.made(twins.kind, f"{FIRST_NEW}, 48", "IF(id % 3 = 0, 'b', 'a')", "9")
    inserted = {name: f"source.{name}" for name in source.columns}
    clauses = [when_matched_update({"v": "source.v"}), when_not_matched_insert(inserted)]
    ours.run(plan_merge, source=source.text, condition="target.id = source.id AND target.p = source.p", clauses=clauses)
    twins.sql(
        f"MERGE INTO TABLE_ target USING ({source.text}) source ON target.id = source.id AND target.p = source.p "
        f"WHEN MATCHED THEN UPDATE SET v = source.v "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(inserted)}) VALUES ({', '.join(inserted.values())})"
    )
    twins.compare("MERGE")
    ours.run(plan_optimize)  # changes no row, nor would Delta's
    twins.compare("OPTIMIZE")


def take_turns(twins: Twins) -> None:
    """Do on both what the jobs' Spark can do."""
    kind, versions = twins.kind, twins.ours.jobs.versions
    refused = REFUSED.get(kind) if versions.startswith("Spark 3.5") else None
    if refused is not None:
        with pytest.raises(SparkVersionException, match=rf"Spark 3\.5\.\d+ {refused}"):
            twins.ours.run(plan_delete, predicate="v = 1")
        twins.compare("nothing")
    if kind != "variantType" or refused is None:
        append(twins)
    if kind != "appendOnly" and refused is None:
        rewrite(twins)
    twins.close()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=kind, marks=[pytest.mark.slow] if kind not in QUICK else []) for kind in KINDS]
)
def test_jobs_write_what_delta_spark_writes(delta: Any, jobs: JobSession, tmp_path: Path, kind: str) -> None:
    with configured(delta, KINDS[kind].conf):
        take_turns(Twins(delta, tmp_path, kind, jobs))
