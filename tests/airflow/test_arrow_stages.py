"""``@task.delta_stage(engine="arrow")``: Dag runs without Spark, and what is said when the Dag is parsed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk import task

from airflow_delta.contract.kinds import BYTES, taken
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.log import DeltaLog
from airflow_delta.operators.arrow import DeltaStageArrowOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.table.start.begin import begin
from support import readers
from support.running_tasks import context

HERE = Path(__file__).parent

WITHOUT_SPARK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "polars"):
            raise ModuleNotFoundError(f"blocked: {name}")

sys.meta_path.insert(0, Blocked())
from datetime import UTC, datetime
from airflow.dag_processing.dagbag import DagBag
from support.dag_runs import only_its_file

bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
for dag_id in sys.argv[2:]:
    with only_its_file(bag.dags[dag_id]):
        run = bag.dags[dag_id].test(logical_date=datetime(2026, 1, 1, tzinfo=UTC), run_after=datetime(2026, 1, 1, tzinfo=UTC))
    print("ended", dag_id, run.state.value)
import psutil
print("java", "pyspark" in sys.modules, [child.name() for child in psutil.Process().children(recursive=True)])
"""


def run_without_spark(file: Path, *dags: str) -> None:
    """Run Dags of a file one after the other, for one date, where there is no Java, and PySpark cannot be imported."""
    path = os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if not shutil.which("java", path=folder))
    env = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"}
    env.pop("JAVA_HOME", None)
    code = [sys.executable, "-c", WITHOUT_SPARK, str(file), *dags]
    done = subprocess.run(code, env=env, capture_output=True, text=True, check=False, timeout=300)
    ended = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ended ")]
    assert ended == [[dag_id, "success"] for dag_id in dags], done.stdout[-3000:] + done.stderr[-3000:]
    assert "java False []" in done.stdout


@pytest.mark.airflow
def test_dag_runs_without_spark_and_without_java(airflow_database, tables, run_dag):
    run_without_spark(HERE / "dags/arrow_dags.py", "arrow_stages", "arrow_reads", "arrow_changes", "arrow_sources")
    rows = sorted((row["id"], row["part"]) for row in readers.rows(f"{tables}/arrow_stages"))
    assert rows == [(2, "a"), (2, "b"), (10, "c"), (10, "d")]
    changed = sorted((row["id"], row["part"]) for row in readers.rows(f"{tables}/arrow_changes"))
    assert changed == [(1, "a"), (3, "b"), (5, "a!"), (7, "c")]
    assert len(readers.files(f"{tables}/arrow_changes")) == 1
    versions = sorted((row["id"], row["part"], row["is_current"]) for row in readers.rows(f"{tables}/arrow_versions"))
    assert versions == [(i, f"{p}{n}", n == 2) for i, p in ((1, "A"), (3, "B"), (5, "A!")) for n in (1, 2)]

    failed = run_dag("arrow_wrong")
    assert (failed.state, failed.state_of("txn.wrong"), failed.tries_of("txn.wrong")) == ("failed", "failed", 1)


@pytest.mark.airflow
def test_the_example_without_spark_is_the_same_when_it_runs_again(airflow_database, tables):
    file = HERE.parents[1] / "dags_examples" / "delta_without_spark.py"
    table = f"{tables}/small_orders"
    cents = {f"2026-01-01/{number}": 100 * number for number in range(100) if number % 10 != 9}
    cents |= {"2026-01-01/1": 150, "2026-01-01/100": 7}
    for _ in range(2):
        run_without_spark(file, "delta_without_spark")
        rows = readers.rows(table)
        assert len(rows) == 91
        assert {row["id"]: row["cents"] for row in rows} == cents
        assert {row["state"] for row in rows} == {"paid"}
        assert len(readers.files(table)) == 1
    operations = [commit["operation"] for commit in deltalake.DeltaTable(table).history()]
    assert operations[::-1][:4] == ["WRITE", "MERGE", "DELETE", "OPTIMIZE"]
    assert operations.count("WRITE") == 1


@pytest.mark.airflow
def test_reads_are_recorded_for_the_conflict_check(run_dag, tables):
    """The commit of a stage that read rows, or the whole table, knows of it, as for a stage on Spark."""
    from airflow_delta.contract.payloads import DeclaredReads, StagedWrite
    from airflow_delta.operators.arrow import ArrowTableReader
    from airflow_delta.operators.pyspark import TableReader
    from airflow_delta.table.stage.stage_view import open_stage

    log = DeltaLog.for_table(f"{tables}/arrow_stages")
    view = open_stage(log, begin(log, transaction_key="reads"), task_id="stage", attempt="1-aaaaaaaa")
    staged = StagedWrite(
        transaction_id=view.handle.transaction_id,
        stage="s",
        task_id="s",
        attempt="1",
        mode="append",
        schema_string="{}",
        reads=DeclaredReads(),
    )
    table = ArrowTableReader(view)
    assert table.add_reads(staged) == staged
    table.read("part = 'a'", columns=["id"])
    assert table.add_reads(staged).reads == DeclaredReads(predicates=("part = 'a'",), scanned=("part = 'a'",))
    assert len(table()) == 4
    assert table.add_reads(staged).reads.whole_table
    assert issubclass(TableReader, ArrowTableReader.__mro__[1])


async def slowly(transaction, start, templates_dict):
    await asyncio.sleep(0)
    assert templates_dict == {"a": "b"}
    return pa.table({"id": [start, transaction.read_version]})


def test_an_async_function_stages_its_rows(tmp_path, outside_of_the_task_runner):
    """Its own arguments are bound as Airflow's operator binds them."""
    handle = begin(DeltaLog.for_table(str(tmp_path / "t")), transaction_key="async")
    operator = DeltaStageArrowOperator(
        task_id="rows", python_callable=slowly, transaction=handle.to_dict(), op_kwargs={"start": 7}, templates_dict={"a": "b"}
    )
    assert operator.execute(context(operator))["numRecords"] == 2


def test_what_a_stage_cannot_be_is_said_when_the_dag_is_parsed():
    with pytest.raises(DeltaIllegalArgumentException, match="engine is 'duckdb'; it is one of 'spark', 'arrow'"):

        @task.delta_stage(engine="duckdb")
        def unknown():
            pass

    @task.delta_stage(engine="arrow")
    def with_spark(spark):
        return spark

    with pytest.raises(DeltaIllegalArgumentException, match=r"'with_spark' has engine=\"arrow\".*parameter spark"):
        with_spark()

    @task.delta_merge(table="/lake/t", condition="target.id = source.id", engine="arrow")
    def merges_with_spark(spark):
        return spark

    with pytest.raises(DeltaIllegalArgumentException, match=r"'merges_with_spark' has engine=\"arrow\".*parameter spark"):
        merges_with_spark()
    with pytest.raises(DeltaIllegalArgumentException, match="engine is 'duckdb'; it is one of 'spark', 'arrow'"):
        task.delta_merge(engine="duckdb")


@pytest.mark.s3
def test_on_an_object_store(s3_lake):
    from airflow_delta.table.arrow.stage_rows import stage_arrow
    from airflow_delta.table.commit.publish import publish
    from airflow_delta.table.stage.stage_view import open_stage
    from airflow_delta.table.stage.write.collect import collect_stage
    from airflow_delta.table.stage.write.plan import plan_stage
    from airflow_delta.table.start.begin import begin

    hook = DeltaHook("lake")
    log = hook.get_log("staged")
    rows = pa.table({"id": pa.array(range(1000)), "p": pa.array([f"p {i % 3}" for i in range(1000)])})
    handle = begin(log, transaction_key="one", partition_by=["p"])
    view = open_stage(log, handle, task_id="stage", attempt="1-aaaaaaaa", spark_table_uri=log.uri)
    request = plan_stage(view)
    staged = collect_stage(view, request, stage_arrow(log, rows, request))
    assert not log.table_exists()
    publish(hook.get_log("staged"), handle, [staged], attempt="1-bbbbbbbb")
    options = {**hook.storage_options("s3://lake/staged"), "aws_allow_http": "true"}
    found = deltalake.DeltaTable("s3://lake/staged", storage_options=options).to_pyarrow_table()
    assert found.sort_by("id").to_pylist() == rows.to_pylist()
    assert hook.get_df("staged", where="p = 'p 1'").num_rows == 333


@pytest.mark.parametrize("given", [{"spark_submit": {}}, {"application": "/jobs/work.py"}], ids=lambda given: next(iter(given)))
def test_the_worker_submits_nothing(given):
    with pytest.raises(DeltaIllegalArgumentException, match=f"{next(iter(given))} is for Spark"):
        DeltaDeleteOperator(task_id="gone", table="/lake/t", predicate="id = 1", engine="arrow", **given)


@pytest.mark.parametrize(("given", "size"), [(100, 100), ("2 GiB", 2 << 30), ("512mb", 512 << 20), ("64k", 1 << 16), ("", None)])
def test_how_much_memory_the_worker_may_take(given, size):
    assert taken("max_memory", given, BYTES) == size
    DeltaDeleteOperator(task_id="gone", table="/lake/t", predicate="id = 1", engine="arrow", max_memory=given)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"max_memory": "2 GiB"}, 'max_memory is for what the worker does itself. Leave it out, or set engine="arrow"'),
        ({"engine": "arrow", "max_memory": "much"}, "max_memory must be bytes, as a whole number above 0 or with a unit"),
        ({"engine": "arrow", "max_memory": 0}, "max_memory must be bytes"),
        ({"engine": "arrow", "max_memory": "-1 GiB"}, "max_memory must be bytes"),
    ],
    ids=["spark", "no size", "nothing", "negative"],
)
def test_memory_that_a_task_cannot_be_given(given, what):
    with pytest.raises(DeltaIllegalArgumentException, match=re.escape(what)):
        DeltaDeleteOperator(task_id="gone", table="/lake/t", predicate="id = 1", **given)
