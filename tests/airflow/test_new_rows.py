"""Stages that read the new rows of another table: Dag runs one after the other, and what is refused."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowSkipException
from deltalake import DeltaTable, write_deltalake

from airflow_delta import delta_transaction
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log import DeltaLog
from airflow_delta.operators.arrow import DeltaStageArrowOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.sql import DeltaStageSqlOperator
from support import readers
from support.running_tasks import context
from support.watching import start

pytestmark = [pytest.mark.airflow]

DAYS = [datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 9)]


@pytest.fixture
def source(tables):
    """A function that adds rows to the source."""
    path = f"{tables}/new_rows_source"
    shutil.rmtree(path, ignore_errors=True)

    def add(*ids: int) -> None:
        write_deltalake(path, pa.table({"id": pa.array(ids, pa.int64())}), mode="append")

    for name in ("arrow", "skip", "sql", "merge", "pyspark", "submitted"):
        shutil.rmtree(f"{tables}/new_rows_{name}", ignore_errors=True)
    return add


def ids(path: str) -> list[int]:
    return sorted(row["id"] for row in readers.rows(path))


def test_runs_one_after_the_other(run_dag, clear_and_run, tables, source):
    source(1, 2)
    first = run_dag("new_rows_arrow", DAYS[0])
    source(3)
    second = run_dag("new_rows_arrow", DAYS[1], fails=4)
    assert (second.state, second.tries_of("load.rows")) == ("success", 2)
    assert ids(f"{tables}/new_rows_arrow") == [1, 2, 3], "the second try reads what the first one did"
    third = run_dag("new_rows_arrow", DAYS[2])
    assert (first.state, third.state) == ("success", "success")
    assert ids(f"{tables}/new_rows_arrow") == [1, 2, 3, 4]

    source(5)
    cleared = clear_and_run(third, "load.start", "load.rows", "load.commit", "load.abort")
    assert (cleared.state, ids(f"{tables}/new_rows_arrow")) == ("success", [1, 2, 3, 4]), "its key is committed"
    (position,) = second.xcom("load.rows")["sources"]
    assert (position["consumer"], position["before"], position["first"], position["version"]) == ("new_rows_arrow/load", 0, 1, 1)


@pytest.mark.slow
def test_a_run_without_new_rows_may_be_skipped(run_dag, tables, source):
    source(1)
    run_dag("new_rows_skip", DAYS[0])
    run = run_dag("new_rows_skip", DAYS[1])
    assert (run.state_of("load.if_any"), run.state_of("load.commit")) == ("skipped", "skipped")
    assert DeltaTable(f"{tables}/new_rows_skip").version() == 0


@pytest.mark.spark
@pytest.mark.slow
def test_in_sql_of_a_stage_and_of_a_merge_and_in_a_function(run_dag, tables, source, spark):
    source(1, 2)
    write_deltalake(f"{tables}/new_rows_merge", pa.table({"kind": pa.array([0], pa.int64()), "found": pa.array([0], pa.int64())}))
    dags = ("new_rows_sql", "new_rows_merge", "new_rows_pyspark")
    assert [run_dag(dag, DAYS[0]).state for dag in dags] == ["success"] * 3
    source(3)
    source(5)
    DeltaTable(f"{tables}/new_rows_source").optimize.compact()
    assert [run_dag(dag, DAYS[1]).state for dag in dags] == ["success"] * 3
    assert [run_dag(dag, DAYS[2]).state for dag in dags] == ["success"] * 3
    rows = sorted((row["id"], row["day"]) for row in readers.rows(f"{tables}/new_rows_sql"))
    assert rows == [(1, "2026-01-01"), (2, "2026-01-01"), (3, "2026-01-02"), (5, "2026-01-02")]
    assert sorted((row["kind"], row["found"]) for row in readers.rows(f"{tables}/new_rows_merge")) == [(0, 1), (1, 3)]
    assert ids(f"{tables}/new_rows_pyspark") == [1, 2, 3, 5]
    app_ids = DeltaLog.for_table(f"{tables}/new_rows_merge").update().transactions
    assert sum(app_id.startswith("airflow.newRows/new_rows_merge/merge/") for app_id in app_ids) == 1


@pytest.mark.spark
@pytest.mark.slow
def test_in_a_submitted_application(run_dag, tables, source):
    source(1, 2)
    assert run_dag("new_rows_submitted", DAYS[0]).state == "success"
    source(3)
    assert run_dag("new_rows_submitted", DAYS[1]).state == "success"
    assert ids(f"{tables}/new_rows_submitted") == [1, 2, 3]
    assert DeltaTable(f"{tables}/new_rows_submitted").transaction_version(_position_of(f"{tables}/new_rows_submitted")) == 1


def _position_of(path: str) -> str:
    (app_id,) = (each for each in DeltaLog.for_table(path).update().transactions if each.startswith("airflow.newRows/"))
    return app_id


@pytest.mark.usefixtures("outside_of_the_task_runner")
class TestWhatIsRefused:
    @pytest.fixture
    def stage(self, tmp_path, monkeypatch):
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "delta", "host": str(tmp_path)}))
        write_deltalake(str(tmp_path / "events"), pa.table({"id": pa.array([1], pa.int64())}))

        def run(function: Any = None, *, cls: Any = DeltaStageArrowOperator, **arguments: Any) -> dict[str, Any]:
            handle = start(str(tmp_path / "facts"), transaction_key="mine", delta_conn_id="lake")
            if function is not None:
                arguments["python_callable"] = function
            operator = cls(task_id="stage", transaction=handle, delta_conn_id="lake", **arguments)
            return operator.execute(context(operator))

        return run

    def test_a_name_below_the_base_path(self, stage):
        staged = stage(lambda table: table.new_rows("events", consumer="me"))
        assert (staged["numRecords"], staged["sources"][0]["consumer"]) == (1, "me")

    def test_a_consumer_that_the_dag_file_does_not_tell(self, stage):
        with pytest.raises(DeltaIllegalArgumentException, match="Give new_rows a consumer"):
            stage(lambda table: table.new_rows("events"))

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"since": 3}, "unknown: since"),
            ({"consumer": ""}, "consumer of .* is '': its template has no value"),
            ({"starting_version": "None"}, "starting_version of .* is 'None'"),
            ({"starting_version": "first"}, "must be a whole number, got 'first'"),
            ({"assume_new": "perhaps"}, "must be true or false, got 'perhaps'"),
        ],
    )
    def test_options(self, stage, options, why):
        with pytest.raises(DeltaIllegalArgumentException, match=why):
            stage(lambda table: table.new_rows("events", **{"consumer": "me", **options}))

    def test_options_that_a_template_made_into_text(self, stage):
        options = {"consumer": "me", "starting_version": "0", "assume_new": "False", "skip_if_none": None}
        assert stage(lambda table: table.new_rows("events", **options))["sources"][0]["first"] == 0
        with pytest.raises(AirflowSkipException, match="has no new rows for 'other'"):
            stage(lambda table: table.new_rows("events", consumer="other", starting_version="1", skip_if_none="true"))

    def test_the_first_run_from_the_latest_version_on_is_not_skipped(self, stage):
        """Its commit records which version that is: else the next run would begin anew, and never read anything."""
        staged = stage(lambda table: table.new_rows("events", consumer="me", starting_version="latest", skip_if_none=True))
        assert (staged["numRecords"], staged["sources"][0]["version"]) == (0, 0)

    def test_what_sql_would_not_read(self, stage):
        with pytest.raises(DeltaIllegalArgumentException, match="'stage' has new_rows: views for the SQL"):
            stage(cls=DeltaMergeOperator, source={"format": "csv", "path": "/x"}, condition="true", new_rows="events")

    @pytest.mark.parametrize("value", ["", [], {"events": {"nothing": 1}}, {"None": {}}, 7, "events"])
    def test_no_tables(self, stage, value):
        with pytest.raises(DeltaIllegalArgumentException, match="new_rows"):
            stage(lambda table: None, new_rows=value)

    @pytest.mark.spark
    @pytest.mark.slow
    def test_views_that_the_sql_does_not_name(self, stage, spark):
        with pytest.raises(DeltaIllegalArgumentException, match="the view 'events', but the SQL does not name it"):
            stage(cls=DeltaStageSqlOperator, sql="SELECT 1", new_rows={"events": {"consumer": "me"}})

    def test_a_mapped_transaction_without_a_consumer(self, stage, tmp_path):
        with DAG("mapped", schedule=None) as dag:

            @task.delta_stage(engine="arrow")
            def rows(table):
                return table.new_rows("events")

            @task
            def sources():
                return ["a", "b"]

            from airflow.sdk import task_group

            @task_group
            def each(source):
                with delta_transaction("load", table=f"{tmp_path}/{{{{ source }}}}", transaction_key="x", delta_conn_id="lake"):
                    rows()

            each.expand(source=sources())
        from airflow_delta.tasks.stage.new_rows import SourceTables
        from airflow_delta.tasks.stage.work import StageWork

        stage = dag.task_dict["each.load.rows"]
        work = StageWork.of(stage)
        work.context = context(stage, dag=dag)
        with pytest.raises(DeltaIllegalArgumentException, match="its transaction is mapped"):
            SourceTables(work, {})._default_consumer()
