"""What a shell completes (argcomplete): tables and connections. Errors complete nothing, and it is not kept waiting."""

from __future__ import annotations

import json
import os
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from sqlalchemy import select

from airflow_delta.airflow_internals import database
from airflow_delta.assets.delta import delta_asset_uri, table_of_asset_uri
from airflow_delta.hooks.delta import DeltaHook

_SECONDS = 4.0
"""How long a shell waits: a storage or a database that has not answered by then is left out. Half of the time may be imports."""

_MOST = 200
"""Names of one kind."""

_LOOKED_INTO = 50
"""Directories that are looked into, to tell a table from a folder of tables."""

_VARIABLE = "AIRFLOW_CONN_"


def table_names(*, prefix: str, parsed_args: Namespace, **_line: Any) -> list[str]:
    """Return names of tables that begin with a prefix: in the directory that it names, by default the base path, and assets."""
    conn_id = getattr(parsed_args, "conn_id", None)
    return _found(prefix, lambda: _in_directory(prefix, conn_id), lambda: _assets(prefix, conn_id))


def connections(*, prefix: str, **_line: Any) -> list[str]:
    """Return ids of connections of type Delta Lake: of environment variables, and of Airflow's database."""
    return _found(prefix, _of_variables, lambda: _of_database(prefix))


def _found(prefix: str, *sources: Callable[[], Iterable[str]]) -> list[str]:
    """Ask all sources at once, and return what they answer in time."""
    # As the commands do: otherwise the Task SDK does not look into the metadata database.
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    found: set[str] = set()

    def ask(source: Callable[[], Iterable[str]]) -> None:
        with suppress(Exception):  # a shell that completes shows no errors
            found.update(name for name in source() if name.startswith(prefix))

    threads = [threading.Thread(target=ask, args=(source,), daemon=True) for source in sources]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _SECONDS
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    return sorted(found.copy())


def _in_directory(prefix: str, conn_id: str | None) -> Iterator[str]:
    """Yield the tables and folders in the directory that a prefix names, folders with a slash; without one, in the base path."""
    directory, slash, last = prefix.rpartition("/")
    if prefix.startswith(("~", "delta:")) or directory.endswith(":/"):  # no bucket yet
        return
    hook = DeltaHook(conn_id or DeltaHook.default_conn_name)
    above = f"{directory}{slash}"
    store = hook.get_log(directory or slash).store if above else hook.get_conn()
    hidden = ("_", ".") if not last else ()
    names = [name for name in store.list_children("")[1] if name.startswith(last) and not name.startswith(hidden)][:_MOST]

    def shown(name: str) -> str:
        return f"{above}{name}" if hook.get_log(f"{above}{name}").table_exists() else f"{above}{name}/"

    with ThreadPoolExecutor(16) as pool:
        yield from pool.map(shown, names[:_LOOKED_INTO])
    yield from (f"{above}{name}" for name in names[_LOOKED_INTO:])


def _assets(prefix: str, conn_id: str | None) -> Iterable[str]:
    """Return the assets of tables, those of the connection also by their name below it."""
    asset_table = database.AssetModel
    own = delta_asset_uri("x", conn_id).removesuffix("x")
    as_uri = prefix.startswith("delta:")
    with database.create_session(scoped=False) as session:
        wanted = select(asset_table.uri).where(asset_table.uri.startswith(prefix if as_uri else own, autoescape=True))
        uris = list(session.scalars(wanted.order_by(asset_table.uri).limit(_MOST)))
    return uris if as_uri else [table_of_asset_uri(uri)[0] for uri in uris]


def _of_variables() -> Iterable[str]:
    for name, value in os.environ.items():
        if name.startswith(_VARIABLE) and _is_delta(value):
            yield name.removeprefix(_VARIABLE).lower()


def _is_delta(connection: str) -> bool:
    """Return whether the text of a connection, a URI or JSON, is of type Delta Lake."""
    if not connection.startswith("{"):
        return connection.startswith(f"{DeltaHook.conn_type}:")
    try:
        given = json.loads(connection)
    except ValueError:
        return False
    return isinstance(given, dict) and given.get("conn_type") == DeltaHook.conn_type


def _of_database(prefix: str) -> Iterable[str]:
    connection_table = database.Connection
    wanted = select(connection_table.conn_id).where(
        connection_table.conn_type == DeltaHook.conn_type, connection_table.conn_id.startswith(prefix, autoescape=True)
    )
    with database.create_session(scoped=False) as session:
        return list(session.scalars(wanted.order_by(connection_table.conn_id).limit(_MOST)))
