"""The maintenance task: what it does and tells, what it leaves when a step fails, and whole Dag runs beside commits."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from airflow_delta import exceptions
from airflow_delta.operators.maintenance import DeltaMaintenanceOperator
from support import readers
from support.running_tasks import context, pushed
from support.watching import Lines


@pytest.fixture
def uri(tmp_path) -> str:
    """A table of three one-file commits; the fourth removes two of the files."""
    return made(tmp_path / "table")


def made(path: Path) -> str:
    for value in range(3):
        deltalake.write_deltalake(str(path), pa.table({"id": [value]}), mode="append")
    deltalake.DeltaTable(str(path)).delete("id < 2")
    return str(path)


def steps_of(result: dict, table: int = 0) -> dict[str, str]:
    return {step["step"]: step["status"] for step in result["tables"][table]["steps"]}


def checkpoints(uri: str) -> list[str]:
    return sorted(path.name for path in Path(uri, "_delta_log").glob("*.checkpoint*.parquet"))


@pytest.mark.usefixtures("outside_of_the_task_runner")
class TestOneTask:
    def test_the_steps_in_their_order(self, uri, monkeypatch):
        kept = Lines()
        monkeypatch.setattr(DeltaMaintenanceOperator, "log", kept)
        operator = DeltaMaintenanceOperator(
            task_id="maintain",
            tables=uri,
            steps=["log_cleanup", "checkpoint", "vacuum"],
            min_commits="4",
            retention_hours="0",
            retention_check=False,
            max_paths=1,
        )
        result = operator.execute(context(operator))
        assert steps_of(result) == {"checkpoint": "done", "vacuum": "done", "log_cleanup": "nothing"}
        (table,) = result["tables"]
        assert (table["table"], table["versionBefore"], table["versionAfter"], result["numFailedSteps"]) == (uri, 3, 5, 0)
        vacuum = table["steps"][1]
        assert (vacuum["numFiles"], len(vacuum["paths"])) == (2, 1)
        json.dumps(result)
        told = [text for text in kept.texts() if text.startswith(f"Maintenance of {uri}: ")]
        assert [text.split(": ")[1] for text in told] == ["checkpoint", "vacuum", "log_cleanup"]
        assert "checkpoint=3" in told[0]
        assert "numFiles=2" in told[1]
        entry = deltalake.DeltaTable(uri).history(1)[0]
        assert (entry["operation"], entry["tags"]["airflow.taskId"]) == ("VACUUM END", "maintain")

    def test_a_step_that_fails_fails_the_task_at_the_end(self, uri):
        operator = DeltaMaintenanceOperator(task_id="maintain", tables=[uri], min_commits=1, retention_hours=0)
        given = context(operator)
        with pytest.raises(exceptions.VacuumRetentionPeriodTooShortException):
            operator.execute(given)
        report = pushed(given)["return_value"]
        assert steps_of(report) == {"checkpoint": "done", "vacuum": "failed", "log_cleanup": "nothing"}
        assert report["numFailedSteps"] == 1
        assert checkpoints(uri) == [f"{3:020}.checkpoint.parquet"]

    def test_a_task_that_pushes_no_xcom_pushes_none_when_it_fails(self, uri):
        operator = DeltaMaintenanceOperator(task_id="maintain", tables=uri, steps="vacuum", retention_hours=0, do_xcom_push=False)
        given = context(operator)
        with pytest.raises(exceptions.VacuumRetentionPeriodTooShortException):
            operator.execute(given)
        assert "return_value" not in pushed(given)

    def test_a_table_that_is_not_there_keeps_no_other_from_its_maintenance(self, tmp_path):
        tables = [str(tmp_path / "none"), made(tmp_path / "one"), str(tmp_path / "neither")]
        operator = DeltaMaintenanceOperator(task_id="maintain", tables=tables, steps="checkpoint", min_commits=1)
        given = context(operator)
        with pytest.raises(ExceptionGroup, match="2 steps of the maintenance task 'maintain' failed") as caught:
            operator.execute(given)
        assert [type(error) for error in caught.value.exceptions] == [exceptions.DeltaTableNotFoundException] * 2
        report = pushed(given)["return_value"]
        assert [steps_of(report, number)["checkpoint"] for number in range(3)] == ["failed", "done", "failed"]

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"tables": []}, "names no table"),
            ({"tables": "/t", "steps": "vaccum"}, "'vaccum'"),
            ({"tables": "/t", "retention_hours": "a week"}, "retention_hours .*must be .* a number"),
            ({"tables": "/t", "transaction_timeout_hours": "x"}, "transaction_timeout_hours .*must be .* a number"),
        ],
    )
    def test_what_cannot_be_is_refused_before_anything_is_done(self, arguments, text):
        operator = DeltaMaintenanceOperator(task_id="maintain", tables="/t")
        for name, value in arguments.items():  # as templates may give them
            setattr(operator, name, value)

        def run():
            operator.pre_execute({})
            operator.execute(context(operator))

        with pytest.raises(exceptions.DeltaIllegalArgumentException, match=text):
            run()

    def test_killed_between_two_steps(self, uri, monkeypatch):
        operator = DeltaMaintenanceOperator(task_id="maintain", tables=uri, min_commits=1)
        tell = operator._tell_step

        def kill_after_the_first(table, report, given):
            tell(table, report, given)
            operator.on_kill()

        monkeypatch.setattr(operator, "_tell_step", kill_after_the_first)
        given = context(operator)
        with pytest.raises(exceptions.CommitCancelledException, match="between two steps"):
            operator.execute(given)
        assert steps_of(pushed(given)["return_value"]) == {
            "checkpoint": "done",
            "vacuum": "cancelled",
            "log_cleanup": "cancelled",
        }
        assert deltalake.DeltaTable(uri).version() == 3

    def test_templates(self):
        fields = set(DeltaMaintenanceOperator.template_fields)
        assert {"tables", "steps", "min_commits", "where", "z_order_by", "retention_hours", "spark_conn_id"} <= fields

    def test_small_files_become_few_in_the_worker(self, tmp_path, monkeypatch):
        from airflow_delta.tasks.spark.session import TaskSession

        monkeypatch.setattr(TaskSession, "worker", lambda *_: lambda _request: pytest.fail("no Spark is needed"))
        for engine in ("arrow", "auto"):
            path = tmp_path / engine
            for number in range(3):
                deltalake.write_deltalake(path, pa.table({"id": [number]}), mode="append")
            operator = DeltaMaintenanceOperator(task_id="maintain", tables=str(path), steps=["optimize"], engine=engine)
            assert steps_of(operator.execute(context(operator))) == {"optimize": "done"}
            assert len(deltalake.DeltaTable(path).file_uris()) == 1
            assert sorted(row["id"] for row in readers.rows(str(path))) == [0, 1, 2]
            assert steps_of(operator.execute(context(operator))) == {"optimize": "nothing"}

    @pytest.mark.spark
    def test_small_files_become_few_in_a_session_that_serves_all_tables(self, tmp_path, spark):
        tables = [made(tmp_path / "a"), made(tmp_path / "b")]
        for uri in tables:
            deltalake.write_deltalake(uri, pa.table({"id": [7]}), mode="append")
        operator = DeltaMaintenanceOperator(task_id="maintain", tables=tables, steps=["optimize"])
        result = operator.execute(context(operator))
        for number, uri in enumerate(tables):
            (step,) = result["tables"][number]["steps"]
            assert (step["status"], step["numRemovedFiles"], step["numAddedFiles"], step["version"]) == ("done", 2, 1, 5)
            assert sorted(row["id"] for row in readers.rows(uri)) == [2, 7]
        again = operator.execute(context(operator))
        assert steps_of(again) == {"optimize": "nothing"}


@pytest.mark.airflow
class TestDagRuns:
    @pytest.mark.slow
    def test_commits_without_checkpoints_and_a_maintenance_that_writes_them(self, run_dag, tables):
        uri = f"{tables}/maintained"
        for day in range(1, 6):
            run = run_dag("append_without_checkpoint", logical_date=datetime(2026, 3, day, tzinfo=UTC))
            assert run.state == "success"
        assert deltalake.DeltaTable(uri).version() == 4
        assert checkpoints(uri) == []
        run = run_dag("maintain_templated")
        assert (run.state, run.state_of("one"), run.state_of("both")) == ("failed", "success", "failed")
        assert f"{4:020}.checkpoint.parquet" in checkpoints(uri)
        report = run.xcom("both")
        assert [table["table"] for table in report["tables"]] == [uri, f"{tables}/no_such_table"]
        assert report["tables"][1]["steps"][0]["error"] == "DeltaTableNotFoundException"
        assert run.xcom("one")["numFailedSteps"] == 0
        assert len(readers.rows(uri)) == 15

    @pytest.mark.spark
    def test_the_example(self, run_dag, tables):
        names = ["maintained_orders", "maintained_customers"]
        for name in names:
            for value in range(3):
                deltalake.write_deltalake(f"{tables}/{name}", pa.table({"id": [value]}), mode="append")
        run = run_dag("delta_maintenance")
        assert run.state == "success"
        for number, name in enumerate(names):
            report = run.xcom("maintain", map_index=number)
            assert steps_of(report)["optimize"] == "done"
            assert sorted(row["id"] for row in readers.rows(f"{tables}/{name}")) == [0, 1, 2]
