"""A connection that a parameter names; if there is none, the error says which parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

if TYPE_CHECKING:
    from airflow.sdk import Connection


class MissingConnection(AirflowNotFoundException):
    """No connection has this id.

    :param conn_id: the id.
    """

    def __init__(self, message: str, conn_id: str) -> None:
        super().__init__(message)
        self.conn_id = conn_id


def named_connection(conn_id: str, parameter: str, kind: str) -> Connection:
    """Return a connection.

    :param parameter: what names it, for example ``delta_conn_id``.
    :param kind: the type that it should have.
    :raises MissingConnection: if there is none.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise MissingConnection(
            f"There is no connection {conn_id!r}, which {parameter} names. Create one of type {kind}, or correct {parameter}, "
            "which may come from the task, from the start task of its transaction, or from default_args.",
            conn_id,
        ) from error
