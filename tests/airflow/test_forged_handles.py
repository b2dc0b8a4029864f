"""Every field of a handle is altered in XCom, for every kind of task: rules of the table come from its log and the Dag file."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk import DAG, task

from airflow_delta.exceptions import DeltaError, HandleMismatchException, MetadataChangedException
from airflow_delta.log import DeltaLog
from airflow_delta.operators.alter import DeltaAlterTableOperator
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaTruncateOperator, DeltaUpdateOperator
from airflow_delta.operators.diff import DeltaDiffOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaOptimizeOperator
from airflow_delta.operators.preview import DeltaPreviewOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator, DeltaStageSparkSubmitOperator
from airflow_delta.operators.transaction import DeltaAbortOperator, DeltaCommitOperator, DeltaStartTransactionOperator
from airflow_delta.transaction import Operation
from support import readers
from support.one_by_one import World
from support.slow import slow_except

RULE = {"delta.constraints.positive": "id > 0"}
ID = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
TWO = ID.replace("]}", ',{"name":"b","type":"string","nullable":true,"metadata":{}}]}')
REQUIRED = ID.replace("true", "false")
NEW_TABLE = {"schema": REQUIRED, "properties": {"delta.appendOnly": "false"}}
OTHER = ID.replace('"id"', '"other"')


@pytest.fixture(autouse=True)
def _alone(request):
    if "run_dag" not in request.fixturenames:
        request.getfixturevalue("outside_of_the_task_runner")


class Tasks(World):
    """A Dag with a task of every kind that takes a handle."""

    states = {"stage": "success", "arrow": "success"}

    def __init__(self, table: str, **start) -> None:
        super().__init__(table, **start)
        with self.dag:
            given = {"transaction": self.start.output}

            @task.delta_stage(engine="arrow", task_id="arrow", **given)
            def arrow():
                return pa.table({"id": pa.array([1, 2], pa.int64())})

            @task.delta_stage(task_id="pyspark", **given)
            def pyspark(spark):
                raise AssertionError("not reached with a forged handle")

            self.arrow = arrow().operator
            reports = {"staged": self.arrow.output}
            self.kinds = {
                "arrow": self.arrow,
                "pyspark": pyspark().operator,
                "sql": DeltaStageSqlOperator(task_id="sql", sql="SELECT 1L AS id", **given),
                "files": self.stage,
                "submit": DeltaStageSparkSubmitOperator(task_id="submit", application="job.py", durable=False, **given),
                "merge": DeltaMergeOperator(
                    task_id="merge", source="SELECT 1L AS id", condition="source.id = target.id", **given
                ),
                "delete": DeltaDeleteOperator(task_id="delete", predicate="id = 1", **given),
                "update": DeltaUpdateOperator(task_id="update", set={"id": "2"}, **given),
                "truncate": DeltaTruncateOperator(task_id="truncate", **given),
                "optimize": DeltaOptimizeOperator(task_id="optimize", **given),
                "alter": DeltaAlterTableOperator(task_id="alter", changes=[], **given),
                "audit": DeltaAuditOperator(task_id="audit_all", min_rows=0, **reports, **given),
                "diff": DeltaDiffOperator(task_id="diff", **reports, **given),
                "preview": DeltaPreviewOperator(task_id="preview", **reports, **given),
                "commit": DeltaCommitOperator(task_id="commit_all", **reports, **given),
                "abort": self.abort,
            }

    def run_kind(self, kind: str, handle: dict, reports: list[dict] | None = None):
        """Run a task; the stages of the reports that it takes have succeeded."""
        if reports is None:
            reports = [self.run(self.arrow, transaction=self.begin())] if kind in REPORTED else []
            reports = [{**report, "transactionId": handle["transactionId"]} for report in reports]
        return self.run(self.kinds[kind], transaction=handle, **({"staged": reports} if kind in REPORTED else {}))


REPORTED = ("audit", "diff", "preview", "commit")


KINDS = [
    "arrow",
    "pyspark",
    "sql",
    "files",
    "submit",
    "merge",
    "delete",
    "update",
    "truncate",
    "optimize",
    "alter",
    "audit",
    "diff",
    "preview",
    "commit",
]
FIELDS = {
    "configuration": {},
    "schemaString": OTHER,
    "partitionColumns": ["id"],
    "features": ["deletionVectors"],
    "name": "another",
    "description": "another",
    "tableId": "another",
    "isolationLevel": "WriteSerializable",
    "txnVersion": 7,
    "monotonic": True,
    "readVersion": -1,
}
BY_THE_ORIGIN = {"isolationLevel", "txnVersion", "monotonic"}


@pytest.fixture
def existing(tmp_path) -> Tasks:
    """A table with a CHECK constraint."""
    deltalake.write_deltalake(tmp_path / "table", pa.table({"id": pa.array([1], pa.int64())}))
    deltalake.DeltaTable(tmp_path / "table").alter.add_constraint({"positive": "id > 0"})
    return Tasks(str(tmp_path / "table"), create=False)


@pytest.mark.parametrize(("kind", "field"), list(itertools.product(KINDS, FIELDS)))
def test_a_field_that_differs_from_the_log(existing, kind, field):
    handle = existing.begin()
    assert handle[field] != FIELDS[field]
    forged = {**handle, field: FIELDS[field]}
    errors = MetadataChangedException if field == "tableId" and kind not in REPORTED else HandleMismatchException
    with pytest.raises(errors) as refused:
        existing.run_kind(kind, forged)
    if field not in (*BY_THE_ORIGIN, "readVersion", "tableId") and (kind not in REPORTED or field in ("name", "description")):
        assert f"({field})" in str(refused.value)
    assert deltalake.DeltaTable(handle["table"]).version() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_version_that_the_table_does_not_have(existing, kind):
    with pytest.raises(DeltaError, match=r"has version 1|did not check its rows"):
        existing.run_kind(kind, {**existing.begin(), "readVersion": 2})


NEW = {name: value for name, value in FIELDS.items() if name not in ("readVersion", "name", "description")}


@pytest.mark.parametrize(("kind", "field"), list(itertools.product([*KINDS, "abort"], NEW)))
def test_a_field_that_differs_from_the_definition_of_a_new_table(tmp_path, kind, field):
    world = Tasks(str(tmp_path / "table"), **NEW_TABLE)
    handle = world.begin()
    with pytest.raises(HandleMismatchException):
        world.run_kind(kind, {**handle, field: NEW[field]})
    assert not deltalake.DeltaTable.is_deltatable(handle["table"])


def test_name_and_description_of_a_new_table_are_those_of_the_dag_file(tmp_path):
    world = World(str(tmp_path / "table"), description="ours")
    forged = {**world.begin(), "name": "theirs", "description": "theirs"}
    world.run(world.commit, transaction=forged, staged=world.staged(forged))
    metadata = deltalake.DeltaTable(forged["table"]).metadata()
    assert (metadata.name, metadata.description) == (None, "ours")


@pytest.mark.parametrize(
    "options",
    [
        {"properties": {"delta.columnMapping.mode": "name"}, "schema": TWO, "partition_by": "id"},
        {
            "properties": {"delta.logRetentionDuration": "interval {{ 3 }} days"},
            "schema": json.loads(TWO),
            "partition_by": ["id"],
        },
        {"properties": {"delta.setTransactionRetentionDuration": None}, "isolation_level": "WriteSerializable"},
        {"properties": {"delta.enableDeletionVectors": "true"}},
        {},
    ],
    ids=str,
)
def test_what_the_start_task_says_about_a_new_table_is_let_through(tmp_path, options):
    world = World(str(tmp_path / "table"), **options)
    handle = world.begin()
    assert world.run(world.abort, transaction=handle)["outcome"] == "deleted"


def test_a_start_task_that_is_mapped_over_definitions(tmp_path):
    with DAG("a_dag", schedule=None) as dag:
        start = DeltaStartTransactionOperator.partial(task_id="start").expand_kwargs(
            [
                {"table": f"{tmp_path}/a", "properties": {"delta.appendOnly": "false"}},
                {"table": f"{tmp_path}/b", "partition_by": "id"},
            ]
        )
        DeltaAbortOperator.partial(task_id="abort").expand(transaction=start.output)
    world = World(f"{tmp_path}/unused")
    world.dag = dag
    running = DeltaAbortOperator(task_id="abort", transaction=None)
    handle = World(f"{tmp_path}/a", properties={"delta.appendOnly": "false"}).begin()
    assert world.run(running, transaction=handle)["outcome"] == "deleted"
    with pytest.raises(HandleMismatchException, match="new table"):
        world.run(running, transaction={**handle, "configuration": {"delta.appendOnly": "true"}})


# -- two tasks that are told different things -----------------------------------------------------------------------------------


def constrained(tmp_path) -> tuple[Tasks, dict, dict]:
    """Return a Dag, its handle, and what its start task would have returned before the table got its constraint."""
    deltalake.write_deltalake(tmp_path / "table", pa.table({"id": pa.array([1], pa.int64())}))
    world = Tasks(str(tmp_path / "table"), create=False)
    older = world.begin()
    deltalake.DeltaTable(tmp_path / "table").alter.add_constraint({"positive": "id > 0"})
    now = world.begin()
    before = {name: older[name] for name in ("readVersion", "tableId", "schemaString", "configuration", "features", "timestamp")}
    return world, now, {**now, **before}


def test_a_stage_that_was_told_of_an_older_version(tmp_path):
    world, handle, older = constrained(tmp_path)
    report = world.run(world.arrow, transaction=older)
    for kind in ("commit", "audit", "diff"):
        with pytest.raises(HandleMismatchException, match="did not check its rows for table"):
            world.run_kind(kind, handle, [report])
    with pytest.raises(MetadataChangedException):  # and a commit that is told the same finds the change
        world.run_kind("commit", older, [report])
    attempt = report["attempt"].rpartition("-")[0]
    mark = world.run(world.arrow, transaction=handle)["attempt"].rpartition("-")[2]
    with pytest.raises(DeltaError, match="is not under its staging path"):
        world.run_kind("commit", handle, [{**report, "attempt": f"{attempt}-{mark}"}])
    assert deltalake.DeltaTable(handle["table"]).version() == 1


def test_a_stage_whose_files_are_those_of_another_attempt(tmp_path):
    """The report of a stage under the right rules, which names the files of one that was told others."""
    world, handle, older = constrained(tmp_path)
    theirs, report = (world.run(world.arrow, transaction=told) for told in (older, handle))
    for name in ("actions", "numFiles", "numRecords", "numBytes"):
        report[name] = theirs[name]
    with pytest.raises(DeltaError, match="is not under its staging path"):
        world.run_kind("commit", handle, [report])


def test_what_the_stage_was_told_is_what_the_commit_was_told(tmp_path):
    world, handle, _ = constrained(tmp_path)
    report = world.run(world.arrow, transaction=handle)
    assert world.run_kind("commit", handle, [report])["version"] == 2


CHANGES = {
    "alter": {"mode": "alter", "changes": [{"change": "dropConstraint", "name": "positive"}]},
    "changes": {"changes": [{"change": "dropConstraint", "name": "positive"}]},
    "define": {"definition": {"mode": "replace", "clusterBy": [], "features": [], "metaData": {}}},
    "merge_schema": {"mergeSchema": True},
    "overwrite_schema": {"mode": "overwrite", "overwriteSchema": True},
}


@pytest.mark.parametrize("kind", REPORTED)
@pytest.mark.parametrize("change", CHANGES)
def test_a_report_that_changes_the_table_as_no_task_asks(tmp_path, kind, change):
    world, handle, _ = constrained(tmp_path)
    report = world.run(world.arrow, transaction=handle)
    with pytest.raises(HandleMismatchException, match="its task in the Dag file does not ask"):
        world.run_kind(kind, handle, [{**report, **CHANGES[change]}])


# -- a handle from nowhere ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", ["{{ params.handle }}", {"table": "{{ params.t }}", "transactionId": "{{ params.t }}"}], ids=type
)
@pytest.mark.parametrize("kind", ["files", "audit", "diff", "delete", "commit", "abort"])
def test_a_handle_of_no_start_task(tmp_path, given, kind):
    theirs = World(str(tmp_path / "victim"))
    handle = theirs.begin()
    with DAG("a_dag", schedule=None) as dag:
        options = {"transaction": given, "task_id": kind}
        make = {
            "files": lambda **more: DeltaStageFilesOperator(path="rows", **options, **more),
            "audit": lambda **more: DeltaAuditOperator(staged=[], min_rows=0, **options, **more),
            "diff": lambda **more: DeltaDiffOperator(staged=[], **options, **more),
            "delete": lambda **more: DeltaDeleteOperator(predicate="id = 1", **options, **more),
            "commit": lambda **more: DeltaCommitOperator(staged=[], **options, **more),
            "abort": lambda **more: DeltaAbortOperator(**options, **more),
        }[kind]
        unknown = make()
    world = copy.copy(theirs)
    world.dag = dag
    with pytest.raises(HandleMismatchException, match="pass table="):
        world.run(unknown, transaction=handle)
    with DAG("a_dag", schedule=None) as world.dag:
        elsewhere = make(table=str(tmp_path / "other"))
    with pytest.raises(DeltaError, match="the table of the task is"):
        world.run(elsewhere, transaction=handle)
    with DAG("a_dag", schedule=None) as world.dag:
        named = make(table=str(tmp_path / "victim"))
    with pytest.raises(DeltaError, match="the connection of the task is"):
        world.run(named, transaction={**handle, "deltaConnId": "another"})
    with pytest.raises(HandleMismatchException, match="cannot be part of a staging path"):
        world.run(named, transaction={**handle, "transactionId": "a b"})


# -- whole runs -----------------------------------------------------------------------------------------------------------------


def altered(run, task_id: str, **fields) -> None:
    """Alter the XCom of a task in Airflow's database, as its API lets users do."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    value = {**run.xcom(task_id), **fields}
    with create_session() as session:
        XComModel.set("return_value", value, dag_id=run.dag_id, task_id=task_id, run_id=run.run_id, session=session)


@pytest.mark.airflow
@pytest.mark.parametrize("name", slow_except(["forged", "forged_new"], "forged_new"))
def test_a_rule_that_is_taken_out_of_the_handle_still_holds(run_dag, clear_and_run, tables, name):
    path = Path(tables) / name
    if name == "forged":
        log = DeltaLog.for_table(str(path))
        txn = log.start_transaction()
        from airflow_delta.log.actions.actions import Metadata

        txn.update_metadata_for_new_table(Metadata(id="a", schema_string=ID, configuration=RULE))
        txn.commit([], Operation.manual_update())
    run = run_dag(name)
    assert (run.state_of("stage"), run.state_of("commit")) == ("failed", "upstream_failed")
    altered(run, "start", **({"configuration": {}} if name == "forged" else {"schemaString": ID}))
    again = clear_and_run(run, "stage", "commit")
    assert (again.state_of("stage"), again.state_of("commit")) == ("failed", "upstream_failed")
    if name == "forged":
        assert deltalake.DeltaTable(path).version() == 0
        assert readers.rows(str(path)) == []
    else:
        assert not deltalake.DeltaTable.is_deltatable(str(path))
