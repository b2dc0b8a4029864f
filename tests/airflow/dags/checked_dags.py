"""Checks between the stages and the commit of a transaction, which stays open if its gate is closed: nothing aborts it."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, task, task_group
from airflow.sdk.exceptions import AirflowFailException

from airflow_delta import delta_transaction
from airflow_delta.decorators.delta_stage import delta_stage_task
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.diff import DeltaDiffOperator
from airflow_delta.operators.preview import DeltaPreviewOperator
from airflow_delta.operators.transaction import DeltaCommitOperator, DeltaStartTransactionOperator

ROOT = os.environ["DELTA_EXAMPLES"]


def rows(*_: Any, dag_run: Any = None) -> Any:
    import pyarrow as pa

    return pa.table({"id": pa.array(range(int(dag_run.conf["rows"])), pa.int64())})


def gate(*_: Any, dag_run: Any = None) -> None:
    if not dag_run.conf.get("open"):
        raise AirflowFailException("not yet")


def look(*_: Any) -> None: ...


KINDS = {
    "audit": lambda staged, start: DeltaAuditOperator(task_id="check", transaction=start.output, staged=staged, min_rows=3),
    "diff": lambda staged, start: DeltaDiffOperator(task_id="check", transaction=start.output, staged=staged),
    "preview": lambda staged, start: DeltaPreviewOperator(task_id="check", transaction=start.output, staged=staged),
    "task": lambda staged, _start: task(look, task_id="check")(staged),
    "approval": lambda staged, _start: staged >> ApprovalOperator(task_id="check", subject="Publish?"),
    "empty": lambda staged, _start: staged >> EmptyOperator(task_id="check"),
}

for kind, check in KINDS.items():
    with DAG(f"checked_by_{kind}", schedule=None, start_date=datetime(2026, 1, 1)):
        start = DeltaStartTransactionOperator(task_id="start", table=f"{ROOT}/checked_by_{kind}_{{{{ logical_date.day }}}}")
        staged = delta_stage_task(rows, engine="arrow", task_id="stage", transaction=start.output)()
        closed = task(gate, task_id="gate")(staged)
        after = task(look, task_id="after")()
        check(staged, start) >> after
        [after, closed] >> DeltaCommitOperator(
            task_id="commit", transaction=start.output, staged=staged, record_approvals=kind == "approval"
        )


with DAG("checked_in_a_group", schedule=None, start_date=datetime(2026, 1, 1)) as grouped:
    start = DeltaStartTransactionOperator(task_id="start", table=f"{ROOT}/checked_in_a_group_{{{{ logical_date.day }}}}")

    @task_group(group_id="each")
    def each(number: int) -> Any:
        staged = delta_stage_task(rows, engine="arrow", task_id="stage", transaction=start.output)(number)
        task(look, task_id="check")(staged)
        return staged

    staged = each.expand(number=[0, 1, 2])
    everything = task(look, task_id="all")(staged)
    closed = task(gate, task_id="gate")(staged)
    commit = DeltaCommitOperator(task_id="commit", transaction=start.output, staged=staged)
    [everything, closed, grouped.task_group_dict["each"]] >> commit


with (
    DAG("checked_at_risk", schedule=None, start_date=datetime(2026, 1, 1)),
    delta_transaction("txn", table=f"{ROOT}/checked_at_risk", commit_kwargs={"trigger_rule": "all_done"}),
):
    staged = delta_stage_task(rows, engine="arrow", task_id="stage")()
    staged >> DeltaAuditOperator(task_id="audit", min_rows=9, retries=0) >> task(look, task_id="after")()


def tell_lineage(context: Any) -> None:
    """Write what OpenLineage's extractor gets of the task that has run."""
    import json
    from pathlib import Path

    from airflow.providers.openlineage.extractors.base import DefaultExtractor
    from openlineage.client.serde import Serde

    outputs = DefaultExtractor(context["task"]).extract_on_complete(None).outputs
    Path(f"{ROOT}/lineage_of_checks.json").write_text(json.dumps([json.loads(Serde.to_json(each)) for each in outputs]))


with (
    DAG("checked_with_lineage", schedule=None, start_date=datetime(2026, 1, 1)),
    delta_transaction("txn", table=f"{ROOT}/checked_with_lineage", commit_kwargs={"on_success_callback": tell_lineage}),
):
    delta_stage_task(rows, engine="arrow", task_id="stage")() >> DeltaAuditOperator(
        task_id="audit", min_rows=1, max_rows=3, max_null_fraction={"id": 0}, on_failure="warn"
    )


def write_elsewhere(after: Any = None, *, dag_run: Any = None) -> None:
    """Another writer, between the audit and the commit."""
    import deltalake
    import pyarrow as pa

    table, others = f"{ROOT}/held_{dag_run.conf['name']}", dag_run.conf["others"]
    if others == "DELETE":
        deltalake.DeltaTable(table).delete("id < 108")
    else:
        deltalake.write_deltalake(table, pa.table({"id": pa.array(others, pa.int64())}), mode="append")


HELD = {
    "statistics": {"rows_change": {"max_ratio": "{{ dag_run.conf['most'] }}"}},
    "unique": {"unique": "id", "holds_at": "{{ dag_run.conf['holds_at'] }}"},
    "sql": {
        "holds_at": "{{ dag_run.conf['holds_at'] }}",
        "checks": {"ids are unique": "SELECT count(*) = count(DISTINCT id) FROM result {{ dag_run.conf['where'] }}"},
    },
}

for kind, asked in HELD.items():
    held = DAG(f"held_by_{kind}", schedule=None, start_date=datetime(2026, 1, 1))
    with held, delta_transaction("txn", table=f"{ROOT}/held_{{{{ dag_run.conf['name'] }}}}"):
        staged = delta_stage_task(rows, engine="arrow", task_id="stage")()
        audit = DeltaAuditOperator(task_id="audit", **asked)
        task(write_elsewhere, task_id="others")(audit.output)
        staged >> audit
