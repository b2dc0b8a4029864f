"""The one call that this provider's tasks make to Airflow's REST API: clear tasks of a run and everything after them."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from airflow_delta import http_answers
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.extra import extra_of
from airflow_delta.hooks.named_connection import named_connection

_TIMEOUT = 30.0
_ATTEMPTS = 5
_PAUSE = 2.0


def clear_with_downstream(conn_id: str, *, dag_id: str, run_id: str, tasks: Sequence[Any]) -> list[str]:
    """Clear tasks of a run and their downstream tasks; return the ids of the cleared tasks.

    Does what the button in the UI does. The connection's user needs permission to edit task instances of this Dag.

    :param conn_id: connection whose host is the URL of the API server; ``login`` and ``password`` of a user, or a token as
        ``password``. Extra ``verify``: as ``httpx`` takes it, ``false`` or a file of certificates.
    :param tasks: task ids, or pairs of task id and map index.
    :raises OSError: if the API did not answer or refused.
    """
    conn = named_connection(conn_id, "restart_conn_id", "http")
    body = {
        "dry_run": False,
        "dag_run_id": run_id,
        "task_ids": list(tasks),
        "include_downstream": True,
        "only_failed": False,
        "reset_dag_runs": True,
    }
    with httpx.Client(base_url=_base_url(conn, conn_id), timeout=_TIMEOUT, verify=_verify(conn)) as client:
        headers = {"Authorization": f"Bearer {_token(client, conn, conn_id)}"}
        path = f"/api/v2/dags/{quote(dag_id, safe='')}/clearTaskInstances"
        answer = _post(client, path, body, headers)
    cleared = [str(ti["task_id"]) for ti in answer.get("task_instances", [])]
    names = [task if isinstance(task, str) else task[0] for task in tasks]
    if missing := [name for name in names if name not in cleared]:
        raise OSError(f"Airflow's REST API cleared {cleared or 'no task'} of run {run_id}, not {', '.join(missing)}")
    return cleared


def _base_url(conn: Any, conn_id: str) -> str:
    host = str(conn.host or "").rstrip("/")
    if not host:
        raise DeltaIllegalArgumentException(
            f"The connection {conn_id!r} has no host. Set it to the URL of Airflow's API server, such as "
            "https://airflow.example.com."
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
    given = extra_of(conn).get("verify", True)
    if not isinstance(given, str):
        return given
    if given.lower() in ("true", "false"):
        return given.lower() == "true"
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
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            response = http_answers.request(client, "POST", path, json=body, headers=headers)
        except httpx.RequestError as error:
            said, again = str(error), isinstance(error, httpx.TransportError)
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
