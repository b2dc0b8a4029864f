"""Links from a task to the plugin's pages about the table that it wrote, and about its commit.

Airflow asks for them on the worker when the task has ended, also when it failed, and keeps the answer as XCom. They read what
the task returned and what its templates became: no storage, no log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink

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

FAILURE_KEY = "delta_commit_failure"
"""XCom of a commit task that failed: the error in short, for the page of the table."""


def failure_note(error: BaseException) -> dict[str, Any]:
    """Return what a failed commit leaves under :data:`FAILURE_KEY`: its error, and the version that it lost against."""
    # An XCom is kept and shown as it is; only task logs are masked on the way.
    return {
        "exception": type(error).__name__,
        "message": masked(str(error).partition("\n")[0])[:_MAX_MESSAGE],
        "version": getattr(error, "winning_version", None),
    }


def masked(text: str) -> str:
    """Return a text without the secrets that Airflow knows of, and without the credentials of URLs."""
    from airflow.sdk._shared.secrets_masker import redact

    return masking.masked(str(redact(text)))


class DeltaTableLink(BaseOperatorLink):
    """The history of the table; there also when the task failed, since its template fields name the table."""

    name = "Delta table"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL of the table's page, empty when no table is known."""
        table = _result(ti_key).get("table") or _table_of(operator)
        return page_url("table", table=table) if table else ""


class DeltaCommitLink(BaseOperatorLink):
    """The commit that the task made; empty when it made none."""

    name = "Delta commit"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - the result says it all
        """Return the URL of the commit's page, empty when the task committed nothing."""
        result = _result(ti_key)
        table, version = result.get("table"), result.get("version")
        if not table or not isinstance(version, int) or isinstance(version, bool) or version < 0:
            return ""
        return page_url("commit", table=table, version=str(version))


def page_url(page: str, **parameters: str) -> str:
    """Return the URL of a page inside Airflow's UI: with the host when ``[api] base_url`` is set, else from the root."""
    from airflow.sdk.configuration import conf

    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    # The UI shows what comes after its own route in the frame: the path of the page as the browser would ask for it.
    return f"{base}/plugin/{URL_ROUTE}{urlsplit(base).path}{URL_PREFIX}/{page}?{urlencode(parameters)}"


def _result(ti_key: TaskInstanceKey) -> Mapping[str, Any]:
    """Return what the task returned; empty when it returned nothing that describes a commit."""
    from airflow.sdk.execution_time.xcom import XCom

    value = XCom.get_value(ti_key=ti_key, key=_RETURN_VALUE)
    return value if isinstance(value, Mapping) else {}


def _table_of(operator: BaseOperator) -> str | None:
    """Return the table that the rendered fields name as URI or absolute path: the handle's, or the operator's own."""
    handle = getattr(operator, "transaction", None)
    table = handle.get("table") if isinstance(handle, Mapping) else getattr(operator, "table", None)
    if not isinstance(table, str) or not table:
        return None
    if "://" in table or table.startswith("/"):
        return table
    from airflow_delta.assets.delta import delta_asset_uri

    return delta_asset_uri(table, getattr(operator, "delta_conn_id", None))
