"""A connection that a parameter names; if there is none, the error says which parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

if TYPE_CHECKING:
    from airflow.sdk import Connection


def named_connection(conn_id: str, parameter: str, kind: str) -> Connection:
    """Return a connection.

    :param parameter: what names it, for example ``delta_conn_id``.
    :param kind: the type that it should have.
    :raises AirflowNotFoundException: if there is none.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise AirflowNotFoundException(
            f"There is no connection {conn_id!r}, which {parameter} names. Create one of type {kind}, or correct {parameter}, "
            "which may come from the task, from the start task of its transaction, or from default_args."
        ) from error
