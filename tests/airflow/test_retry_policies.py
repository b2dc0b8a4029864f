"""Which errors are retried: by kind, by policy, with which pause."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk import RetryAction, RetryRule

from airflow_delta import exceptions
from airflow_delta.operators import audit
from airflow_delta.retry_policies import AUDIT_ERRORS, FINAL_ERRORS, REFUSALS, DeltaRetryPolicy
from airflow_delta.tasks.commit import commit_part

FAIL, RETRY, DEFAULT = RetryAction.FAIL, RetryAction.RETRY, RetryAction.DEFAULT

# error, and what a task of a transaction (fail) and a task that is one by itself (retry) make of it
KINDS = [
    (exceptions.ConcurrentAppendException("m"), FAIL, RETRY),
    (exceptions.ConcurrentDeleteReadException("m"), FAIL, RETRY),
    (exceptions.ConcurrentTransactionException("m"), FAIL, RETRY),
    (exceptions.MetadataChangedException("m"), FAIL, RETRY),
    (exceptions.MaxCommitRetriesExceededException("m"), RETRY, RETRY),
    (exceptions.CommitStateUnknownException("m"), RETRY, RETRY),
    (OSError("the store is down"), RETRY, RETRY),
    (ConnectionResetError("by peer"), RETRY, RETRY),
    (TimeoutError("too long"), RETRY, RETRY),
    (exceptions.SchemaMismatchException("m"), FAIL, FAIL),
    (exceptions.DeltaTableNotFoundException("m"), FAIL, FAIL),
    (exceptions.ConstraintViolationException("m"), FAIL, FAIL),
    (exceptions.InvalidProtocolVersionException("m"), FAIL, FAIL),
    (exceptions.DeltaIllegalArgumentException("m"), FAIL, FAIL),
    (exceptions.MissingStageException("m"), FAIL, FAIL),
    (exceptions.TransactionAbortedException("m"), FAIL, FAIL),
    (exceptions.FeatureDropConflictException("m"), FAIL, FAIL),
    (exceptions.DeltaAuditFailedException("m"), FAIL, FAIL),
    (exceptions.VersionNotFoundException("m"), FAIL, FAIL),
    (exceptions.MissingSparkConnectorException("m"), FAIL, FAIL),
    (exceptions.SparkCredentialsException("m"), FAIL, FAIL),
    (exceptions.ConditionalPutException("m"), FAIL, FAIL),
    (exceptions.CommitCancelledException("m"), DEFAULT, DEFAULT),
    (exceptions.StageFailedException("m"), DEFAULT, DEFAULT),
    (exceptions.DeltaLogCorruptedException("m"), DEFAULT, DEFAULT),
    (RuntimeError("the job failed"), DEFAULT, DEFAULT),
    (ValueError("a user's own"), DEFAULT, DEFAULT),
]


@pytest.mark.parametrize(("error", "in_transaction", "alone"), KINDS, ids=lambda value: type(value).__name__)
def test_by_kind(error, in_transaction, alone):
    for policy, action in ((FINAL_ERRORS, in_transaction), (REFUSALS, alone), (AUDIT_ERRORS, in_transaction)):
        decision = policy.evaluate(error, 1, 3)
        assert decision.action is action
        assert bool(decision.reason) is (action is not DEFAULT)  # Airflow keeps it with the task instance


def test_every_conflict_is_one():
    kinds = [exceptions.DeltaConcurrentModificationException]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        assert FINAL_ERRORS.evaluate(kind("m"), 1, 3).action is FAIL
        assert REFUSALS.evaluate(kind("m"), 1, 3).action is RETRY


def test_an_error_that_was_raised_from_one_is_taken_for_it():
    error = RuntimeError("my load failed")
    error.__cause__ = exceptions.SchemaMismatchException("no such column")
    assert FINAL_ERRORS.evaluate(error, 1, 3).action is FAIL


def test_causes_that_go_in_a_circle_end():
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert FINAL_ERRORS.evaluate(one, 1, 3).action is DEFAULT


def test_a_conflict_of_an_operation_in_a_transaction():
    """It would stage on the same version again."""
    error = exceptions.MetadataChangedException("m")
    for transaction, action in ((None, RETRY), ({"transactionId": "t"}, FAIL)):
        context = {"task": SimpleNamespace(transaction=transaction, retries=3)}
        assert REFUSALS.evaluate(error, 1, 3, context).action is action


QUERIES = [
    ("SELECT nothing FROM range(1)", FAIL),
    ("SELECT 1 +", FAIL),
    ("SELECT no_such_function(1)", FAIL),
    ("SELECT abs(1, 2)", FAIL),
    ("SELECT sum(id) + id FROM range(1)", FAIL),
    ("SELECT * FROM no_such_table", DEFAULT),  # it may yet come
    ("SELECT * FROM parquet.`/no/such/path`", DEFAULT),
    ("SELECT raise_error('of the rows')", DEFAULT),
]


@pytest.mark.parametrize(("query", "action"), QUERIES)
def test_what_spark_says_of_a_query(spark, query, action):
    with pytest.raises(Exception) as raised:  # noqa: PT011 - Spark's kinds are what is asked for
        spark.sql(query).collect()
    for policy in (FINAL_ERRORS, REFUSALS):
        assert policy.evaluate(raised.value, 1, 3).action is action


class TestPause:
    conflict = exceptions.ConcurrentAppendException("m")

    def test_the_tasks_own_by_default(self):
        policy = DeltaRetryPolicy(on_conflict="retry")
        assert policy.evaluate(self.conflict, 1, 3).retry_delay is None

    def test_doubles_up_to_a_bound(self):
        policy = DeltaRetryPolicy(on_conflict="retry", delay=timedelta(seconds=10), max_delay=timedelta(seconds=60), jitter=0)
        pauses = [policy.evaluate(self.conflict, number, 9).retry_delay for number in (1, 2, 3, 4, 5, 500)]
        assert [pause.total_seconds() for pause in pauses] == [10, 20, 40, 60, 60, 60]

    def test_begins_anew_after_a_clear(self):
        policy = DeltaRetryPolicy(on_conflict="retry", delay=timedelta(seconds=10), jitter=0)
        context = {"task": SimpleNamespace(retries=3)}

        def pauses(tries, max_tries):
            return [policy.evaluate(self.conflict, number, max_tries, context).retry_delay.total_seconds() for number in tries]

        assert pauses((1, 2), 3) == [10, 20]
        assert pauses((6, 7), 5 + 3) == [10, 20]  # cleared at try 5

    def test_differs_between_tasks(self):
        policy = DeltaRetryPolicy(on_conflict="retry", delay=timedelta(seconds=10))
        pauses = {policy.evaluate(self.conflict, 1, 3).retry_delay.total_seconds() for _ in range(50)}
        assert len(pauses) > 40
        assert min(pauses) >= 5
        assert max(pauses) <= 15

    def test_none_before_a_failure(self):
        policy = DeltaRetryPolicy(delay=timedelta(seconds=10))
        assert policy.evaluate(self.conflict, 1, 3).retry_delay is None


def test_own_rules_go_first():
    policy = DeltaRetryPolicy(rules=[RetryRule(exception=exceptions.SchemaMismatchException, action=RETRY, reason="it is late")])
    decision = policy.evaluate(exceptions.SchemaMismatchException("m"), 1, 3)
    assert (decision.action, decision.reason) == (RETRY, "it is late")
    assert policy.evaluate(exceptions.AppendOnlyException("m"), 1, 3).action is FAIL


def test_as_json_and_back():
    policy = DeltaRetryPolicy(
        on_conflict="retry",
        delay=timedelta(seconds=7),
        max_delay=timedelta(seconds=70),
        jitter=0,
        rules=[RetryRule(exception=KeyError, action=FAIL)],
    )
    again = DeltaRetryPolicy.deserialize(policy.serialize())
    assert again.serialize() == policy.serialize()
    assert again.evaluate(KeyError("m"), 1, 3).action is FAIL
    assert again.evaluate(TestPause.conflict, 2, 3).retry_delay == timedelta(seconds=14)


@pytest.mark.parametrize("arguments", [{"on_conflict": "restart"}, {"jitter": 2}, {"jitter": -0.1}])
def test_refused(arguments):
    with pytest.raises(exceptions.DeltaIllegalArgumentException):
        DeltaRetryPolicy(**arguments)


def test_the_names_that_were_there_before():
    assert (commit_part.FINAL_ERRORS, commit_part.REFUSALS, audit.AUDIT_ERRORS) == (FINAL_ERRORS, REFUSALS, AUDIT_ERRORS)
