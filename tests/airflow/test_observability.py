"""What the tasks tell while they work: metrics over a real statsd socket, log lines, progress of long stages."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk import BaseOperator

from airflow_delta import exceptions
from airflow_delta.contract.request import StageRequest
from airflow_delta.log import DeltaLog
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.restore import DeltaRestoreOperator
from airflow_delta.operators.transaction import DeltaAbortOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from airflow_delta.tasks.commit.commit_part import CommitParameters
from airflow_delta.tasks.commit.races import watched_commit
from airflow_delta.tasks.observability import TaskMetrics, tag_value
from airflow_delta.tasks.spark.progress import spark_work
from airflow_delta.transaction import CommitPolicy, Operation, events
from support.running_tasks import context
from support.watching import Lines, Metric, airflow_statsd, commit, stage, start  # noqa: F401

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")


@pytest.fixture
def uri(tmp_path) -> str:
    return str(tmp_path / "table")


@pytest.fixture
def lines(monkeypatch) -> Lines:
    """The lines of every operator of the provider."""
    from airflow_delta.tasks.base import DeltaOperator

    kept = Lines()
    for operator in (DeltaOperator, DeltaAbortOperator):
        monkeypatch.setattr(operator, "log", kept, raising=False)
    from airflow_delta.operators.transaction import DeltaStartTransactionOperator

    monkeypatch.setattr(DeltaStartTransactionOperator, "log", kept, raising=False)
    return kept


def values(found: list[Metric], **tags: str) -> dict[str, float]:
    """Sum of each metric with these tags; timers count how often they came."""
    sums: dict[str, float] = {}
    for metric in found:
        if all(metric.tags.get(key) == value for key, value in tags.items()):
            sums[metric.name] = sums.get(metric.name, 0) + (1 if metric.kind == "ms" else metric.value)
    return sums


class TestMetrics:
    def test_a_transaction(self, uri, statsd):
        handle = start(uri)
        _, staged = stage(handle, [1, 2, 3])
        operator = commit(handle, staged)
        result = operator.execute(context(operator))
        found = statsd.received()
        size = result["numBytes"]
        assert values(found, task_id="start") == {"delta.start": 1}
        assert values(found, task_id="stage") == {
            "delta.stage.duration": 1,
            "delta.stage.files": 1,
            "delta.stage.removed_files": 0,
            "delta.stage.rows": 3,
            "delta.stage.bytes": size,
        }
        assert values(found, task_id="commit") == {
            "delta.commit.duration": 1,
            "delta.commit.attempts": 1,
            "delta.commit.versions_checked": 0,
            "delta.commit.files": 1,
            "delta.commit.removed_files": 0,
            "delta.commit.rows": 3,
            "delta.commit.bytes": size,
        }
        assert {metric.tags["table"] for metric in found} == {tag_value(uri)}
        assert {metric.tags["dag_id"] for metric in found} == {"a_dag"}
        assert next(metric for metric in found if metric.name == "delta.commit.files").tags["operation"] == "WRITE"

    def test_a_commit_that_is_found_is_not_counted_twice(self, uri, statsd):
        handle = start(uri)
        _, staged = stage(handle)
        for _ in range(2):
            operator = commit(handle, staged)
            operator.execute(context(operator))
        counted = values(statsd.received(), task_id="commit")
        assert (counted["delta.commit.found"], counted["delta.commit.attempts"], counted["delta.commit.files"]) == (1, 1, 1)

    def test_a_key_that_is_committed(self, uri, statsd):
        _, staged = stage(handle := start(uri, transaction_key="k"))
        operator = commit(handle, staged)
        operator.execute(context(operator))
        statsd.received()
        start(uri, transaction_key="k")
        assert values(statsd.received()) == {"delta.start": 1, "delta.start.found": 1}

    def test_a_conflict_is_counted_by_its_kind(self, uri, statsd):
        deltalake.write_deltalake(uri, pa.table({"id": [1]}))
        handle = start(uri)
        _, staged = stage(handle, [2], mode="overwrite")
        deltalake.DeltaTable(uri).delete()
        operator = commit(handle, staged)
        with pytest.raises(exceptions.DeltaConcurrentModificationException) as caught:
            operator.execute(context(operator))
        found = [metric for metric in statsd.received() if metric.name == "delta.commit.conflict"]
        assert [(metric.value, metric.tags["kind"]) for metric in found] == [(1, type(caught.value).__name__)]

    def test_a_conflict_that_ends_in_a_new_beginning_counts_as_well(self, uri, statsd):
        """A DELETE that reads the table, once interrupted by another commit, begins again and succeeds."""
        deltalake.write_deltalake(uri, pa.table({"id": [1], "n": [1]}), partition_by=["id"])

        class Interrupted(DeltaDeleteOperator):
            """Another writer adds what this DELETE should have read, right after its first plan."""

            plans = 0

            def plan_stage(self, stage):
                planned = super().plan_stage(stage)
                type(self).plans += 1
                if type(self).plans == 1:
                    deltalake.write_deltalake(uri, pa.table({"id": [2], "n": [2]}), mode="append")
                return planned

        operator = Interrupted(task_id="delete", table=uri, predicate="id > 0", max_restarts=1)
        result = operator.execute(context(operator))
        assert (Interrupted.plans, result["numRemovedFiles"]) == (2, 2)
        counted = values(statsd.received(), task_id="delete")
        assert counted["delta.commit.conflict"] == 1
        assert (counted["delta.start"], counted["delta.commit.removed_files"], counted["delta.commit.duration"]) == (2, 2, 1)

    def test_the_attempts_of_a_commit_that_gives_up(self, uri, statsd):
        """The table that too many writers want shows in the attempts; those that got nowhere are the ones that matter."""
        deltalake.write_deltalake(uri, pa.table({"id": [1]}))
        log = DeltaLog.for_table(uri)
        txn = log.start_transaction(policy=CommitPolicy(max_attempts=3, min_wait=0))
        put = log.write_commit

        def beaten(version, data, *before):
            DeltaLog.for_table(uri).start_transaction().commit([], Operation("TEST", {}))
            put(version, data, *before)

        log.write_commit = beaten
        with pytest.raises(exceptions.MaxCommitRetriesExceededException), watched_commit(TaskMetrics(None), Lines(), uri):
            txn.commit([], Operation("TEST", {}))
        assert values(statsd.received(), table=tag_value(uri)) == {"delta.commit.attempts": 3}

    def test_the_attempts_before_a_conflict(self, uri, statsd, monkeypatch):
        deltalake.write_deltalake(uri, pa.table({"id": [1]}))
        handle = start(uri)
        _, staged = stage(handle, [2], mode="overwrite")
        put, left = DeltaLog.write_commit, [1]

        def beaten(log, version, data, *before):
            if left:
                left.pop()
                deltalake.write_deltalake(uri, pa.table({"id": [3]}), mode="append")
            return put(log, version, data, *before)

        monkeypatch.setattr(DeltaLog, "write_commit", beaten)
        operator = commit(handle, staged)
        with pytest.raises(exceptions.DeltaConcurrentModificationException):
            operator.execute(context(operator))
        assert values(statsd.received(), task_id="commit") == {"delta.commit.conflict": 1, "delta.commit.attempts": 1}

    def test_a_conflict_before_the_log_is_touched(self, statsd):
        """The engine's event and the exception are one conflict; an exception alone is one, too."""
        ti = context(BaseOperator(task_id="t"))["ti"]
        error = exceptions.MetadataChangedException("another table", table="s3://lake/t")
        with pytest.raises(exceptions.MetadataChangedException), watched_commit(TaskMetrics(ti), Lines(), "s3://lake/t"):
            raise error
        (metric,) = statsd.received()
        assert (metric.name, metric.tags["kind"], metric.tags["table"]) == (
            "delta.commit.conflict",
            "MetadataChangedException",
            "s3/lake/t",
        )

    @pytest.mark.parametrize(
        ("how", "counted"),
        [
            ({"statistics": "3-12"}, {"statistics": 10}),
            ({"rows": "3", "keys": "3-4,7,9-10"}, {"rows": 1, "keys": 5}),
        ],
    )
    def test_conflicts_that_a_closer_look_resolved(self, statsd, how, counted):
        ti = context(BaseOperator(task_id="t"))["ti"]
        with watched_commit(TaskMetrics(ti), Lines(), "/t"):
            events.record_event("delta.commit.resolved", "/t", {"txnId": "x", "version": 13, "how": how})
        found = statsd.received()
        assert {metric.tags["how"]: metric.value for metric in found} == counted
        assert {(metric.name, metric.tags["table"]) for metric in found} == {("delta.commit.resolved", "/t")}

    def test_a_commit_that_resolves_a_conflict(self, uri, statsd):
        deltalake.write_deltalake(uri, pa.table({"id": [200]}))
        handle = start(uri)
        _, staged = stage(handle, [300])
        staged["reads"]["predicates"] = ["id > 100"]  # as of table("id > 100") in a Spark stage
        for value in (1, 2):
            deltalake.write_deltalake(uri, pa.table({"id": [value]}), mode="append")
        operator = commit(handle, staged)
        operator.execute(context(operator))
        counted = values(statsd.received(), task_id="commit")
        assert (counted["delta.commit.versions_checked"], counted["delta.commit.resolved"]) == (2, 2)
        assert "delta.commit.conflict" not in counted

    def test_an_unknown_state(self, statsd):
        ti = context(BaseOperator(task_id="t"))["ti"]
        with pytest.raises(exceptions.CommitStateUnknownException), watched_commit(TaskMetrics(ti), Lines(), "/t"):
            raise exceptions.CommitStateUnknownException("no answer", table="/t")
        assert values(statsd.received()) == {"delta.commit.unknown": 1}

    def test_abort_vacuum_and_restore(self, uri, statsd):
        deltalake.write_deltalake(uri, pa.table({"id": [1]}))
        deltalake.write_deltalake(uri, pa.table({"id": [2]}), mode="overwrite")
        handle = start(uri)
        stage(handle)
        abort = DeltaAbortOperator(task_id="abort", transaction=handle)
        abort.execute(context(abort))
        restore = DeltaRestoreOperator(task_id="restore", table=uri, version=0)
        restore.execute(context(restore))
        vacuum = DeltaVacuumOperator(task_id="vacuum", table=uri, retention_hours=0, retention_check=False)
        vacuum.execute(context(vacuum))
        found = statsd.received()
        assert values(found, task_id="abort", outcome="deleted") == {"delta.abort": 1, "delta.abort.files": 1}
        assert values(found, task_id="restore", operation="RESTORE")["delta.commit.files"] == 1
        assert values(found, task_id="vacuum")["delta.vacuum.files"] >= 1

    def test_nothing_fails_and_nothing_is_sent_when_metrics_are_off(self, uri, monkeypatch):
        ti = SimpleNamespace(stats_tags=None, dag_id="d", task_id="t")
        metrics = TaskMetrics(ti)
        metrics.count("commit.files", 3)
        monkeypatch.setattr("airflow.sdk.observability.stats.incr", lambda *_a, **_k: 1 / 0)
        metrics.count("commit.files", 3)

    @pytest.mark.parametrize(
        ("text", "tag"),
        [("s3://lake/a b=c,d", "s3/lake/a_b_c_d"), ("/srv/t", "/srv/t"), ("CREATE TABLE AS SELECT", "CREATE_TABLE_AS_SELECT")],
    )
    def test_tags_that_every_metrics_system_takes(self, text, tag):
        assert tag_value(text) == tag


class TestLines:
    def test_one_line_a_step_with_the_transaction_id(self, uri, lines):
        handle = start(uri)
        _, staged = stage(handle)
        operator = commit(handle, staged)
        operator.execute(context(operator))
        abort = DeltaAbortOperator(task_id="abort", transaction=handle)
        abort.execute(context(abort))
        prefix = f"Transaction {handle['transactionId']}: "
        texts = lines.texts()
        assert all(text.startswith(prefix) for text in texts), texts
        steps = [text.removeprefix(prefix) for text in texts]
        assert [step.split(" ")[0] for step in steps] == ["begins", "read", "staged", "committing", "committed", "abort:"]
        assert steps[1].startswith("read the footers of 1 files of stage stage: 3 rows, ")
        assert steps[4].startswith(f"committed version 0 of {uri} (WRITE): 3 rows and ")

    def test_the_lines_of_a_retry_that_finds_its_commit(self, uri, lines):
        handle = start(uri)
        _, staged = stage(handle)
        for _ in range(2):
            operator = commit(handle, staged)
            operator.execute(context(operator))
        assert "its commit is already version 0" in lines.texts()[-1]

    def test_a_conflict_says_whose_commit_it_was(self, uri, lines):
        deltalake.write_deltalake(uri, pa.table({"id": [1]}))
        handle = start(uri)
        _, staged = stage(handle, [2], mode="overwrite")
        deltalake.DeltaTable(uri).delete()
        operator = commit(handle, staged)
        with pytest.raises(exceptions.DeltaConcurrentModificationException) as caught:
            operator.execute(context(operator))
        assert lines.texts("warning") == []  # what nobody resolves is the error that ends the task
        line = next(text for text in lines.texts() if ": conflict with " in text)
        assert line.startswith(f"Transaction {handle['transactionId']}: conflict with version 1 of {uri} (DELETE)")
        text = str(caught.value)
        for part in ("version 1", "DELETE", "read version 0", "committed nothing", "clear the start task"):
            assert part in text

    def test_a_race_that_is_lost(self, uri):
        """Others commit between the look at the log and the put; each loss is a line, until there are too many for that."""
        deltalake.write_deltalake(uri, pa.table({"id": [1]}))
        log = DeltaLog.for_table(uri)
        txn = log.start_transaction()
        put, left = log.write_commit, [2]

        def beaten(version, data, *before):
            if left[0]:
                left[0] -= 1
                DeltaLog.for_table(uri).start_transaction().commit([], Operation("TEST", {}))
            put(version, data, *before)

        log.write_commit = beaten
        kept = Lines()
        with watched_commit(TaskMetrics(None), kept, uri):
            assert txn.commit([], Operation("TEST", {})) == 3
        assert [text.split(" (attempt")[0] for text in kept.texts()] == [
            f"Transaction {txn.txn_id}: lost the race for version {version} of {uri}" for version in (1, 2)
        ]
        assert kept.texts()[1].endswith("trying version 3.")

    def test_the_operators_that_commit_are_watched(self):
        """Whoever commits goes through the watch: their number must not grow without it."""
        assert issubclass(DeltaDeleteOperator, CommitParameters)
        assert issubclass(DeltaRestoreOperator, CommitParameters)


REQUEST = StageRequest(
    transaction_id="t-1", table="/t", read_version=0, stage="rows", task_id="rows", attempt="1-a", directory="staged/t-1/rows/1-a"
)


class TestProgress:
    @pytest.fixture
    def log(self, tmp_path) -> DeltaLog:
        return DeltaLog.for_table(str(tmp_path))

    def wait_for(self, condition, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert condition()

    def test_of_a_job_elsewhere_is_what_lies_on_storage(self, log, tmp_path):
        kept = Lines()
        directory = tmp_path / REQUEST.directory
        with spark_work(kept, log, REQUEST, interval=0.02):
            self.wait_for(lambda: any("no files on storage yet" in text for text in kept.texts()))
            for path in (
                "id=1/part-0.parquet",
                "_temporary/0/task_1/part-1.parquet",
                "_temporary/0/_temporary/attempt_2/part-2.parquet",
                "reports/report.json",
                "request.json",
                ".part-0.parquet.crc",
                "_SUCCESS",
            ):
                (directory / path).parent.mkdir(parents=True, exist_ok=True)
                (directory / path).write_bytes(b"12345")
            self.wait_for(lambda: any("2 files (10 bytes) on storage, 1 being written" in text for text in kept.texts()))
        texts = kept.texts()
        assert texts[0].startswith("Transaction t-1: Spark job of stage rows, attempt 1-a, started")
        assert "finished after" in texts[-1]

    def test_a_job_that_fails_says_so_and_stays_the_same_error(self, log):
        kept = Lines()
        with pytest.raises(ValueError, match="mine"), spark_work(kept, log, REQUEST):
            raise ValueError("mine")
        assert "failed after" in kept.texts()[-1]

    def test_short_jobs_have_no_line_in_between(self, log):
        kept = Lines()
        with spark_work(kept, log, REQUEST):
            pass
        assert len(kept.texts()) == 2

    def test_trouble_with_storage_is_nobodys_trouble(self, log, monkeypatch):
        asked = threading.Event()

        def broken(_directory):
            asked.set()
            raise OSError("away")

        monkeypatch.setattr(log.store, "list_recursive", broken)
        kept = Lines()
        with spark_work(kept, log, REQUEST, interval=0.01):
            assert asked.wait(60)
        assert any("away" in text for text in kept.texts("debug"))
        assert len(kept.texts()) == 2

    def test_the_job_does_not_wait_for_who_looks(self, log, monkeypatch):
        asked, hold, told = threading.Event(), threading.Event(), threading.Event()

        def slow(_directory):
            asked.set()
            hold.wait(60)
            told.set()
            return iter(())

        monkeypatch.setattr(log.store, "list_recursive", slow)
        with spark_work(Lines(), log, REQUEST, interval=0.01):
            assert asked.wait(60)
        assert not told.is_set()
        hold.set()

    def test_of_a_connect_session_is_what_the_server_says(self, log):
        class Session:
            """As a Spark Connect client: it calls the handlers while it waits."""

            handlers: list = []

            def registerProgressHandler(self, handler):
                self.handlers.append(handler)

            def removeProgressHandler(self, handler):
                self.handlers.remove(handler)

        session, kept = Session(), Lines()
        with spark_work(kept, log, REQUEST, session=session, interval=0.02):
            stage = SimpleNamespace(num_tasks=8, num_completed_tasks=3, num_bytes_read=100)
            for handler in session.handlers:
                handler(stages=[stage], inflight_tasks=2, operation_id="o", done=False)
            self.wait_for(lambda: any("3 of 8 tasks done, 2 running, 100 bytes read" in text for text in kept.texts()))
        assert session.handlers == []

    @pytest.mark.spark
    def test_of_a_session_of_this_process_is_what_spark_counts(self, log, spark, tmp_path):
        kept = Lines()
        slow = spark.range(0, 4, 1, 4).selectExpr("id", "java_method('java.lang.Thread', 'sleep', 400L) AS slept")

        def told() -> bool:
            return any("of 4 tasks done" in text and "rows (" in text for text in kept.texts())

        until = time.monotonic() + 240
        with spark_work(kept, log, REQUEST, session=spark, interval=0.1):
            while not told() and time.monotonic() < until:  # after a slow answer it asks more rarely than one job takes
                slow.write.mode("overwrite").parquet(str(tmp_path / "out"))
        assert told(), kept.texts()


@pytest.mark.airflow
class TestDagRuns:
    """Whole Dag runs: the same task runner, execution API and Stats as in production."""

    @pytest.mark.slow
    def test_the_metrics_of_a_run(self, run_dag, statsd, tables):
        run = run_dag("observed_killed_commit")
        assert run.state == "success"
        found = [metric for metric in statsd.received(10) if metric.tags.get("dag_id") == "observed_killed_commit"]
        names = values(found)
        assert (names["delta.start"], names["delta.stage.files"], names["delta.commit.attempts"]) == (1, 1, 1)
        assert names["delta.commit.found"] == 1  # the retry
        assert {metric.tags["task_id"] for metric in found} == {"txn.start", "txn.stage", "txn.commit", "txn.abort"}
        assert values(found, outcome="committed")["delta.abort"] == 1
        assert {metric.tags["table"] for metric in found} == {tag_value(f"{tables}/observed_killed_commit")}

    @pytest.mark.slow
    def test_the_conflict_of_a_run(self, run_dag, statsd, tables):
        deltalake.write_deltalake(f"{tables}/observed_conflict", pa.table({"id": [1]}))
        run = run_dag("observed_conflict")
        assert run.state == "failed"
        found = statsd.received(10)
        assert values(found, dag_id="observed_conflict", task_id="txn.commit") == {"delta.commit.conflict": 1}
        assert values(found, dag_id="observed_conflict", outcome="deleted")["delta.abort"] == 1
