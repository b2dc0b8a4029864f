"""The one call that this provider's tasks make to Airflow's REST API: clear a task and everything after it."""

from __future__ import annotations

import os
import time
from typing import Any
from urllib.parse import quote, urlsplit

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.named import named_connection

_TIMEOUT = 30.0
_ATTEMPTS = 5
_PAUSE = 2.0


def clear_with_downstream(conn_id: str, *, dag_id: str, run_id: str, task: Any) -> list[str]:
    """Clear a task of a run and its downstream tasks; return the ids of the cleared tasks.

    Does what the button in the UI does. The connection's user needs permission to edit task instances of this Dag.

    :param conn_id: connection whose host is the URL of the API server; ``login`` and ``password`` of a user, or a token as
        ``password``. Extra ``verify``: as ``httpx`` takes it, ``false`` or a file of certificates.
    :param task: a task id, or a pair of task id and map index.
    :raises DeltaIllegalArgumentException: if the connection has no host or no password.
    :raises OSError: if the API did not answer or refused.
    """
    import httpx

    conn = named_connection(conn_id, "restart_conn_id", "http")
    body = {
        "dry_run": False,
        "dag_run_id": run_id,
        "task_ids": [task],
        "include_downstream": True,
        "only_failed": False,
        "reset_dag_runs": True,
    }
    with httpx.Client(base_url=_base_url(conn, conn_id), timeout=_TIMEOUT, verify=_verify(conn)) as client:
        headers = {"Authorization": f"Bearer {_token(client, conn, conn_id)}"}
        path = f"/api/v2/dags/{quote(dag_id, safe='')}/clearTaskInstances"
        answer = _post(client, path, body, headers)
    cleared = [str(ti["task_id"]) for ti in answer.get("task_instances", [])]
    name = task if isinstance(task, str) else task[0]
    if name not in cleared:
        raise OSError(f"Airflow's REST API cleared {cleared or 'no task'} of run {run_id}, not {name}")
    return cleared


def _base_url(conn: Any, conn_id: str) -> str:
    host = str(conn.host or "").rstrip("/")
    if not host:
        raise DeltaIllegalArgumentException(
            f"The connection {conn_id!r} has no host. Set it to the URL of Airflow's API server, such as https://airflow.example.com."
        )
    if "://" not in host:
        # A connection written as https://user:password@host has the scheme as its type.
        host = f"{conn.schema or ('https' if conn.conn_type == 'https' else 'http')}://{host}"
    parts = urlsplit(host)
    if conn.port and parts.port is None:  # http://user:password@https%3A%2F%2Fhost:8080 has its port apart
        return parts._replace(netloc=f"{parts.netloc}:{conn.port}").geturl()
    return host


def _verify(conn: Any) -> Any:
    """Return what the connection says about certificates; an extra in the query of a URI is always text."""
    given = conn.extra_dejson.get("verify", True)
    if not isinstance(given, str):
        return given
    if given.lower() in ("true", "false"):
        return given.lower() == "true"
    import ssl

    return ssl.create_default_context(capath=given) if os.path.isdir(given) else ssl.create_default_context(cafile=given)


def _token(client: Any, conn: Any, conn_id: str) -> str:
    if not conn.password:
        raise DeltaIllegalArgumentException(
            f"The connection {conn_id!r} has no password. Set login and password of an Airflow user, or only a password: a token "
            "of Airflow's REST API."
        )
    if not conn.login:
        return str(conn.password)
    return str(_post(client, "/auth/token", {"username": conn.login, "password": conn.password}, {})["access_token"])


def _post(client: Any, path: str, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    """Post JSON, and again if the server is busy or away: both requests may be sent twice."""
    import httpx

    for attempt in range(1, _ATTEMPTS + 1):
        try:
            response = client.post(path, json=body, headers=headers)
        except httpx.TransportError as error:
            said, again = str(error), True
        else:
            if response.is_success:
                answer: dict[str, Any] = response.json()
                return answer
            # What it says, not the request: that may hold a password.
            said, again = f"{response.status_code}: {response.text[:300]}", response.status_code in (429, 500, 502, 503, 504)
        if not again or attempt == _ATTEMPTS:
            break
        time.sleep(_PAUSE * attempt)
    raise OSError(f"Airflow's REST API failed: POST {path}: {said}")
