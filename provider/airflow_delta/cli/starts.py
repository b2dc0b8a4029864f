"""The Dag runs of transactions that have not committed, from Airflow's metadata database."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import select

from airflow_delta.airflow_internals import database
from airflow_delta.contract.staging_directory import OWNER_LENGTH, owner_prefix

if TYPE_CHECKING:
    from airflow_delta.table.state.open_transactions import TransactionState

logger = logging.getLogger(__name__)

_START = "DeltaStartTransactionOperator"

_MAX_STARTS = 20_000
"""Start tasks that are looked at, the latest ones: a digest for each."""


def with_runs(transactions: Sequence[TransactionState]) -> list[TransactionState]:
    """Return the transactions, each with the Dag run of the start task that began it, if Airflow still knows that.

    A commit names its run itself. Of an open one only its id tells: it is made of Dag, start task and run.
    """
    unknown = [one for one in transactions if one.run_id is None]
    if not unknown:
        return list(transactions)
    try:
        starts = _starts(max(one.last_modified or 0 for one in unknown))
    except Exception as error:  # noqa: BLE001 - without a database, or with another one, the rest is shown
        logger.info("The Dag runs of uncommitted transactions are not shown: %s: %s", type(error).__name__, error)
        return list(transactions)
    return [_with_run(one, starts) for one in transactions]


def _with_run(transaction: TransactionState, starts: Mapping[str, tuple[str, str]]) -> TransactionState:
    run = starts.get(transaction.transaction_id[:OWNER_LENGTH]) if transaction.run_id is None else None
    return transaction if run is None else replace(transaction, dag_id=run[0], run_id=run[1])


def _starts(until: int) -> dict[str, tuple[str, str]]:
    """Return Dag id and run id of the latest start tasks, by what the ids of their transactions begin with.

    :param until: when the transactions were last touched, in milliseconds; a start task began before.
    """
    instance_table = database.TaskInstance
    wanted = (
        select(instance_table.dag_id, instance_table.task_id, instance_table.run_id)
        .where(
            instance_table.operator == _START,
            instance_table.start_date <= datetime.fromtimestamp(until / 1000 + 600, UTC),
        )
        .order_by(instance_table.start_date.desc())
        .limit(_MAX_STARTS)
    )
    with database.create_session(scoped=False) as session:
        found = [tuple(row) for row in session.execute(wanted)]
    return {owner_prefix(dag_id, task_id, run_id): (dag_id, run_id) for dag_id, task_id, run_id in found}
