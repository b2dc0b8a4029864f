"""Check the handle that a task gets as XCom against the Dag file.

Users who may write XComs may not be allowed to delete a table, but they cannot change the Dag file. So each task renders the
start task's table, connection and key itself, in its own context, and refuses a handle that says otherwise. A transaction's id
also names its owner: it starts with a digest of the Dag, the start task and the run. What an existing table is comes from its log
(:mod:`airflow_delta.table.state.read_snapshot`), what a new one will be from the start task in the Dag file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.read_versions import read_version_name
from airflow_delta.contract.staging_directory import transaction_directory
from airflow_delta.exceptions import (
    CatalogConflictException,
    DeltaTableNotFoundException,
    HandleMismatchException,
    StagingException,
)
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.tasks.dag_file import (
    argument_of,
    is_written_out,
    referenced_tasks,
    start_tasks,
    starts_of,
    task_definition,
)
from airflow_delta.tasks.trust.declared_start import DeclaredStart, reservation_of, table_uri
from airflow_delta.tasks.trust.received import parse_handle

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog


def open_transaction(operator: Any, context: Context, *, start: Any = None) -> tuple[DeltaLog, TransactionHandle]:
    """Return the log and the handle of the transaction that a task works for.

    The handle must be what the start task that it comes from would have returned in this run: its table, connection, key and
    policy, an id of its own, the staging directory of that id below the table, and the definition of a new table. Without such a
    task the operator's own ``table`` must be the handle's. A literal handle in the Dag file is trusted.

    :param operator: has ``transaction`` and ``delta_conn_id``, rendered, and may have ``table``. With ``changes_table`` it
        publishes or deletes: its ``table`` must be the handle's even if there is a start task.
    :param start: the start task in the Dag file that the handle must come from, if the operator works for several transactions.
    :raises HandleMismatchException: if the handle says otherwise, or nothing in the Dag file says which table it may name.
    :raises StagingException: if there is no handle.
    """
    handle = parse_handle(operator.transaction, task_id=operator.task_id)
    mismatches: list[str] = []
    starts = start_tasks(operator, context) if start is None else [start]
    declared = None
    for start in starts or ():
        declared = DeclaredStart.of(start, context, handle)
        mismatches = list(declared.mismatches(handle, context))
        if not mismatches:
            handle = declared.completed(handle)
            break
    if mismatches:
        raise _refused(handle, operator, "; ".join(mismatches))
    conn_id = operator.delta_conn_id
    if conn_id is None and (declared is not None or starts is None):
        conn_id = handle.delta_conn_id
    conn_id = conn_id or DeltaHook.default_conn_name
    given = getattr(operator, "table", None)
    if given is not None and (operator.changes_table or declared is None):
        if (expected := table_uri(given, conn_id, handle)) != handle.table:
            raise _refused(handle, operator, f"the table of the task is {expected}")
        if declared is None and handle.delta_conn_id not in (None, conn_id):
            raise _refused(
                handle, operator, f"the connection of the task is {conn_id}, not {handle.delta_conn_id}; pass delta_conn_id="
            )
    elif starts is not None and declared is None:
        raise _refused(
            handle,
            operator,
            "no start task is upstream of this task, so the Dag file does not say which table it may be about; pass table=",
        )
    log = _open(conn_id, handle, aborts=getattr(operator, "transaction_role", None) == "abort")
    try:
        own = transaction_directory(handle.transaction_id)
    except StagingException as error:
        raise _refused(handle, operator, error.message) from None
    if handle.staging_path != f"{log.uri}/{own}" or log.uri != handle.table:
        raise _refused(handle, operator, f"its staging path {handle.staging_path} is not that of its id below the table")
    if declared is not None and _is_not_first(log, handle):
        why = f"a transaction with rerun_policy {handle.rerun_policy!r} is the first with its key, not {handle.txn_version}"
        raise _refused(handle, operator, why)
    return log, handle


def _open(conn_id: str, handle: TransactionHandle, *, aborts: bool) -> DeltaLog:
    """Return the log of a handle's table. Of one in a catalog, the catalog says where it is; the caller compares.

    A table that the catalog does not have is opened as it was reserved, and the catalog says where.

    :param aborts: what was staged is wanted even if the name is another table's by now.
    :raises CatalogConflictException: if the name of a new table is another one's by now.
    """
    hook = DeltaHook(conn_id)
    if not hook.fields.is_catalog or not handle.given_table:
        return hook.get_log(handle.table)
    reservation = reservation_of(conn_id, handle)
    if reservation is None:
        return hook.get_log(handle.given_table)
    try:
        log = hook.get_log(handle.given_table)
    except DeltaTableNotFoundException:
        return hook.get_reserved_log(handle.given_table, reservation)
    if log.uri == handle.table:
        return log
    if aborts:
        return hook.get_reserved_log(handle.given_table, reservation)
    raise handle.error(
        CatalogConflictException,
        f"The name {handle.given_table} is another table's by now ({log.uri}), which was created since transaction "
        f"{handle.transaction_id} began to create it at {handle.table}. Nothing was committed. Clear the start task to work on "
        "that table.",
    )


def _is_not_first(log: DeltaLog, handle: TransactionHandle) -> bool:
    """Return whether a handle says that its key was committed before, though its policy allows one commit that stands."""
    if handle.monotonic or not handle.txn_version or handle.committed is not None or handle.rerun_policy not in ("skip", "fail"):
        return False
    return engine.standing_version(log.update(), handle.app_id, handle.txn_version - 1) is not None  # it was not taken back


def _refused(handle: TransactionHandle, operator: Any, why: str) -> HandleMismatchException:
    return handle.error(
        HandleMismatchException,
        f"The task {operator.task_id!r} got transaction {handle.transaction_id} on table {handle.table} "
        f"({read_version_name(handle.read_version)}), which does not match the Dag file: {why}. Nothing was written or deleted. "
        "If the Dag changed after the start task ran, or that ran in an earlier release, clear the start task. Otherwise its "
        "XCom was altered.",
    )


def check_table_of_result(operator: Any, context: Context, table: str) -> None:
    """Check that a commit's result (``committed`` of a task), passed as XCom, names a table of the Dag file.

    :param table: the table in the result.
    :raises HandleMismatchException: if no task that it can come from commits to that table.
    """
    definition = task_definition(operator, context)
    if definition is None:
        return
    given = argument_of(definition, "committed", None)
    sources = referenced_tasks(given)
    if not sources:
        if is_written_out(given):
            return
        sources = list(definition.get_flat_relatives(upstream=True))
    tasks = [*sources, *(start for source in sources for start in starts_of(source) or ())]
    uris = [uri for task in tasks if argument_of(task, "table", None) is not None for uri in DeclaredStart.of(task, context).uris]
    if table not in uris:
        known = f"the tasks that it comes from commit to {' or '.join(uris[:3])}" if uris else "no task upstream names a table"
        raise HandleMismatchException(
            f"The task {operator.task_id!r} got the result of a commit to {table}, but in the Dag file {known}. Nothing was "
            "done. Pass table=. If the Dag has not changed since the commit, its XCom was altered.",
            table=table,
        )
