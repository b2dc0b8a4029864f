"""``conflict_detection`` of the tasks: where it is checked and written, and what they tell about conflicts that it resolved."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime

import deltalake
import pyarrow as pa
import pytest
from airflow.sdk import DAG, BaseOperator

from airflow_delta import delta_transaction
from airflow_delta.contract.payloads import CommitResult
from airflow_delta.contract.tags import DETECTION_TAG, RESOLVED_TAG
from airflow_delta.decorators.delta_stream import delta_stream_task
from airflow_delta.exceptions import ConcurrentAppendException, DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.drop_feature import DeltaDropFeatureOperator, DeltaRemoveColumnMappingOperator
from airflow_delta.operators.maintenance import DeltaMaintenanceOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaOptimizeOperator
from airflow_delta.operators.restore import DeltaRestoreOperator
from airflow_delta.operators.row_tracking import DeltaEnableRowTrackingOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.statistics import DeltaComputeStatisticsOperator
from airflow_delta.operators.stream import DeltaStreamOperator
from airflow_delta.operators.transaction import DeltaCommitOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from airflow_delta.tasks.commit.commit_part import CommitPart
from airflow_delta.tasks.commit.conflict_detection import resolved_lines
from airflow_delta.transaction.conflict_detection import resolved_text
from support.running_tasks import context
from support.tables import commit_path
from support.task_classes import task_classes
from support.watching import Lines, commit, stage, start

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")

TABLE = {"task_id": "t", "table": "/t"}
TASKS = {
    "commit": lambda **more: DeltaCommitOperator(task_id="t", transaction={}, staged=[], **more),
    "delete": lambda **more: DeltaDeleteOperator(**TABLE, **more),
    "merge": lambda **more: DeltaMergeOperator(**TABLE, source="SELECT 1 AS id", condition="true", **more),
    "optimize": lambda **more: DeltaOptimizeOperator(**TABLE, **more),
    "restore": lambda **more: DeltaRestoreOperator(**TABLE, version=0, **more),
    "drop feature": lambda **more: DeltaDropFeatureOperator(**TABLE, feature="deletionVectors", **more),
    "column mapping": lambda **more: DeltaRemoveColumnMappingOperator(**TABLE, **more),
    "row tracking": lambda **more: DeltaEnableRowTrackingOperator(**TABLE, **more),
    "statistics": lambda **more: DeltaComputeStatisticsOperator(**TABLE, **more),
    "vacuum": lambda **more: DeltaVacuumOperator(**TABLE, **more),
    "maintenance": lambda **more: DeltaMaintenanceOperator(task_id="t", tables="/t", **more),
    "stream": lambda **more: DeltaStreamOperator(**TABLE, checkpoint_location="/c", python_callable=lambda: None, **more),
}


@pytest.fixture
def uri(tmp_path) -> str:
    return str(tmp_path / "table")


def rendered(operator: BaseOperator, level: str) -> None:
    operator.render_template_fields({"params": {"level": level}})


# -- the parameter ------------------------------------------------------------------------------------------------------------


def test_every_task_that_commits_has_it():
    committing = {kind.__name__ for kind in task_classes() if "user_metadata" in kind.template_fields}
    assert len(committing) > 15
    assert {kind.__name__ for kind in task_classes() if "conflict_detection" in kind.template_fields} == committing


@pytest.mark.parametrize("make", TASKS.values(), ids=TASKS)
class TestLevels:
    def test_the_default(self, make):
        assert make().conflict_detection == "rows"

    def test_a_wrong_one_is_refused_in_the_dag_file(self, make):
        with pytest.raises(
            DeltaIllegalArgumentException, match="conflict_detection must be one of delta, statistics, rows, got 'row'"
        ):
            make(conflict_detection="row")

    def test_a_template_is_rendered(self, make):
        operator = make(conflict_detection="{{ params.level }}")
        rendered(operator, "statistics")
        assert operator.conflict_detection == "statistics"


@pytest.mark.parametrize("level", ["delta", "statistics", "rows"])
def test_it_reaches_the_commit(level):
    operator = TASKS["commit"](conflict_detection="{{ params.level }}")
    rendered(operator, level)
    committer = operator.hold(CommitPart)
    assert committer.policy().conflict_detection == level
    assert committer.options(context(operator))["tags"][DETECTION_TAG] == level


@pytest.mark.parametrize("level", ["", "row", "{{ params.level }}"])
def test_a_template_that_gives_a_wrong_one_is_refused_when_the_task_runs(uri, level):
    operator = DeltaDeleteOperator(task_id="t", table=uri, conflict_detection="{{ params.level }}")
    rendered(operator, level)
    with pytest.raises(DeltaIllegalArgumentException, match="conflict_detection must be one of"):
        operator.execute(context(operator))


def test_a_stream_checks_what_is_rendered(uri):
    operator = TASKS["stream"](conflict_detection="{{ params.level }}")
    rendered(operator, "row")
    with pytest.raises(DeltaIllegalArgumentException, match="conflict_detection must be one of"):
        operator._sink(DeltaHook("delta_default"), None, context(operator))
    rendered(good := TASKS["stream"](conflict_detection="{{ params.level }}"), "delta")
    sink = good._sink(DeltaHook("delta_default"), None, context(good))
    assert (sink._conflict_detection, sink._tags[DETECTION_TAG]) == ("delta", "delta")


def test_the_decorator_of_a_stream_takes_it():
    with DAG("stream", schedule=None, start_date=datetime(2026, 1, 1)):

        @delta_stream_task(table="/t", checkpoint_location="/c", conflict_detection="delta")
        def events(spark): ...

        assert events().operator.conflict_detection == "delta"


GROUPS = [
    # arguments of the group, the level of its commit
    ({}, "rows"),
    ({"conflict_detection": "statistics"}, "statistics"),
    ({"default_args": {"conflict_detection": "delta"}}, "delta"),
    ({"conflict_detection": "rows", "default_args": {"conflict_detection": "delta"}}, "rows"),
    ({"commit_kwargs": {"conflict_detection": "delta"}}, "delta"),
    ({"conflict_detection": "{{ params.level }}"}, "{{ params.level }}"),
]


@pytest.mark.parametrize(("arguments", "level"), GROUPS)
def test_a_group_gives_it_to_its_commit(arguments, level):
    with DAG("groups", schedule=None, start_date=datetime(2026, 1, 1)):
        with delta_transaction("t", table="/lake/t", **arguments) as txn:
            DeltaStageFilesOperator(task_id="stage")
        assert txn.commit.conflict_detection == level


def test_a_group_refuses_a_wrong_one():
    with (
        DAG("groups", schedule=None, start_date=datetime(2026, 1, 1)),
        pytest.raises(DeltaIllegalArgumentException, match="got 'row'"),
        delta_transaction("t", table="/lake/t", conflict_detection="row"),
    ):
        DeltaStageFilesOperator(task_id="stage")


# -- the tag ------------------------------------------------------------------------------------------------------------------


def tag(uri: str) -> str | None:
    return deltalake.DeltaTable(uri).history(1)[0]["tags"].get(DETECTION_TAG)


def test_commits_say_how_closely_they_were_checked(uri):
    with DAG("a_dag", schedule=None):
        handle = start(uri)
        _, staged = stage(handle)
        operator = commit(handle, staged, conflict_detection="statistics")
        operator.execute(context(operator))
        assert tag(uri) == "statistics"
        delete = DeltaDeleteOperator(task_id="delete", table=uri)
        delete.execute(context(delete))
        assert tag(uri) == "rows"
        restore = DeltaRestoreOperator(task_id="restore", table=uri, version=0, conflict_detection="delta")
        restore.execute(context(restore))
        assert tag(uri) == "delta"
        vacuum = DeltaVacuumOperator(task_id="vacuum", table=uri, conflict_detection="statistics")
        vacuum.execute(context(vacuum))
        assert tag(uri) == "statistics"
        maintenance = DeltaMaintenanceOperator(task_id="maintain", tables=uri, steps="vacuum", conflict_detection="delta")
        maintenance.execute(context(maintenance))
        assert tag(uri) == "delta"


# -- what it resolved ---------------------------------------------------------------------------------------------------------

LINES = [
    # what was resolved, the sentences of the log
    ({}, []),
    (
        {"statistics": "3-12"},
        ["versions 3-12 conflict by Delta's rules, but not by column bounds (statistics)."],
    ),
    ({"keys": "7"}, ["version 7 conflicts by Delta's rules, but not by the values of the columns that were read (keys)."]),
    (
        {"rows": "3,5", "moved": "4"},
        [
            "versions 3,5 conflict by Delta's rules, but not by the positions of rows (rows).",
            "version 4 conflicts by Delta's rules, but not by the rows, which only moved to other files (moved).",
        ],
    ),
    ({"luck": "9"}, ["version 9 conflicts by Delta's rules, but not by a closer look (luck)."]),
]


@pytest.mark.parametrize(("resolved", "lines"), LINES)
def test_the_lines(resolved, lines):
    assert list(resolved_lines(resolved)) == lines


RESOLVED = {"statistics": "3-12"}
LINE = "versions 3-12 conflict by Delta's rules, but not by column bounds (statistics)."


def test_the_task_of_a_commit_logs_it(uri, monkeypatch):
    operator = TASKS["commit"]()
    monkeypatch.setattr(DeltaCommitOperator, "log", Lines(), raising=False)
    result = CommitResult(
        table=uri, table_id="id", version=13, read_version=2, transaction_id="x", operation="WRITE", attempts=1, resolved=RESOLVED
    )
    for told in (result, replace(result, resolved={})):
        operator.hold(CommitPart).note(told)
    texts = operator.log.texts()
    assert [text.split(" (")[0] for text in texts] == [
        f"Transaction x: committed version 13 of {uri}",
        f"Transaction x: {LINE.split(' (')[0]}",
        f"Transaction x: committed version 13 of {uri}",
    ]


def test_a_commit_that_is_found_in_the_log_tells_it_again(uri, monkeypatch):
    handle = start(uri)
    _, staged = stage(handle)
    operator = commit(handle, staged)
    assert operator.execute(context(operator))["resolved"] == {}
    path = commit_path(uri, 0)
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
    info["tags"][RESOLVED_TAG] = resolved_text(RESOLVED)
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))
    again = commit(handle, staged)
    monkeypatch.setattr(DeltaCommitOperator, "log", Lines(), raising=False)
    result = again.execute(context(again))
    assert (result["committedBefore"], result["resolved"]) == (True, RESOLVED)
    assert again.log.texts()[-1] == f"Transaction {handle['transactionId']}: {LINE}"


@pytest.fixture
def raced(uri):
    """Return a function that makes a commit task: a stage has read the rows above 100, and others have added the row 2 since."""
    deltalake.write_deltalake(uri, pa.table({"id": [1, 200]}))

    def commit_task(**more):
        handle = start(uri)
        _, staged = stage(handle, [300])
        staged["reads"]["predicates"] = ["id > 100"]  # as of table("id > 100") in a Spark stage
        deltalake.write_deltalake(uri, pa.table({"id": [2]}), mode="append")
        return commit(handle, staged, **more)

    return commit_task


def test_a_race_that_bounds_decide(uri, raced, monkeypatch):
    operator = raced(conflict_detection="statistics")
    monkeypatch.setattr(DeltaCommitOperator, "log", Lines(), raising=False)
    result = operator.execute(context(operator))
    assert result["resolved"] == {"statistics": "1"}
    assert operator.log.texts()[-1].endswith("version 1 conflicts by Delta's rules, but not by column bounds (statistics).")
    tags = deltalake.DeltaTable(uri).history(1)[0]["tags"]
    assert (tags[DETECTION_TAG], tags[RESOLVED_TAG]) == ("statistics", '{"statistics":"1"}')


def test_by_deltas_rules_it_is_a_conflict(raced):
    operator = raced(conflict_detection="delta")
    with pytest.raises(ConcurrentAppendException):
        operator.execute(context(operator))


def test_a_stage_of_its_own_level_commits_nothing(uri):
    """Inside a transaction the commit task decides."""
    deltalake.write_deltalake(uri, pa.table({"id": [1]}))
    handle = start(uri)
    delete = DeltaDeleteOperator(task_id="delete", transaction=handle, conflict_detection="delta")
    staged = delete.execute(context(delete))
    operator = commit(handle, staged)
    operator.execute(context(operator))
    assert tag(uri) == "rows"
