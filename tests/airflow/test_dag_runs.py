"""Whole Dag runs: the real scheduler logic, execution API and task runner of ``dag.test()``, tables read back by delta-rs."""

from __future__ import annotations

import gc
import os
from datetime import UTC, datetime

import deltalake
import pyarrow as pa
import pytest

from airflow_delta.assets.delta import delta_asset
from airflow_delta.tasks.keys.mapped_value import value_name
from support import readers

pytestmark = pytest.mark.airflow

DAY = datetime(2026, 1, 1, tzinfo=UTC)
NEXT_DAY = datetime(2026, 1, 2, tzinfo=UTC)


def table(tables: str, name: str) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(f"{tables}/{name}")


def values(tables: str, name: str, column: str = "id") -> list:
    return sorted(row[column] for row in readers.rows(f"{tables}/{name}"))


def staged_files(tables: str, name: str) -> list[str]:
    return [file for _, _, files in os.walk(f"{tables}/{name}/staged") for file in files if file.endswith(".parquet")]


@pytest.fixture(scope="module")
def run(run_dag):
    """A run whose commit task dies after the log entry was written."""
    return run_dag("killed_commit")


# The garbage collector warns of a pipe that is still open, as Airflow's SparkSubmitHook leaves it.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_a_retry_cannot_change_fails_at_once(run_dag, tables):
    """Rows that do not fit, in the worker's session and in an application, and a query with a typo: one start of Spark each."""
    deltalake.write_deltalake(f"{tables}/wrong_rows", pa.table({"id": pa.array([1], pa.int64())}))
    run = run_dag("wrong_rows")
    for stage in ("here", "typo", "submitted"):
        assert (run.state_of(f"txn.{stage}"), run.tries_of(f"txn.{stage}")) == ("failed", 1), stage
    assert (run.state, run.state_of("txn.commit")) == ("failed", "upstream_failed")


class TestKilledCommit:
    def test_the_retry_finds_its_own_commit(self, run, tables):
        assert (run.state, run.tries_of("txn.commit")) == ("success", 2)
        assert table(tables, "killed_commit").version() == 0
        assert values(tables, "killed_commit") == [1, 2, 3]
        result = run.xcom("txn.commit")
        assert (result["version"], result["committedBefore"], result["numRecords"]) == (0, True, 3)

    def test_the_asset_event_is_emitted_once_with_what_was_committed(self, run, tables):
        ((uri, extra),) = run.events()
        handle = run.xcom("txn.start")
        assert uri == delta_asset(f"{tables}/killed_commit").uri
        expected = {
            "version": 0,
            "read_version": -1,
            "operation": "WRITE",
            "table": handle["table"],
            "transaction_id": handle["transactionId"],
            "app_id": "killed_commit/txn/" + run.run_id + "/-1",
            "num_files": 1,
            "num_records": 3,
            "partitions": [],
            "committed_before": True,
        }
        assert {key: extra[key] for key in expected} == expected
        assert abs(extra["timestamp"] / 1000 - datetime.now(UTC).timestamp()) < 600

    def test_abort_leaves_a_committed_transaction_alone(self, run, tables):
        assert run.xcom("txn.abort")["outcome"] == "committed"
        assert len(staged_files(tables, "killed_commit")) == 1

    def test_commit_info_names_the_task(self, run, tables):
        (entry,) = table(tables, "killed_commit").history()
        tags = entry["tags"]
        assert tags["airflow.dagId"] == "killed_commit"
        assert tags["airflow.runId"] == run.run_id
        assert tags["airflow.taskId"] == "txn.commit"
        assert (tags["airflow.tryNumber"], tags["airflow.mapIndex"]) == ("1", "-1")


KILLED = [
    # policy, state after a clear, versions of the table by then
    ("skip", "success", 3),
    ("replace", "success", 5),
    ("append", "success", 5),
    ("fail", "failed", 3),
]


@pytest.mark.slow
@pytest.mark.parametrize(("day", "policy", "state", "versions"), [(day, *row) for day, row in enumerate(KILLED, 1)])
def test_the_retry_of_an_operation_finds_its_own_commit_whatever_the_policy(
    run_dag, clear_and_run, tables, day, policy, state, versions
):
    name = f"killed_alone_{policy}"
    deltalake.write_deltalake(f"{tables}/{name}", pa.table({"id": pa.array([1], pa.int64())}))
    run = run_dag("killed_alone", datetime(2026, 1, day, tzinfo=UTC), policy=policy, killed=[1, 3])
    assert run.state == "success"
    for task_id, version in (("altered", 1), ("restored", 2)):
        result = run.xcom(task_id)
        assert (run.tries_of(task_id), result["version"], result["committedBefore"]) == (2, version, True)
    assert table(tables, name).version() == 2

    run = clear_and_run(run, "altered", "restored")  # its first try is killed as well
    assert run.state == state
    assert table(tables, name).version() + 1 == versions


def test_a_job_that_is_retried_publishes_its_last_try_alone(run_dag, tables):
    run = run_dag("killed_job")
    assert (run.state, run.tries_of("txn.write")) == ("success", 2)
    assert values(tables, "killed_job") == [1, 2, 3]
    assert len(staged_files(tables, "killed_job")) == 2  # the first try's is there, and in no version


RERUNS = [
    # policy, state of the second run, version, values, files that the second run staged
    ("skip", "success", 0, [1, 2, 3]),
    ("replace", "success", 1, [1, 2, 3]),
    ("append", "success", 1, [1, 1, 2, 2, 3, 3]),
    ("fail", "failed", 0, [1, 2, 3]),
]


@pytest.mark.parametrize(
    ("day", "policy", "state", "version", "rows"),
    [pytest.param(day, *row, marks=pytest.mark.slow if day > 1 else ()) for day, row in enumerate(RERUNS, 1)],
)
def test_the_same_key_again(run_dag, tables, day, policy, state, version, rows):
    date = datetime(2026, 1, day, tzinfo=UTC)
    first = run_dag("rerun", date, policy=policy, key="the-key")
    second = run_dag("rerun", date, policy=policy, key="the-key")
    assert (first.state, second.state) == ("success", state)
    assert table(tables, f"rerun_{policy}").version() == version
    assert values(tables, f"rerun_{policy}") == rows
    if policy == "skip":
        assert second.xcom("txn.stage")["alreadyCommitted"]
        assert second.xcom("txn.stage")["numRecords"] == 3
        assert second.xcom("txn.commit")["committedBefore"]
    if policy == "fail":
        assert second.tries_of("txn.start") == 1
    # A templated table has no static asset; the alias names the table when it is known.
    events = second.events()
    assert {uri for uri, _ in events} == {delta_asset(f"{tables}/rerun_{policy}").uri}
    assert [extra["version"] for _, extra in events] == ([0] if policy == "fail" else [0, version])
    assert {extra["app_id"] for _, extra in events} == {"the-key"}


def test_a_member_that_did_not_report_stops_the_commit(run_dag, tables):
    run = run_dag("missing_member")
    assert [run.state_of("txn.stage", i) for i in range(3)] == ["success", "skipped", "success"]
    assert run.state == "failed"
    assert (run.state_of("txn.commit"), run.tries_of("txn.commit")) == ("failed", 1)
    assert not deltalake.DeltaTable.is_deltatable(f"{tables}/mapped_False")
    assert run.xcom("txn.abort")["outcome"] == "deleted"
    assert staged_files(tables, "mapped_False") == []


@pytest.mark.slow
def test_a_skipped_member_that_the_author_allows(run_dag, tables):
    run = run_dag("skipped_member")
    assert run.state == "success"
    assert values(tables, "mapped_True") == [1, 3]


@pytest.mark.slow
def test_what_removed_and_skipped_instances_left_in_xcom_is_ignored(run_dag, clear_and_run, tables):
    """A mapped stage shrinks and another is skipped, while their reports of before are still there."""
    values_of = ("paths", "stage", "part.write_more", "part.stage", "choose", "write_extra", "extra")
    after = ("emptied", "audit", "commit")
    run = run_dag("changing", numbers=[1, 2, 3], write_extra=True, emptied=False, max_rows=0)
    assert (run.state_of("audit"), run.state_of("commit")) == ("failed", "upstream_failed")

    # Start is kept: the reports are of the same transaction. The audit sees what the commit publishes.
    run = clear_and_run(run, *values_of, *after, numbers=[1, 2], write_extra=False, max_rows=4)
    assert run.state == "success"
    assert [run.state_of("stage", 2), run.state_of("part.stage", 2), run.state_of("extra")] == ["removed", "removed", "skipped"]
    assert run.xcom("stage", 2)["transactionId"] == run.xcom("extra")["transactionId"] == run.xcom("start")["transactionId"]
    assert values(tables, "changing") == [1, 2, 101, 102]

    # Start is cleared as well: they are of another transaction.
    run = clear_and_run(run, "start", *values_of, *after, numbers=[5], max_rows=2)
    assert run.state == "success"
    assert run.xcom("stage", 1)["transactionId"] != run.xcom("start")["transactionId"]
    assert values(tables, "changing") == [1, 2, 5, 101, 102, 105]

    # A stage that builds on the others builds on what counts.
    run = clear_and_run(run, "start", *values_of, *after, numbers=[7], emptied=True)
    assert run.state == "success"
    assert len(run.xcom("emptied")["after"]) == 2
    assert values(tables, "changing") == []

    # The report of an instance that did succeed, for another transaction, is an error.
    run = clear_and_run(run, "start", "commit")
    assert run.state_of("commit") == "failed"
    assert table(tables, "changing").version() == 2


@pytest.mark.slow
def test_the_key_of_an_expanded_group_names_the_value_not_the_index(run_dag, clear_and_run, tables):
    deltalake.write_deltalake(f"{tables}/each_altered", pa.table({"id": pa.array([1], pa.int64())}))
    run = run_dag("each", numbers=[1, 2, 3, 3])  # equal values are two pieces of work
    assert run.state == "success"
    keys = [run.xcom("load.txn.start", index)["appId"].rpartition("/")[2] for index in range(4)]
    assert keys == ["number=1", "number=2", "number=3", "number=3#2"]
    assert values(tables, "each") == [1, 2, 3, 3]
    assert table(tables, "each_altered").version() == 4

    everything = {task_id for task_id, _ in run.tasks}
    run = clear_and_run(run, *everything, numbers=[9, 1, 3, 2, 3])
    assert run.state == "success"
    assert values(tables, "each") == [1, 2, 3, 3, 9]
    assert table(tables, "each_altered").version() == 5
    assert table(tables, "each_altered").metadata().configuration["of"] == "9"


def test_a_conflict_is_final(run_dag, tables):
    deltalake.write_deltalake(f"{tables}/conflict", pa.table({"id": pa.array([1, 2], pa.int64())}))
    run = run_dag("conflict")
    assert (run.state_of("txn.commit"), run.tries_of("txn.commit")) == ("failed", 1)
    assert table(tables, "conflict").version() == 1
    assert values(tables, "conflict") == []
    assert run.xcom("txn.abort")["outcome"] == "deleted"


def test_a_transaction_for_each_index_of_a_mapped_group(run_dag, tables):
    run = run_dag("per_region")
    assert run.state == "success"
    keys = [run.xcom("region.txn.start", index)["appId"] for index in range(2)]
    names = [value_name({"name": f"{tables}/region_{name}"}, "region.txn") for name in "ab"]
    assert keys == [f"per_region/region.txn/{run.run_id}/{name}" for name in names]
    assert values(tables, "region_a") == values(tables, "region_b") == [1]


@pytest.mark.spark
class TestSparkInTheWorker:
    def test_the_dag_of_the_design(self, run_dag, tables):
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        run = run_dag("flights", datetime(2013, 1, 1, tzinfo=UTC))
        assert run.state == "success"
        # The first try had written its files: they are not in the table, and the second one's are once.
        assert run.tries_of("flights.transform") == 2
        assert values(tables, "design_flights") == [0, 1, 2, 3, 4]
        assert table(tables, "design_flights").version() == 0
        staged = run.xcom("flights.transform")
        assert staged["replaceWhere"] == "month = '2013-01-01'"
        assert staged["attempt"].startswith("2-")
        assert SparkSession.getActiveSession() is session, "a task stops the session that it made, and no other"

    @pytest.mark.slow
    def test_reading_the_table_in_a_session_that_is_there(self, run_dag, tables, spark):
        first, second = run_dag("read_and_write", DAY), run_dag("read_and_write", NEXT_DAY)
        assert (first.state, second.state) == ("success", "success")
        assert values(tables, "read_and_write") == [10, 11, 12, 13, 14, 15]
        assert first.xcom("txn.more")["reads"]["predicates"] == []
        assert second.xcom("txn.more")["reads"]["predicates"] == ["id >= 0"]
        assert not second.xcom("txn.more")["reads"]["wholeTable"]
        assert spark.range(1).count() == 1

    @pytest.mark.slow
    def test_a_stage_that_returns_no_dataframe(self, run_dag, tables):
        run = run_dag("no_dataframe")
        assert run.state_of("txn.count") == "failed"
        assert run.state_of("txn.commit") == "upstream_failed"
        assert not deltalake.DeltaTable.is_deltatable(f"{tables}/no_dataframe")


@pytest.mark.spark
class TestExamples:
    def test_quick_start(self, run_dag, tables):
        assert run_dag("delta_quick_start", DAY).state == "success"
        rerun = run_dag("delta_quick_start", DAY)
        assert rerun.xcom("events.commit")["committedBefore"]
        assert run_dag("delta_quick_start", NEXT_DAY).state == "success"
        assert run_dag("delta_quick_start", None).state == "success", "triggered without a date"
        days = table(tables, "events").to_pyarrow_table().column("day").value_counts().to_pylist()
        assert sorted(day["counts"] for day in days) == [100, 100, 100]
        assert table(tables, "events").version() == 2

    @pytest.mark.slow
    def test_monthly_backfill(self, run_dag, tables):
        for month_after in (3, 2, 3):
            assert run_dag("delta_monthly_backfill", datetime(2013, month_after, 1, tzinfo=UTC)).state == "success"
        months = table(tables, "flights").to_pyarrow_table().column("month").value_counts().to_pylist()
        assert {str(month["values"]): month["counts"] for month in months} == {"2013-01-01": 28, "2013-02-01": 28}
        assert table(tables, "flights").version() == 2

    @pytest.mark.slow
    def test_mapped_fan_in(self, run_dag, tables):
        run = run_dag("delta_mapped_fan_in")
        assert run.state == "success"
        assert table(tables, "sales").version() == 0
        stores = table(tables, "sales").to_pyarrow_table().column("store").value_counts().to_pylist()
        assert {store["values"]: store["counts"] for store in stores} == {"north": 10, "south": 20, "west": 30}
        ((_, extra),) = run.events()
        assert sorted(partition["store"] for partition in extra["partitions"]) == ["north", "south", "west"]

    @pytest.mark.slow
    def test_write_audit_publish(self, run_dag, tables):
        failed = run_dag("delta_write_audit_publish", DAY, reject_above=50)
        assert (failed.state, failed.state_of("measurements.audit")) == ("failed", "failed")
        assert failed.state_of("measurements.commit") == "upstream_failed"
        assert not deltalake.DeltaTable.is_deltatable(f"{tables}/measurements")
        assert failed.xcom("measurements.abort")["outcome"] == "deleted"
        assert staged_files(tables, "measurements") == []
        assert failed.events() == []

        assert run_dag("delta_write_audit_publish", NEXT_DAY, reject_above=100).state == "success"
        assert len(values(tables, "measurements", "sensor")) == 100

    # The garbage collector warns of a pipe that is still open, as Airflow's SparkSubmitHook leaves it.
    @pytest.mark.slow
    def test_spark_submit(self, run_dag, tables):
        run = run_dag("delta_spark_submit")
        gc.collect()
        assert run.state == "success"
        rows = table(tables, "daily_totals").to_pyarrow_table()
        assert (rows.num_rows, sum(rows.column("cents").to_pylist())) == (7, 999 * 500)
        assert run.xcom("totals.daily_totals")["numRecords"] == 7
