"""Commit and abort of a publication of three tables: real tasks, tables and logs, the supervisor's answers from memory.

Killed where, at each put of the publication, and what comes next; handles and reports that were altered in XCom.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse, OKResponse, TriggerDagRun
from deltalake import DeltaTable, write_deltalake

from airflow_delta import exceptions
from airflow_delta import publication as publications
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.log import DeltaLog
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.table.operations.vacuum.run import vacuum
from airflow_delta.tasks.publication import STATE_KEY
from airflow_delta.tasks.restart import restart, tasks_again
from support.publications import (  # noqa: F401
    AFTER,
    ANCHOR,
    BEFORE,
    NAMES,
    PUTS,
    SUCCEEDED,
    Killed,
    World,
    kill_at_an_entry,
    leave_at,
    world_of_three_tables,
)
from support.running_tasks import context, kept, pushed
from support.watching import airflow_statsd  # noqa: F401

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")


def move_clock(monkeypatch: pytest.MonkeyPatch, *, days: int) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + days * 24 * 3600)


def state_of(world: World, name: str) -> dict[str, int]:
    return publications.publication_states(DeltaLog.for_table(world.table(name)))


class TestPublished:
    def test_all_tables_show_it_once(self, world):
        result = world.publish()
        assert world.rows() == AFTER
        assert (result["outcome"], result["committedBefore"]) == ("published", False)
        assert {Path(uri).name for uri in result["tables"]} == set(NAMES)
        for uri, commit in result["tables"].items():
            assert DeltaTable(uri).history(1)[0]["version"] == commit["version"]
        assert result["states"] == dict.fromkeys(result["tables"], 1)

    def test_what_airflow_learns(self, world):
        result = world.publish()
        note = {"publication": result["publication"], "outcome": "published", "tables": list(result["tables"])}
        assert kept()[STATE_KEY] == pushed(world.context)[STATE_KEY] == note
        events = world.context["outlet_events"]
        outlets = world.dag.get_task("p.commit").outlets
        versions = {uri: commit["version"] for uri, commit in result["tables"].items()}
        assert len(outlets) == 3
        for outlet, name in zip(outlets, NAMES, strict=True):
            extra = events[outlet].extra
            assert (extra["table"], extra["version"]) == (world.table(name), versions[world.table(name)])
            assert (extra["publication"], extra["publication_versions"]) == (result["publication"], versions)

    def test_what_operators_are_told(self, world, statsd):
        result = world.publish()
        found = [metric for metric in statsd.received() if metric.name.startswith("delta.publication")]
        assert [(metric.name, metric.kind, metric.tags.get("outcome")) for metric in found] == [
            ("delta.publication", "c", "published"),
            ("delta.publication.duration", "ms", None),
        ]
        outputs = DefaultExtractor(world.context["task"]).extract_on_complete(None).outputs
        versions = {dataset.name: dataset.facets["version"].datasetVersion for dataset in outputs}
        assert versions == {uri: str(commit["version"]) for uri, commit in result["tables"].items()}

    def test_a_retry_finds_it(self, world):
        handles = world.begin()
        reports = world.stage(handles)
        first = world.commit(handles, reports)
        again = world.commit(handles, reports)
        assert again["committedBefore"]
        assert (again["publication"], again["outcome"]) == (first["publication"], "published")
        assert world.rows() == AFTER

    def test_cleared_after_it_was_published_it_skips(self, world):
        world.publish()
        handles = world.begin()
        assert all(handle["committed"] for handle in handles)
        result = world.commit(handles, world.stage(handles))
        assert (result["outcome"], result["committedBefore"]) == ("published", True)
        assert world.rows() == AFTER

    def test_new_tables(self, tmp_path):
        world = World(tmp_path)
        world.publish()
        assert world.rows() == {name: [1, 2] for name in NAMES}

    def test_abort_after_it_deletes_nothing(self, world):
        handles = world.begin()
        world.commit(handles, world.stage(handles))
        assert world.abort(handles)["outcome"] == "published"
        assert world.rows() == AFTER

    @pytest.mark.parametrize("how", ["replaced", "dropped"])
    def test_a_table_that_is_lost_after_it_takes_nothing_from_the_others(self, world, how):
        """The teardown of the same run, and another try of the commit."""
        handles = world.begin()
        reports = world.stage(handles)
        world.commit(handles, reports, states=SUCCEEDED)
        lost = world.table("totals")
        if how == "replaced":
            DeltaTable.create(lost, DeltaTable(lost).schema(), mode="overwrite")
        else:
            shutil.rmtree(lost)
        assert world.abort(handles)["outcome"] == "published"
        again = world.commit(handles, reports, states=SUCCEEDED)
        assert (again["outcome"], again["committedBefore"]) == ("published", True)
        assert (again["tables"][lost] is None) == (how == "dropped")
        assert {**world.rows(), "totals": []} == {**AFTER, "totals": []}


class TestNotPublished:
    def test_a_failed_audit_lets_no_table_through(self, world):
        handles = world.begin()
        reports = world.stage(handles)
        why = r"with 2 other tables, is not published.*p\.lines\.audit \(failed\)"
        with pytest.raises(exceptions.UpstreamFailedException, match=why):
            world.commit(handles, reports, states={**SUCCEEDED, "p.lines.audit": "failed"})
        assert world.rows() == BEFORE

    def test_a_missing_report(self, world):
        handles = world.begin()
        reports = world.stage(handles)
        with pytest.raises(exceptions.MissingStageException):
            world.commit(handles, [reports[0], [], reports[2]])
        assert world.rows() == BEFORE

    def test_a_start_task_that_did_not_run(self, world):
        handles = world.begin()
        reports = world.stage(handles)
        with pytest.raises(exceptions.StagingException, match="got no transaction from one of its start tasks"):
            world.commit([*handles[:2], None], reports)
        states = {**SUCCEEDED, "p.totals.start": "failed", "p.commit": "upstream_failed"}
        assert world.abort([*handles[:2], None], states=states)["outcome"] == "refused"
        assert world.rows() == BEFORE

    def test_abort_before_the_commit(self, world):
        handles = world.begin()
        reports = world.stage(handles)
        states = {"p.commit": "upstream_failed", "p.lines.stage": "failed"}
        assert world.abort(handles, states=states)["outcome"] == "refused"
        assert world.rows() == BEFORE
        with pytest.raises(exceptions.TransactionAbortedException):
            world.commit(handles, reports)
        assert world.rows() == BEFORE

    def test_abort_fails_if_the_commit_was_marked_as_success(self, world):
        handles = world.begin()
        world.stage(handles)
        with pytest.raises(exceptions.TransactionAbortedException, match="its commit was marked as success by hand"):
            world.abort(handles, states={**SUCCEEDED, "p.commit": "success"})
        assert world.rows() == BEFORE

    def test_abort_fails_if_the_run_was_marked_as_failed(self, world):
        handles = world.begin()
        world.stage(handles)
        with pytest.raises(exceptions.TransactionAbortedException, match=r"although p\.lines\.stage failed"):
            world.abort(handles, states={**SUCCEEDED, "p.lines.stage": "failed", "p.commit": "skipped"})

    def test_nothing_to_abort(self, world):
        assert world.abort([None, None, None]) is None

    def test_a_conflict_refuses_all_and_a_clear_publishes(self, tmp_path):
        for name in NAMES:
            write_deltalake(str(tmp_path / name), pa.table({"id": pa.array([0], pa.int64())}))
        world = World(tmp_path, modes={"totals": "overwrite"})
        handles = world.begin()
        reports = world.stage(handles)
        write_deltalake(world.table("totals"), pa.table({"id": pa.array([7], pa.int64())}), mode="append")
        with pytest.raises(exceptions.DeltaConcurrentModificationException):
            world.commit(handles, reports)
        assert world.rows() == {**BEFORE, "totals": [0, 7]}
        assert kept()[STATE_KEY]["outcome"] == "refused"
        world.abort(handles, states={"p.commit": "failed"})
        assert world.publish()["outcome"] == "published"
        assert world.rows() == {**AFTER, "totals": [1, 2]}


class TestKilled:
    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    @pytest.mark.parametrize("number", range(1, len(PUTS) + 1))
    def test_the_retry_publishes_once(self, world, killed_at, number, after):
        handles = world.begin()
        reports = world.stage(handles)
        killed_at(number, after)
        with pytest.raises(Killed):
            world.commit(handles, reports)
        killed_at(None)
        # Who reads a consistent set sees all of it or nothing, whatever is public by now.
        names = {world.table(name): name for name in NAMES}
        versions = DeltaHook().get_versions(list(names))
        assert len({len(DeltaTable(table, version=version).to_pyarrow_table()) for table, version in versions.items()}) == 1
        result = world.commit(handles, reports)
        assert result["outcome"] == "published"
        assert world.rows() == AFTER
        assert DeltaHook().get_versions(list(names)) == {table: commit["version"] for table, commit in result["tables"].items()}

    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    @pytest.mark.parametrize("number", range(1, len(PUTS) + 1))
    def test_abort_goes_by_the_decision(self, world, killed_at, number, after):
        handles = world.begin()
        reports = world.stage(handles)
        killed_at(number, after)
        with pytest.raises(Killed):
            world.commit(handles, reports)
        killed_at(None)
        decided = (number, after) >= (3, True)
        outcome = world.abort(handles, states={"p.commit": "failed"})["outcome"]
        assert outcome == ("published" if decided else "refused")
        assert world.rows() == (AFTER if decided else BEFORE)

    @pytest.mark.parametrize("number", [1, 3, 4, 5])
    def test_a_clear_of_everything_a_day_later(self, world, killed_at, monkeypatch, number):
        leave_at(world, killed_at, number)
        move_clock(monkeypatch, days=1)
        handles = world.begin()  # settles what is decided, and refuses what nobody has decided in a day
        result = world.commit(handles, world.stage(handles))
        assert (result["outcome"], result["committedBefore"]) == ("published", number > 3)
        assert world.rows() == AFTER

    @pytest.mark.parametrize("number", [1, 3, 4, 5, 6])
    @pytest.mark.parametrize("inner", NAMES)
    def test_a_clear_of_one_inner_group(self, tmp_path, killed_at, number, inner):
        """Its start task runs again, and all after it; the others keep their transactions, and what they staged."""
        for name in NAMES:
            write_deltalake(str(tmp_path / name), pa.table({"id": pa.array([0], pa.int64())}))
        world = World(tmp_path, patience=0.2)
        if number > len(PUTS):
            handles = world.begin()
            reports = world.stage(handles)
            world.commit(handles, reports)
        else:
            handles, reports = leave_at(world, killed_at, number)
        position = NAMES.index(inner)
        handles[position] = world.run(f"{inner}.start")
        (reports[position],) = world.stage(handles, only=[inner])
        assert world.commit(handles, reports)["outcome"] == "published"
        assert world.rows() == AFTER
        assert world.abort(handles)["outcome"] == "published"

    @pytest.mark.parametrize("number", [3, 4, 5])
    def test_vacuum_and_log_cleanup_a_day_later_keep_what_it_needs(self, world, killed_at, monkeypatch, number):
        handles, reports = leave_at(world, killed_at, number)
        move_clock(monkeypatch, days=1)
        for name in NAMES:
            log = DeltaLog.for_table(world.table(name))
            log.checkpoint()
            log.clean_up_expired_logs()
            vacuum(log, retention_hours=0, retention_check=False)
        assert world.commit(handles, reports)["outcome"] == "published"
        assert world.rows() == AFTER

    def test_settled_by_a_reader_that_asks_for_it(self, world, killed_at):
        handles = world.begin()
        killed_at(4)
        with pytest.raises(Killed):
            world.commit(handles, world.stage(handles))
        killed_at(None)
        tables = [world.table(name) for name in NAMES]
        assert DeltaHook().get_versions(tables[:1]) != DeltaHook().get_versions(tables), "of one table there is no half"
        DeltaHook().get_versions(tables, settle=True)
        assert world.rows() == AFTER


class TestLateConflict:
    def foreign(self, world, killed_at, number, name):
        """Have another writer overwrite a table right before a put of the publication."""
        handles = world.begin()
        reports = world.stage(handles)
        killed_at(number)
        with pytest.raises(Killed):
            world.commit(handles, reports)
        killed_at(None)
        write_deltalake(
            world.table(name),
            pa.table({"id": pa.array([7], pa.int64()), "more": pa.array([1])}),
            mode="append",
            schema_mode="merge",
        )
        return handles, reports

    def test_undone_then_a_clear_publishes(self, world, killed_at):
        handles, reports = self.foreign(world, killed_at, 5, "totals")
        last = publications.publication_tables(DeltaLog.for_table(world.table(ANCHOR)), next(iter(state_of(world, ANCHOR))))[-1]
        if Path(last).name != "totals":
            pytest.fail(f"the last table is {last}")
        with pytest.raises(exceptions.PublicationUndoneException, match="totals"):
            world.commit(handles, reports)
        assert kept()[STATE_KEY]["outcome"] == "undone"
        assert world.rows() == {**BEFORE, "totals": [0, 7]}
        world.abort(handles, states={"p.commit": "failed"})
        result = world.publish()
        assert result["outcome"] == "published"
        assert world.rows() == {**AFTER, "totals": [0, 1, 2, 7]}

    def test_split_is_final_and_names_the_tables(self, world, killed_at, statsd):
        """Also the first table was changed since, so its rows cannot be taken back."""
        handles, reports = self.foreign(world, killed_at, 5, "totals")
        write_deltalake(
            world.table(ANCHOR),
            pa.table({"id": pa.array([8], pa.int64()), "more": pa.array([1])}),
            mode="append",
            schema_mode="merge",
        )
        shown = {"orders": [0, 1, 2], "lines": [0, 1, 2, 8], "totals": [0, 7]}
        for _ in range(2):
            with pytest.raises(exceptions.PublicationSplitException) as error:
                world.commit(handles, reports)
            assert error.value.missing == (world.table("totals"),)
            assert set(error.value.published) == {world.table("orders"), world.table("lines")}
            assert kept()[STATE_KEY]["outcome"] == "split"
            (metric,) = (metric for metric in statsd.received() if metric.name == "delta.publication")
            assert metric.tags["outcome"] == "split"
            assert world.rows() == shown
        assert FINAL_ERRORS.evaluate(error.value, 1, 9).action is RetryAction.FAIL
        assert world.abort(handles, states={"p.commit": "failed"})["outcome"] == "split"
        assert world.rows() == shown


class TestAltered:
    """XCom is not believed: each handle and each report is checked against its own start task."""

    def refused(self, world, handles, reports, error=exceptions.HandleMismatchException):
        with pytest.raises(error):
            world.commit(handles, reports)
        assert world.rows() == BEFORE

    def test_handles_of_other_tables_in_other_places(self, world):
        handles = world.begin()
        reports = world.stage(handles)
        self.refused(world, handles[::-1], reports[::-1])
        with pytest.raises(exceptions.HandleMismatchException):
            world.abort(handles[::-1])

    @pytest.mark.parametrize(
        "field", [{"table": "/elsewhere"}, {"readVersion": -1}, {"appId": "another"}, {"configuration": {"a": "b"}}], ids=str
    )
    def test_a_field_of_one_handle(self, world, field):
        handles = world.begin()
        reports = world.stage(handles)
        altered = [handles[0], {**handles[1], **field}, handles[2]]
        self.refused(world, altered, reports, exceptions.DeltaError)

    def test_a_handle_too_few(self, world):
        handles = world.begin()
        reports = world.stage(handles)
        self.refused(world, handles[:2], reports[:2], exceptions.DeltaIllegalArgumentException)

    def test_a_report_of_a_stage_of_another_table(self, world):
        handles = world.begin()
        reports = world.stage(handles)
        forged = {**reports[0][0], "taskId": "p.lines.stage", "stage": reports[1][0]["stage"]}
        self.refused(world, handles, [[forged], *reports[1:]])
        self.refused(world, handles, [reports[1], *reports[1:]], exceptions.StagingException)


class TestRestart:
    @pytest.fixture
    def cleared(self, monkeypatch, outside_of_the_task_runner):
        """The runs that tasks asked their supervisor to clear."""
        asked = []

        def send(message):
            if not isinstance(message, TriggerDagRun):
                return ErrorResponse(error=ErrorType.CONNECTION_NOT_FOUND)
            asked.append(message.run_id)
            return OKResponse(ok=True)

        monkeypatch.setattr(tasks_again, "WAIT_FOR_END", 0.0)
        outside_of_the_task_runner.others = send
        return asked

    def test_a_conflict_clears_all_start_tasks(self, tmp_path, cleared):
        for name in NAMES:
            write_deltalake(str(tmp_path / name), pa.table({"id": pa.array([0], pa.int64())}))
        world = World(tmp_path, modes={"totals": "overwrite"}, on_conflict="restart")
        handles = world.begin()
        reports = world.stage(handles)
        write_deltalake(world.table("totals"), pa.table({"id": pa.array([7], pa.int64())}), mode="append")
        with pytest.raises(exceptions.DeltaConcurrentModificationException):
            world.commit(handles, reports)
        assert cleared == ["a_run"]
        assert world.publish()["outcome"] == "published"
        assert world.rows() == {**AFTER, "totals": [1, 2]}

    def test_what_is_cleared(self, world):
        commit = world.dag.get_task("p.commit")
        stage = world.dag.get_task("p.lines.stage")
        of_commit = restart.restart_scope(context(commit, dag=world.dag), commit, publication=commit)
        assert of_commit.markers == [f"p.{name}.start" for name in NAMES]
        of_stage = restart.restart_scope(context(stage, dag=world.dag), stage, publication=commit)
        assert (of_stage.start_task_id, set(of_stage.markers)) == ("p.lines.start", set(of_commit.markers))
        assert of_commit.is_whole_run
        assert of_stage.is_whole_run
