"""``default_args`` of a whole Dag, one Dag each: a transaction that an audit refuses, and one that it does not."""

from __future__ import annotations

import os
import warnings
from datetime import datetime
from typing import Any

from airflow.sdk import DAG, TriggerRule, dag, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_delta import delta_transaction
from airflow_delta.decorators.delta_stage import delta_stage_task
from airflow_delta.operators.delete_update import DeltaTruncateOperator
from airflow_delta.operators.transaction import DeltaAbortOperator, DeltaCommitOperator, DeltaStartTransactionOperator
from support.task_defaults import DEFAULTS

ROOT = os.environ["DELTA_EXAMPLES"]


def rows(*_: Any) -> Any:
    import pyarrow as pa

    return pa.table({"id": pa.array([1, 2, 3], pa.int64())})


def refuse(staged: Any = None) -> None:
    raise AirflowFailException("these rows must not be public")


def accept(staged: Any = None) -> None: ...


def told(after: Any = None) -> None:
    """The last task before the commit, which with a trigger rule such as all_done runs although the audit has failed."""


def transaction(dag_id: str, name: str, audit: Any, **kwargs: Any) -> None:
    with delta_transaction(name, table=f"{ROOT}/{dag_id}_{name}", **kwargs):
        staged = delta_stage_task(rows, engine="arrow", task_id="stage")()
        task(told, task_id="told")(task(audit, task_id="audit")(staged))


for each, given in DEFAULTS.items():
    # An email warns that it is deprecated.
    with warnings.catch_warnings(), DAG(f"defaults_{each}", schedule=None, start_date=datetime(2026, 1, 1), default_args=given):
        warnings.simplefilter("ignore")
        transaction(f"defaults_{each}", "refused", refuse)
        transaction(f"defaults_{each}", "accepted", accept)


@dag(schedule=None, start_date=datetime(2026, 1, 1), default_args={"trigger_rule": "all_done", "do_xcom_push": False})
def defaults_plain_operators():
    """Without ``delta_transaction``, and an operation that is a transaction of its own."""
    start = DeltaStartTransactionOperator(task_id="start", table=f"{ROOT}/defaults_plain_operators")
    stage = delta_stage_task(rows, engine="arrow", task_id="stage", transaction=start.output)()
    audit = task(refuse, task_id="audit")(stage)
    commit = DeltaCommitOperator(task_id="commit", transaction=start.output, staged=stage)
    audit >> commit
    commit >> DeltaAbortOperator(task_id="abort", transaction=start.output).as_teardown()
    audit >> DeltaTruncateOperator(task_id="truncate", table=f"{ROOT}/defaults_plain_operators")


@dag(schedule=None, start_date=datetime(2026, 1, 1))
def defaults_and_names():
    """The author names the trigger rule on the commit itself, and a failure that only tasks behind it have seen."""
    transaction("defaults_and_names", "asked", refuse, commit_kwargs={"trigger_rule": "all_done"})
    with delta_transaction("hidden", table=f"{ROOT}/defaults_and_names_hidden"):
        staged = delta_stage_task(rows, engine="arrow", task_id="stage")()
        refused = task(refuse, task_id="audit")(staged)
        task(told, task_id="told", trigger_rule=TriggerRule.ALL_DONE)(refused)


def nothing() -> Any:
    return []


def skip(staged: Any = None) -> Any:
    raise AirflowSkipException("nothing today")


@dag(schedule=None, start_date=datetime(2026, 1, 1))
def all_skipped():
    """Every stage is skipped, which the commit allows: one stage that skips itself, and one that is mapped over nothing."""
    with delta_transaction(
        "txn", table=f"{ROOT}/all_skipped", commit_kwargs={"allow_skipped": True, "trigger_rule": "none_failed"}
    ):
        delta_stage_task(skip, engine="arrow", task_id="skips")()
        none = task(nothing, task_id="none")()
        delta_stage_task(accept, engine="arrow", task_id="mapped").expand(staged=none)


defaults_plain_operators()
defaults_and_names()
all_skipped()
