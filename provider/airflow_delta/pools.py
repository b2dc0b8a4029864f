"""An Airflow pool for the writers of a table, which ``airflow delta pool`` makes: Dag files and tasks cannot."""

from __future__ import annotations

import hashlib
import re

from airflow_delta.assets.delta import SCHEME, delta_asset_uri
from airflow_delta.exceptions import DeltaIllegalArgumentException

_LONGEST = 150


def table_pool(table: str, delta_conn_id: str | None = None) -> str:
    """Return the name of a table's pool, for ``pool=`` of tasks that are a transaction of their own.

    ::

        DeltaMergeOperator(task_id="merge", table="orders", delta_conn_id="lake", pool=table_pool("orders", "lake"), ...)

    With one slot, one of these tasks runs at a time, in whatever Dag: it reads the table after the one before has committed. It
    does not keep the transactions of ``delta_transaction`` groups apart, since a slot is a task's and not a group's.

    :param table: URI, absolute path, or a name below the connection's base path, always as in the tasks; not templated.
    :param delta_conn_id: connection that a relative name belongs to.
    :raises DeltaIllegalArgumentException: if the table is empty or templated, or its location contains credentials.
    """
    if "{{" in table or "{%" in table:
        raise DeltaIllegalArgumentException(
            f"The pool of a table needs its name when the Dag is parsed, got the template {table!r}."
        )
    uri = delta_asset_uri(table, delta_conn_id)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", uri.removeprefix(f"{SCHEME}://"))
    return f"{SCHEME}.{name[-_LONGEST:]}.{hashlib.sha256(uri.encode()).hexdigest()[:8]}"
