"""Start, commit and abort one by one: identity, templates, retries, cancellation, what a commit expects."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG, BaseOperator, RetryAction

from airflow_delta import delta_transaction, exceptions
from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.operators.stage import DeltaStageFilesOperator, DeltaStageSparkSubmitOperator
from airflow_delta.operators.transaction import (
    FINAL_ERRORS,
    DeltaAbortOperator,
    DeltaCommitOperator,
    DeltaStartTransactionOperator,
)
from airflow_delta.table.stage.staged_writes import check_reported
from airflow_delta.tasks.commit.commit_part import CommitPart
from airflow_delta.tasks.identity import try_chain
from airflow_delta.tasks.keys.age import possible_since
from airflow_delta.tasks.stage.write_options import WriteOptions
from airflow_delta.tasks.task_states import _unambiguous as unambiguous_questions
from airflow_delta.tasks.trust.received import flatten_reports, parse_handle
from airflow_delta.tasks.trust.reports import expected_stages
from airflow_delta.transaction import PostCommitHook
from support.running_tasks import context
from support.state_store import TaskStateStore

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")

SUCCEEDED = {"stage": "success"}


@pytest.fixture
def uri(tmp_path) -> str:
    return str(tmp_path / "table")


def start(uri, **kwargs):
    operator = DeltaStartTransactionOperator(task_id="start", table=uri, **kwargs)
    return operator.execute(context(operator))


def stage(uri, handle, values=(1, 2, 3)):
    directory = f"{uri}/staged/{handle['transactionId']}/rows"
    pa.fs.LocalFileSystem().create_dir(directory)
    pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), f"{directory}/part-0.parquet")
    operator = DeltaStageFilesOperator(task_id="stage", transaction=handle, path="rows")
    return operator.execute(context(operator))


def commit(handle, staged, **kwargs):
    return DeltaCommitOperator(task_id="commit", transaction=handle, staged=staged, **kwargs)


@pytest.mark.parametrize(
    ("number", "max_tries", "first_try", "since"),
    [
        (1, 2, 1, "10:30:00"),  # as this try began
        (2, 2, 1, "09:50:00"),  # as the run began, and clocks differ
        (5, 5, 4, "09:50:00"),  # cleared after the third
    ],
)
def test_since_when_another_try_may_have_committed(number, max_tries, first_try, since):
    began = datetime(2026, 1, 1, 10, tzinfo=UTC)
    operator = DeltaAbortOperator(task_id="task", transaction=None, retries=2)
    times = {"dag_run": {"start_date": began}, "start_date": began.replace(minute=30)}
    tries = try_chain(context(operator, try_number=number, max_tries=max_tries, **times))
    assert (tries.first_try, tries.is_retry) == (first_try, number > first_try)
    assert f"{datetime.fromtimestamp(tries.since / 1000, UTC):%H:%M:%S}" == since


class TestIdentity:
    def test_default_key(self, uri):
        handle = start(uri)
        assert (handle["appId"], handle["txnVersion"], handle["rerunPolicy"]) == ("a_dag/start/a_run/-1", 0, "skip")

    def test_monotonic_scheme_from_templates(self, uri):
        handle = start(uri, app_id="loader", txn_version="20260101")
        assert (handle["appId"], handle["txnVersion"]) == ("loader", 20260101)

    @pytest.mark.parametrize(
        "kwargs",
        [
            {"app_id": "loader"},
            {"txn_version": 1},
            {"app_id": "loader", "txn_version": -1},
            {"app_id": "loader", "txn_version": "1.5"},
            {"app_id": "loader", "txn_version": True},
            {"app_id": "loader", "txn_version": 1, "transaction_key": "k"},
            {"rerun_policy": "sometimes"},
        ],
    )
    def test_arguments_that_make_no_sense(self, uri, kwargs):
        with pytest.raises(exceptions.DeltaIllegalArgumentException):
            start(uri, **kwargs)

    def test_one_partition_column_needs_no_list(self, uri):
        assert start(uri, partition_by="day")["partitionColumns"] == ["day"]

    def test_a_table_that_must_exist(self, uri):
        with pytest.raises(exceptions.DeltaTableNotFoundException):
            start(uri, create=False)

    def test_two_starts_are_two_transactions(self, uri):
        assert start(uri)["transactionId"] != start(uri)["transactionId"]


class TestTemplates:
    def test_start(self):
        operator = DeltaStartTransactionOperator(
            task_id="start",
            table="/lake/{{ day }}",
            transaction_key="{{ day }}-key",
            properties={"delta.appendOnly": "{{ flag }}"},
            partition_by=["{{ column }}"],
            rerun_policy="{{ policy }}",
        )
        operator.render_template_fields({"day": "2026-01-01", "flag": "true", "column": "day", "policy": "fail"})
        assert (operator.table, operator.transaction_key) == ("/lake/2026-01-01", "2026-01-01-key")
        assert (operator.properties, operator.partition_by) == ({"delta.appendOnly": "true"}, ["day"])
        assert operator.rerun_policy == "fail"

    def test_stage(self):
        operator = DeltaStageFilesOperator(
            task_id="stage", mode="{{ mode }}", replace_where="day = '{{ day }}'", path="{{ path }}"
        )
        operator.render_template_fields({"mode": "overwrite", "day": "2026-01-01", "path": "rows"})
        assert (operator.mode, operator.replace_where, operator.path) == ("overwrite", "day = '2026-01-01'", "rows")


class TestOfNothing:
    """Templates of no value, where the engine would take the whole table."""

    @pytest.mark.parametrize(
        "kwargs",
        [{"replace_on": ""}, {"replace_on": " "}, {"replace_using": ""}, {"replace_using": []}, {"replace_using": [" "]}],
    )
    def test_an_overwrite_that_would_replace_all_of_the_table(self, kwargs):
        operator = DeltaStageSparkSubmitOperator(task_id="stage", transaction={}, mode="overwrite", **kwargs)
        with pytest.raises(exceptions.DeltaIllegalArgumentException, match="is empty"):
            operator.hold(WriteOptions).options()

    @pytest.mark.parametrize("kwargs", [{}, {"replace_on": None, "replace_using": None}, {"replace_using": "id"}])
    def test_an_overwrite_that_means_it(self, kwargs):
        operator = DeltaStageSparkSubmitOperator(task_id="stage", transaction={}, mode="overwrite", **kwargs)
        assert operator.hold(WriteOptions).options().get("replace_using") == (("id",) if kwargs.get("replace_using") else None)


class TestCommit:
    def test_commits_once(self, uri):
        handle = start(uri)
        staged = stage(uri, handle)
        results = []
        for attempt in (1, 2):
            operator = commit(handle, [staged])
            results.append(operator.execute(context(operator, try_number=attempt, states=SUCCEEDED)))
        assert [result["version"] for result in results] == [0, 0]
        assert [result["committedBefore"] for result in results] == [False, True]
        assert deltalake.DeltaTable(uri).version() == 0

    def test_a_kill_before_the_put_keeps_it_from_happening(self, uri):
        handle = start(uri)
        staged = stage(uri, handle)
        operator = commit(handle, staged)
        operator.on_kill()
        with pytest.raises(exceptions.CommitCancelledException):
            operator.execute(context(operator, states=SUCCEEDED))
        assert not deltalake.DeltaTable.is_deltatable(uri)

        retry = commit(handle, staged)
        assert retry.execute(context(retry, try_number=2, states=SUCCEEDED))["version"] == 0

    def test_another_transactions_write_is_refused(self, uri):
        operator = commit(start(uri), stage(uri, start(uri)))
        with pytest.raises(exceptions.ForeignTransactionException):
            operator.execute(context(operator, states=SUCCEEDED))

    def test_without_a_transaction(self):
        operator = commit(None, [])
        with pytest.raises(exceptions.StagingException, match="got no transaction"):
            operator.execute(context(operator))

    def test_limits_and_options_reach_the_commit(self):
        operator = commit({}, [], max_commit_attempts=3, commit_timeout=7.5, checkpoint="off", fail_on_hook_error=True)
        policy = operator.hold(CommitPart).policy()
        assert (policy.max_attempts, policy.total_timeout, policy.checkpoint, policy.fail_on_hook_error) == (3, 7.5, "off", True)

    def test_user_metadata_and_own_hooks(self, uri):
        seen = []

        class Hook(PostCommitHook):
            name = "mine"

            def run(self, txn, version, actions):
                seen.append(version)

        handle = start(uri)
        operator = commit(handle, stage(uri, handle), user_metadata="from a test", post_commit_hooks=[Hook()])
        operator.execute(context(operator, states=SUCCEEDED))
        assert deltalake.DeltaTable(uri).history()[0]["userMetadata"] == "from a test"
        assert seen == [0]


class TestAbort:
    def test_deletes_what_was_staged_and_stops_a_later_commit(self, uri):
        handle = start(uri)
        staged = stage(uri, handle)
        abort = DeltaAbortOperator(task_id="abort", transaction=handle)
        assert abort.execute(context(abort))["outcome"] == "deleted"
        operator = commit(handle, staged)
        with pytest.raises(exceptions.TransactionAbortedException):
            operator.execute(context(operator, states=SUCCEEDED))
        assert not deltalake.DeltaTable.is_deltatable(uri)

    def test_without_a_transaction(self):
        abort = DeltaAbortOperator(task_id="abort", transaction=None)
        assert abort.execute(context(abort)) is None


EXPECTED = [
    # reported (task, map index), instances that Airflow knows, the instances that are missed
    ([("a", -1)], {"a": "success"}, None),
    ([("a", 0), ("a", 1)], {"a_0": "success", "a_1": "success"}, None),
    ([("a", 1), ("a", 0)], {"a_0": "success", "a_1": "success"}, None),
    ([("a", 0), ("a", 2)], {"a_0": "success", "a_1": "failed", "a_2": "success"}, r"1 of 3 .*a\[1\] \(failed\)"),
    ([("a", 0)], {"a_0": "success", "a_1": None}, r"a\[1\] \(not run\)"),
    ([("a", 0)], {"a_0": "success", "a_1": "removed"}, None),
    ([("a", 0)], {"a_0": "success", "a_1": "skipped"}, r"a\[1\] \(skipped\)\. .*set allow_skipped=True on the commit"),
    # "a_1" is a task of its own beside the mapped task "a"
    ([("a", 0), ("a", 1), ("a_1", -1)], {"a_0": "success", "a_1": "success"}, None),
    ([], {}, "No stage has reported"),
]


def test_tasks_are_asked_about_in_few_questions_that_fit_into_a_url():
    names = [f"orders.part.{'x' * 60}_of_{number:03}_parts" for number in range(300)]
    asked = unambiguous_questions([*names, "a", "a_1", "a_1_2"])
    assert sorted(name for question in asked for name in question) == sorted([*names, "a", "a_1", "a_1_2"])
    assert all(len("".join(f"&task_ids={name}" for name in question)) <= 4_100 for question in asked)
    assert len(asked) < 12
    assert [question for question in asked if {"a_1", "a_1_2"} & set(question)] == [["a_1"], ["a_1_2"]]


@pytest.mark.parametrize(("reported", "instances", "message"), EXPECTED)
def test_expected_stages(reported, instances, message):
    operator = commit({}, [])
    operator.task_group = None
    handle = TransactionHandle(
        transaction_id="t", table="/lake/t", read_version=3, staging_path="/lake/t/_s", app_id="a", txn_version=1
    )
    staged = [SimpleNamespace(task_id=task_id, map_index=index) for task_id, index in reported]

    def check():
        check_reported(
            handle,
            staged,
            expected_stages(operator, context(operator, states=instances), staged, allow_skipped=operator.allow_skipped),
        )

    if message is None:
        check()
    else:
        with pytest.raises(exceptions.MissingStageException, match=message):
            check()


@pytest.mark.parametrize("allow_skipped", [True, False])
def test_stages_that_are_mapped_over_nothing_by_now_count_as_skipped(outside_of_the_task_runner, allow_skipped):
    with DAG("d", schedule=None), delta_transaction("t", table="/lake/t") as txn:
        DeltaStageFilesOperator.partial(task_id="stage").expand(path=["a", "b"])
    states = {"t.start": "success", "t.stage_0": "removed", "t.stage_1": "removed"}
    found = expected_stages(txn.commit, context(txn.commit, states=states), [], allow_skipped=allow_skipped)
    assert found == (None if allow_skipped else {})


def test_reports_of_every_shape():
    class LazyXComSequence(Sequence):
        """Mapped results: only a full slice is one request."""

        def __len__(self):
            return 2

        def __getitem__(self, key):
            assert key == slice(None)
            return [{"a": 0}, {"a": 1}]

    assert list(flatten_reports([LazyXComSequence(), {"b": 1}])) == [{"a": 0}, {"a": 1}, {"b": 1}]
    assert list(flatten_reports({"a": 1})) == [{"a": 1}]
    assert list(flatten_reports([{"a": 1}, [{"b": 2}], None])) == [{"a": 1}, {"b": 2}, None]
    for bad in ("text", 5):
        with pytest.raises(exceptions.StagingException):
            list(flatten_reports(bad))


@pytest.mark.parametrize("value", ["text", {"contract": 99}, {"contract": 1}])
def test_handles_that_are_none(value):
    with pytest.raises(exceptions.StagingException):
        parse_handle(value, task_id="stage")


ERRORS = [
    (exceptions.ConcurrentAppendException("m"), RetryAction.FAIL),
    (exceptions.ConcurrentTransactionException("m"), RetryAction.FAIL),
    (exceptions.SchemaMismatchException("m"), RetryAction.FAIL),
    (exceptions.ContractVersionException("m"), RetryAction.FAIL),
    (exceptions.MissingStageException("m"), RetryAction.FAIL),
    (exceptions.TransactionAbortedException("m"), RetryAction.FAIL),
    (exceptions.DeltaUnsupportedTableFeatureException("m"), RetryAction.FAIL),
    (exceptions.CommitStateUnknownException("m"), RetryAction.RETRY),
    (exceptions.MaxCommitRetriesExceededException("m"), RetryAction.RETRY),
    (exceptions.CommitCancelledException("m"), RetryAction.DEFAULT),
    (OSError("the store is down"), RetryAction.RETRY),
]


@pytest.mark.parametrize(("error", "action"), ERRORS, ids=lambda value: type(value).__name__)
def test_what_airflow_retries(error, action):
    assert commit({}, []).retry_policy is FINAL_ERRORS
    assert FINAL_ERRORS.evaluate(error, 1, 3).action is action
    # Airflow stores the policy with the Dag.
    assert type(FINAL_ERRORS).deserialize(FINAL_ERRORS.serialize()).evaluate(error, 1, 3).action is action


def test_an_own_retry_policy_wins():
    from airflow.sdk import ExceptionRetryPolicy

    mine = ExceptionRetryPolicy(rules=[])
    assert commit({}, [], retry_policy=mine).retry_policy is mine


class TestSinceWhen:
    """Since when a run may have committed its key: Airflow tells neither when it made a run, nor when a cleared one began."""

    SCHEDULED, BEGAN, AGAIN = (datetime(2026, month, 1, tzinfo=UTC) for month in (1, 6, 9))

    def since(self, key=None, *, store=None, try_number=1, map_index=-1, **changes):
        dates = {"run_after": self.SCHEDULED, "logical_date": self.SCHEDULED, "data_interval_end": None, "partition_date": None}
        run = {**dates, "start_date": self.BEGAN, "clear_number": 0, **changes}
        given = {"run_id": "backfill__2026-01-01", "try_number": try_number, "map_index": map_index}
        running = context(BaseOperator(task_id="t"), dag_run=run, task_state_store=store, **given)
        found = possible_since(running, key)()
        return None if found is None else datetime.fromtimestamp(found / 1000, tz=UTC)

    def test_a_backfill_of_old_dates_is_as_young_as_its_first_task(self):
        assert self.since() == self.BEGAN
        assert self.since("load/backfill__2026-01-01") == self.BEGAN

    def test_and_stays_as_old_when_it_is_cleared(self):
        store = TaskStateStore()
        self.since(store=store)
        again = {"start_date": self.AGAIN, "clear_number": 1}
        assert self.since(store=store, try_number=2, **again) == self.BEGAN

    def test_a_clear_of_something_else_before_it_ran(self):
        again = {"start_date": self.AGAIN, "clear_number": 1}
        assert self.since(store=TaskStateStore(), **again) == self.AGAIN
        assert self.since(store=TaskStateStore(), map_index=3, **again) == self.SCHEDULED, "the value may have had another index"

    def test_what_was_not_noted_is_as_old_as_its_schedule(self):
        again = {"start_date": self.AGAIN, "clear_number": 1, "try_number": 2}
        assert self.since(store=TaskStateStore(), **again) == self.SCHEDULED
        assert self.since(store=None, **again) == self.SCHEDULED

    def test_a_key_that_other_runs_may_have_is_as_old_as_its_dates(self):
        assert self.since("load/2026-01-01") == self.SCHEDULED
        by_hand = {"run_after": self.BEGAN, "logical_date": self.BEGAN}
        assert self.since("load/2026-01-01", **by_hand, data_interval_end=self.SCHEDULED) == self.SCHEDULED
        assert self.since("load/emea", **{**by_hand, "logical_date": None}) == self.BEGAN

    def test_outside_of_a_run(self):
        assert possible_since({"ti": SimpleNamespace(run_id="r")}, None)() is None
