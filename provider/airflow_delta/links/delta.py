"""Links from a task to the plugin's pages of the table that it wrote, and of its commit.

Airflow asks for them on the worker when the task has ended, even if it failed, and keeps the answer as XCom. They read only the
task's return value and its rendered templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

from airflow_delta.links.pages import page_url, transaction_page

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


_RETURN_VALUE = "return_value"


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
