"""Links from a task to the plugin's pages of the table that it wrote, and of its commit.

Airflow asks for them on the worker when the task has ended, even if it failed, and keeps the answer as XCom. They read only the
task's return value and its rendered templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink, conf

from airflow_delta import masking

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

URL_PREFIX = "/delta-tables"
"""Where the pages are mounted in Airflow's API server."""

URL_ROUTE = "delta-tables"
"""Airflow's UI shows them under ``plugin/delta-tables``."""

_RETURN_VALUE = "return_value"
_MAX_MESSAGE = 500

PAGE_KEY = "delta_transaction_page"
"""XCom of a start task: the URL of the page that shows what its transaction would publish."""

FAILURE_KEY = "delta_commit_failure"
"""XCom of a failed commit task: a short form of the error."""

NOTE_KEY = "delta_failure_"
"""Key, before the number of the try, of the same in the state store of a task, which outlives a clear as no XCom does."""

WARNING_KEY = "delta_key_warning"
"""XCom of a task whose key another run has committed: the warning, so that the UI shows it."""


def leave_note(context: Mapping[str, Any], task: Any, error: BaseException) -> None:
    """Leave a short form of an error for the table's page in the state store of the running task.

    :param task: the task with its rendered fields; ``transaction`` may be its handle.
    """
    store = context.get("task_state_store")
    if store is not None:
        handle = getattr(task, "transaction", None)
        transaction_id = handle.get("transactionId") if isinstance(handle, Mapping) else None
        store.set(f"{NOTE_KEY}{context['ti'].try_number}", {**failure_note(error), "transaction_id": transaction_id})


def failure_note(error: BaseException) -> dict[str, Any]:
    """Return a short form of an error: its class, its first line, and the version that it conflicts with."""
    # XComs are stored and shown unmasked, unlike task logs.
    return {
        "exception": type(error).__name__,
        "message": masked_by_airflow(str(error).partition("\n")[0])[:_MAX_MESSAGE],
        "version": getattr(error, "winning_version", None),
    }


def masked_by_airflow(text: str) -> str:
    """Return a text with the secrets that Airflow knows, and credentials in URLs, masked."""
    from airflow_delta.airflow_internals.tasks import redacted

    return masking.masked(redacted(text))


class DeltaTableLink(BaseOperatorLink):
    """The table's history; also works for a failed task, whose template fields name the table."""

    name = "Delta table"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL of the table's page; empty if no table is known."""
        table = _result(ti_key).get("table") or _table_of(operator)
        return page_url("table", table=table) if table else ""


class DeltaTransactionLink(BaseOperatorLink):
    """What the open transaction of the task would publish; empty for a task that is not part of one."""

    name = "Delta transaction"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - the result says it all
        """Return the URL of the transaction's page."""
        return transaction_page(_result(ti_key))


class DeltaCommitLink(BaseOperatorLink):
    """The commit that the task made; empty if it made none."""

    name = "Delta commit"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - the result says it all
        """Return the URL of the commit's page; empty if the task committed nothing."""
        result = _result(ti_key)
        table, version = result.get("table"), result.get("version")
        if not table or not isinstance(version, int) or isinstance(version, bool) or version < 0:
            return ""
        return page_url("commit", table=table, version=str(version))


def page_url(page: str, **parameters: str) -> str:
    """Return the URL of a page inside Airflow's UI: with the host if ``[api] base_url`` is set, otherwise from the root."""
    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    # The UI shows in its frame what follows its own route: the path of the page as the browser requests it.
    return f"{base}/plugin/{URL_ROUTE}{urlsplit(base).path}{URL_PREFIX}/{page}?{urlencode(parameters)}"


def transaction_page(told: Mapping[str, Any]) -> str:
    """Return the URL of the page of an open transaction; empty if that is not known.

    :param told: its handle, or what a task of it returned.
    """
    table, transaction_id = told.get("table"), told.get("transactionId")
    return page_url("transaction", table=table, id=transaction_id) if table and transaction_id else ""


def _result(ti_key: TaskInstanceKey) -> Mapping[str, Any]:
    """Return the task's return value if it is a mapping, otherwise an empty one."""
    from airflow_delta.airflow_internals.tasks import returned_by

    value = returned_by(ti_key, _RETURN_VALUE)
    return value if isinstance(value, Mapping) else {}


def _table_of(operator: BaseOperator) -> str | None:
    """Return the table in the rendered fields: the handle's, or the operator's own."""
    handle = getattr(operator, "transaction", None)
    table = handle.get("table") if isinstance(handle, Mapping) else getattr(operator, "table", None)
    if not isinstance(table, str) or not table:
        return None
    if "://" in table or table.startswith("/"):
        return table
    from airflow_delta.assets.delta import delta_asset_uri

    return delta_asset_uri(table, getattr(operator, "delta_conn_id", None))
