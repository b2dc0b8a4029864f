"""Where an external job writes: a directory for each of its tries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.staging_directory import stage_key
from airflow_delta.dag_rules.task_loops import check_no_loop
from airflow_delta.tasks.trust.handle import open_transaction
from airflow_delta.tasks.trust.received import parse_handle

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol


STAGING_PATH_KEY = "staging_path"


def staging_path(transaction: Any, ti: RuntimeTaskInstanceProtocol) -> str:
    """Return the URI of a directory for the Parquet files of this try, and push it as XCom ``staging_path``.

    Each try gets its own directory, so that nothing of a failed try is published. ``DeltaStageFilesOperator`` takes it as
    ``path=job.output["staging_path"]``. Also works as a Jinja macro (``user_defined_macros``).

    :param transaction: output of the start task.
    :param ti: the running task instance.
    :raises HandleMismatchException: if no start task before this task began the transaction.
    :raises DeltaIllegalArgumentException: inside a task loop, whose iterations would share the directory.
    """
    handle = parse_handle(transaction, task_id=ti.task_id)
    if (context := getattr(ti, "get_template_context", None)) is not None:
        job = SimpleNamespace(transaction=handle, task_id=ti.task_id, delta_conn_id=None, changes_table=False)
        check_no_loop(context())
        open_transaction(job, context())
    key = stage_key(ti.task_id, -1 if ti.map_index is None else ti.map_index)
    path = f"{handle.staging_path.rstrip('/')}/{key}/try-{ti.try_number}"
    ti.xcom_push(STAGING_PATH_KEY, path)
    return path
