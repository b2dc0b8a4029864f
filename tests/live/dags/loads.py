"""The Dag of most scenarios: one transaction, one stage, one check, and a task that has nothing to do with it.

Table, month, policy, key and faults come with the run. The same with an overwrite of the month, and with a key of the author's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import AssetAlias, dag, get_current_context, task

from airflow_delta import delta_transaction
from airflow_delta.operators.alter import DeltaAlterTableOperator
from live import faults
from live.names import HOLDING_POOL
from live.stages import RowsStageOperator

faults.install()
MONTH = "{{ dag_run.conf.get('month', '2013-01') }}"


def loads(
    dag_id: str, *, transaction_key: str | None = None, group: Mapping[str, Any] = MappingProxyType({}), **stage: Any
) -> None:
    @dag(
        dag_id=dag_id,
        schedule=None,
        start_date=datetime(2013, 1, 1),
        is_paused_upon_creation=False,
        default_args={"pool": HOLDING_POOL, "retries": 3, "retry_delay": timedelta(seconds=1)},
    )
    def load():
        with delta_transaction(
            "txn",
            table="{{ dag_run.conf['table'] }}",
            transaction_key=transaction_key,
            rerun_policy="{{ dag_run.conf.get('policy', 'skip') }}",
            partition_by=["month"],
            outlets=[AssetAlias(dag_id)],
            **group,
        ):
            staged = RowsStageOperator(
                task_id="stage",
                month=MONTH,
                pre_execute=faults.at("stage.begin"),
                post_execute=faults.at("stage.staged"),
                **stage,
            )

            @task
            def audit(staged):
                faults.strike("audit", get_current_context())
                assert staged["alreadyCommitted"] or staged["numRecords"]

            audit(staged.output)
        EmptyOperator(task_id="unrelated")

    load()


class FaultyAlterOperator(DeltaAlterTableOperator):
    """With the point ``commit.logged``."""

    def execute(self, context: Any) -> Any:
        self.post_commit_hooks = [faults.logged()]
        return super().execute(context)


@dag(
    schedule=None,
    start_date=datetime(2013, 1, 1),
    is_paused_upon_creation=False,
    default_args={"pool": HOLDING_POOL, "retries": 3, "retry_delay": timedelta(seconds=1)},
)
def alone():
    """An operation that is a transaction of its own; each time that it is done is one version."""
    FaultyAlterOperator(
        task_id="alone",
        table="{{ dag_run.conf['table'] }}",
        rerun_policy="{{ dag_run.conf['policy'] }}",
        changes=[{"change": "SetProperties", "properties": {"of": "{{ ti.try_number }}"}}],
    )


alone()
loads("load")
loads("load_keyed", transaction_key="{{ dag_run.conf['key'] }}")
loads("load_month", mode="overwrite", replace_where=f"month = '{MONTH}'")
loads("load_checked", group={"on_outdated": "check_again", "restart_conn_id": "airflow_api"})
