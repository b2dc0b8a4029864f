"""Tables that jobs of a service's Spark write, beside the same written by Delta Spark: operation by operation, for each feature.

The jobs' Spark is this environment's, or the one that ``TEST_JOB_PYTHON`` names: ``make test-versions`` has cells of Spark 3.5.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.merge import when_matched_update, when_not_matched_insert
from airflow_delta.exceptions import SparkVersionException
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from delta_spark.feature_cases import CASES, Case
from delta_spark.support import assert_same_state, delta_rows, sql_name
from support.jobs import JobSession, JobTable

NEWER = {"typeWidening", "variantType"}
"""What Spark 3.5 lacks."""

SLOW = {case.name for case in CASES} - {"plain", "columnMapping name", "deletionVectors", "rowTracking", *NEWER}

SEED = "SELECT id, IF(id % 2 = 0, 'a', 'b') AS p, CAST(id % 7 AS INT) AS v FROM range(1, 41, 1, 2)"
ROWS = "SELECT id, 'a' AS p, CAST(1 AS INT) AS v FROM range(50, 60, 1, 1)"
SOURCE = "SELECT id, IF(id % 3 = 0, 'b', 'a') AS p, CAST(9 AS INT) AS v FROM range(35, 48, 1, 1)"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobSession]:
    session = JobSession(tmp_path_factory.mktemp("jobs"))
    print(session.versions)
    yield session
    session.close()


class Twins:
    """One table twice: jobs of ours write the one, Delta Spark the other."""

    def __init__(self, delta: Any, path: Path, case: Case, jobs: JobSession) -> None:
        self.delta, self.case = delta, case
        self.ours, self.theirs = JobTable(path / "ours", jobs), path / "theirs"
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in case.properties.items())
        properties = f" TBLPROPERTIES ({listed})" if listed else ""
        name = sql_name(self.ours.path)
        delta.sql(f"CREATE TABLE {name} {case.ddl}{properties}")
        for statement in case.delta_setup:
            delta.sql(statement.replace("TABLE_", name))
        if not case.name.startswith("identity"):  # a writer draws its own numbers
            delta.sql(f"INSERT INTO {name} (id, p, v) {SEED}")
        shutil.copytree(self.ours.path, self.theirs)

    def sql(self, text: str) -> None:
        self.delta.sql(text.replace("TABLE_", sql_name(self.theirs)))

    def compare(self, what: str) -> None:
        assert_same_state(None, self.delta, self.ours.path, history=1, label=f"{self.case.name}, {what}:")
        assert self.rows(self.ours.path) == self.rows(self.theirs), what

    def rows(self, path: Path) -> list[str]:
        found = delta_rows(self.delta, path)
        return sorted(row.partition(", ")[2] for row in found) if self.case.name.startswith("identity") else found


def take_turns(twins: Twins) -> None:
    """Do the same on both."""
    ours = twins.ours
    ours.write(ROWS)
    twins.sql(f"INSERT INTO TABLE_ (id, p, v) {ROWS}")
    twins.compare("an append")
    if twins.case.name == "appendOnly":
        return
    ours.run(plan_delete, predicate="id % 5 = 3 AND p = 'a'")
    twins.sql("DELETE FROM TABLE_ WHERE id % 5 = 3 AND p = 'a'")
    twins.compare("DELETE")
    ours.run(plan_update, set={"v": "v + 1", "p": "'b'"}, predicate="v = 1 OR id = 12")
    twins.sql("UPDATE TABLE_ SET v = v + 1, p = 'b' WHERE v = 1 OR id = 12")
    twins.compare("UPDATE")
    clauses = [
        when_matched_update({"v": "source.v"}),
        when_not_matched_insert({name: f"source.{name}" for name in ("id", "p", "v")}),
    ]
    ours.run(plan_merge, source=SOURCE, condition="target.id = source.id AND target.p = source.p", clauses=clauses)
    twins.sql(
        f"MERGE INTO TABLE_ t USING ({SOURCE}) s ON t.id = s.id AND t.p = s.p WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED THEN INSERT (id, p, v) VALUES (s.id, s.p, s.v)"
    )
    twins.compare("MERGE")
    ours.run(plan_optimize)
    twins.compare("OPTIMIZE")


PARAMETERS = [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.name in SLOW else []) for case in CASES]


@pytest.mark.parametrize("case", PARAMETERS)
def test_jobs_write_what_delta_spark_writes(delta: Any, jobs: JobSession, tmp_path: Path, case: Case) -> None:
    twins = Twins(delta, tmp_path, case, jobs)
    is_older = jobs.versions.startswith("Spark 3.5")
    if case.name == "typeWidening":
        for path in (twins.ours.path, twins.theirs):
            delta.sql(f"ALTER TABLE {sql_name(path)} ALTER COLUMN v TYPE BIGINT")
    if is_older and case.name in NEWER:
        with pytest.raises(SparkVersionException, match=r"Spark 3\.5\.\d+ (has no variants|cannot read files from before)"):
            twins.ours.run(plan_delete, predicate="v = 1")
        return
    take_turns(twins)
