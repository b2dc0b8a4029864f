"""Where the pages are: their URLs inside Airflow's UI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from airflow.sdk import conf

URL_PREFIX = "/delta-tables"
"""Where the pages are mounted in Airflow's API server."""

URL_ROUTE = "delta-tables"
"""Airflow's UI shows them under ``plugin/delta-tables``."""

PAGE_KEY = "delta_transaction_page"
"""XCom of a start task: the URL of the page that shows what its transaction would publish."""


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
