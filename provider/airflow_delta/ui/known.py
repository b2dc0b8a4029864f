"""Which tables may be opened: Airflow's assets, and tables below the base path of a ``delta`` connection.

A request names a table by its URI, and only tables found here are opened. An asset means the table of its own URI, whatever its
events say, and a table is reached through a connection that the user may read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from sqlalchemy import select

from airflow_delta.airflow_internals import database
from airflow_delta.assets.delta import table_of_asset_uri
from airflow_delta.contract.location import Location, check_no_secret
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.allowed import API_SERVER, Allowed
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.storage.options import store_kind
from airflow_delta.task_notes import masked_by_airflow
from airflow_delta.ui.place import Place
from airflow_delta.ui.problems import PageProblem, cannot_be_shown, of_error, unknown_table

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_delta.ui.access import Viewer


logger = logging.getLogger(__name__)

Found = TypeVar("Found")

SECONDS_KEPT = 10.0
"""How long the list of tables and connections is reused."""

_CHUNK = 500
_LONGEST_URI = 2000
_NO_LOCATION = "This is not the location of a table"
_EVENT_KEYS = frozenset({"table", "version", "transaction_id"})


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table that may be opened.

    :param key: normal form of its location, see :func:`table_key`.
    :param uri: location as the engine opens it.
    :param asset_ids: its assets; empty for a table that is only below a connection's base path.
    :param conn_id: connection to reach it with; ``None`` for the credentials in the API server's environment.
    :param named: by asset, the connection in its URI; ``None`` if that is a location.
    """

    key: str
    uri: str
    asset_ids: tuple[int, ...] = ()
    conn_id: str | None = None
    named: Mapping[int, str | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the last part of the location."""
        return self.uri.rstrip("/").rpartition("/")[2]

    def place(self) -> Place:
        """Return where it is and how it is reached; storage is not accessed.

        :raises PageProblem: if the connection cannot be used.
        """
        if self.conn_id is None:
            try:
                Allowed.here(API_SERVER).check({}, store_kind(self.uri), "the default connection")
            except DeltaIllegalArgumentException as error:
                raise of_error(error, self.uri) from None
            return Place(self.uri, {}, Location.parse(self.uri).root)
        hook = _hook(self.conn_id)
        try:
            options = hook.storage_options(self.uri)
            within = hook.base_path or "/" if not self.asset_ids and self.key.startswith("file://") else None
        except Exception as error:  # noqa: BLE001 - any error of a secrets backend is shown
            raise of_error(error, self.uri) from None
        return Place(self.uri, options, self.conn_id, within)


@dataclass(frozen=True, slots=True)
class KnownConnection:
    """A connection of type ``delta``; ``error`` says why its base path cannot be read.

    :param base_path: in the normal form, with the account that the connection names.
    """

    conn_id: str
    base_path: str | None
    error: str | None = None

    def holds(self, key: str) -> bool:
        """Return whether a table is below the base path, or may be: a container of Azure without its account is any account's."""
        if not self.base_path:
            return False
        base, table = Location.parse(self.base_path), Location.parse(key)
        return base.holds(table) and is_below(table.path[len(base.path) :].removeprefix("/"))

    def place_of(self, key: str) -> str:
        """Return the location of a table below the base path, in the account of that path."""
        base, table = Location.parse(str(self.base_path)), Location.parse(key)
        return replace(base, path=table.path).uri


@dataclass(frozen=True, slots=True)
class Known:
    """All tables and connections that Airflow knows, for any user.

    :param notices: what could not be read, in sentences.
    """

    tables: Mapping[str, KnownTable]
    connections: tuple[KnownConnection, ...]
    has_default: bool = False
    notices: tuple[str, ...] = ()

    def seen_by(self, viewer: Viewer, table: KnownTable) -> KnownTable | None:
        """Return a table with the assets and the connection that a user may use for it; ``None`` if there are none."""
        ways: dict[str | None, list[int]] = {}
        for asset_id in table.asset_ids:
            if not viewer.may_read_asset(asset_id):
                continue
            named = table.named.get(asset_id)
            if named is None:
                allowed, conn_id = self._way_to(viewer, table.key)
            else:
                allowed, conn_id = viewer.may_read_connection(named), named
            if allowed:
                ways.setdefault(conn_id, []).append(asset_id)
        if not ways:
            return None
        # A connection named by an asset is the author's choice.
        chosen = next((named for named in table.named.values() if named is not None and named in ways), next(iter(ways)))
        return replace(table, asset_ids=tuple(sorted(asset_id for ids in ways.values() for asset_id in ids)), conn_id=chosen)

    def _way_to(self, viewer: Viewer, key: str) -> tuple[bool, str | None]:
        """Return whether a user may reach a location, and with which connection: the nearest of those they may read."""
        holding = [connection for connection in self.connections if connection.holds(key)]
        if holding:
            allowed = [connection for connection in holding if viewer.may_read_connection(connection.conn_id)]
            nearest = max(allowed, key=lambda connection: len(connection.base_path or ""), default=None)
            return nearest is not None, nearest.conn_id if nearest is not None else None
        if self.has_default:
            return viewer.may_read_connection(DeltaHook.default_conn_name), DeltaHook.default_conn_name
        return True, None


@lru_cache(maxsize=2048)  # the events of a table all name it
def table_key(uri: str) -> str:
    """Return the normal form of a location; its text alone decides.

    :raises PageProblem: if it is not a location.
    """
    if not uri or len(uri) > _LONGEST_URI or any(ord(character) < 32 or ord(character) == 127 for character in uri):
        raise PageProblem(400, _NO_LOCATION)
    try:
        check_no_secret(uri)
    except DeltaIllegalArgumentException:
        raise PageProblem(400, _NO_LOCATION, "It contains credentials.", uri) from None
    if "://" not in uri and not uri.lower().startswith(("/", "file:/")):
        raise PageProblem(400, _NO_LOCATION, "Give its full URI, or a name with its connection.", uri)
    try:
        location = Location.parse(uri)
        location.check_openable(uri)
    except DeltaIllegalArgumentException as error:
        raise PageProblem(400, _NO_LOCATION, error.message, uri) from None
    return location.key


def location_key(table: Any, conn_id: Any) -> str | None:
    """Return the normal form of a location that a task names; ``None`` if it is not one, or its connection cannot be read."""
    if not isinstance(table, str):
        return None
    try:
        return table_key(_hook(conn_id if isinstance(conn_id, str) else DeltaHook.default_conn_name).table_uri(table))
    except Exception:  # noqa: BLE001 - any error of a secrets backend
        return None


def is_below(name: str) -> bool:
    """Return whether a relative name stays below its start, whether or not it is URL-decoded."""
    decoded = unquote(name)
    return bool(name) and not any(
        part in ("", ".", "..") or "\\" in part or "\0" in part for text in (name, decoded) for part in text.split("/")
    )


def find_table(viewer: Viewer, uri: str) -> KnownTable:
    """Return the table that a request names.

    :raises PageProblem: if it is unknown or this user may not see it; the answer is the same.
    """
    known = known_tables()
    if uri.startswith("delta://"):
        # The answer must not reveal the connection: the user may not be allowed to read it.
        try:
            key = table_key(_of_asset_uri(uri)[0] or "")
        except PageProblem:
            raise unknown_table(uri) from None
    else:
        key = table_key(uri)
    if (table := known.tables.get(key)) is not None and (seen := known.seen_by(viewer, table)) is not None:
        return seen
    for connection in known.connections:
        if connection.holds(key) and viewer.may_read_connection(connection.conn_id):
            # Open exactly the form that was checked.
            return KnownTable(key, connection.place_of(key), (), connection.conn_id)
    raise unknown_table(uri)


def table_of_connection(viewer: Viewer, conn_id: str, name: str) -> str:
    """Return the URI of a name below a connection's base path, for the form that opens a table.

    :raises PageProblem: if there is no such connection for this user, or the name leads out of its base path.
    """
    found = next((connection for connection in known_tables().connections if connection.conn_id == conn_id), None)
    if found is None or not found.base_path or not viewer.may_read_connection(conn_id) or not is_below(name.strip("/")):
        raise unknown_table(f"{conn_id}: {name}")
    return f"{found.base_path.rstrip('/')}/{name.strip('/')}"


_lock = threading.Lock()
_kept: tuple[float, Known] | None = None
_hooks: dict[str, DeltaHook] = {}


def known_tables() -> Known:
    """Return the tables and connections that Airflow knows, at most :data:`SECONDS_KEPT` old."""
    global _kept
    with _lock:
        if _kept is None or time.monotonic() - _kept[0] > SECONDS_KEPT:
            with database.create_session(scoped=False) as session:
                _hooks.clear()
                _kept = (time.monotonic(), _load(session))
        return _kept[1]


def _hook(conn_id: str) -> DeltaHook:
    """Return the hook of a connection, which is looked up as rarely as the tables."""
    hook = _hooks.get(conn_id)
    if hook is None:
        hook = _hooks[conn_id] = DeltaHook(conn_id)
        hook.process = API_SERVER
    return hook


def commit_of_event(extra: Any) -> Mapping[str, Any] | None:
    """Return the commit in an asset event of a task or a watcher; ``None`` if there is none.

    Events sent to Airflow's API are ignored: they could name any location for the API server to open.
    """
    if not isinstance(extra, Mapping) or extra.get("from_rest_api"):
        return None
    said = extra.get("payload") if extra.get("from_trigger") else extra
    return said if isinstance(said, Mapping) and said.keys() >= _EVENT_KEYS else None


def _load(session: Session) -> Known:
    notices: list[str] = []
    connections: Sequence[KnownConnection] = _unless_gone("Connections", _connections, session, notices)
    assets: Sequence[tuple[int, str, Any]] = _unless_gone("Tables of assets", _assets, session, notices)
    found: dict[str, tuple[str, dict[int, str | None]]] = {}
    for asset_id, asset_uri, extra in assets:
        if (told := _table_of(asset_uri, commit_of_event(extra))) is not None:
            key, uri, conn_id = told
            found.setdefault(key, (uri, {}))[1][asset_id] = conn_id
    tables = {key: KnownTable(key, uri, tuple(named), named=named) for key, (uri, named) in found.items()}
    ordered = dict(sorted(tables.items(), key=lambda item: (item[1].name, item[0])))
    return Known(ordered, tuple(connections), _has_default(), tuple(notices))


def _unless_gone(
    what: str, function: Callable[[Session], Sequence[Found]], session: Session, notices: list[str]
) -> Sequence[Found]:
    """Return what a function reads; nothing, and say so, if this Airflow no longer has where it is: other errors may pass."""
    try:
        return function(session)
    except (ImportError, AttributeError):
        logger.exception("%s cannot be read from Airflow's database", what)
        notices.append(cannot_be_shown(what))
        return ()


def _table_of(asset_uri: str, said: Mapping[str, Any] | None) -> tuple[str, str, str | None] | None:
    """Return key, location and connection of an asset's table; ``None`` if it has none.

    :param said: the commit in its latest event. It gives the spelling of the location, and shows whether an asset with another
        scheme is a table. A table at another location is ignored.
    """
    is_ours = asset_uri.startswith("delta://")
    own, conn_id = _of_asset_uri(asset_uri) if is_ours else (asset_uri, None)
    try:
        key = table_key(own or "")
    except PageProblem:
        return None
    if said is not None and is_about(said, key):
        return key, str(said["table"]), conn_id
    return (key, str(own), conn_id) if is_ours else None


def is_about(said: Mapping[str, Any], key: str) -> bool:
    """Return whether an event is about a table: the author of an event could name any other one."""
    try:
        return table_key(str(said["table"])) == key
    except (PageProblem, KeyError):
        return False


def _has_default() -> bool:
    """Return whether there is a default connection, wherever Airflow keeps it."""
    try:
        return _hook(DeltaHook.default_conn_name).connection is not None
    except Exception:  # noqa: BLE001 - one that cannot be read exists
        return True


def _assets(session: Session) -> list[tuple[int, str, Any]]:
    """Return id, URI and the extra of the latest event of every asset, with one index lookup for each."""
    event_table, asset_table = database.AssetEvent, database.AssetModel
    latest = (
        select(event_table.id)
        .where(event_table.asset_id == asset_table.id)
        .order_by(event_table.timestamp.desc())
        .limit(1)
        .scalar_subquery()
    )
    assets = session.execute(select(asset_table.id, asset_table.uri, latest)).all()
    ids = [event_id for _, _, event_id in assets if event_id is not None]
    extras: dict[int, Any] = {}
    for start in range(0, len(ids), _CHUNK):
        rows = session.execute(select(event_table.id, event_table.extra).where(event_table.id.in_(ids[start : start + _CHUNK])))
        extras.update((event_id, extra) for event_id, extra in rows)
    return [(asset_id, uri, extras.get(event_id)) for asset_id, uri, event_id in assets]


def _connections(session: Session) -> tuple[KnownConnection, ...]:
    connection_table = database.Connection
    found = []
    wanted = (
        select(connection_table.conn_id)
        .where(connection_table.conn_type == DeltaHook.conn_type)
        .order_by(connection_table.conn_id)
    )
    for conn_id in session.scalars(wanted):
        try:
            base = _hook(conn_id).base_uri
            if base:
                table_key(base)
            found.append(KnownConnection(conn_id, base))
        except Exception as error:  # noqa: BLE001 - one unreadable connection must not hide the others
            found.append(KnownConnection(conn_id, None, masked_by_airflow(f"{type(error).__name__}: {error}")))
    return tuple(found)


def _of_asset_uri(asset_uri: str) -> tuple[str | None, str | None]:
    """Return location and connection of a ``delta://`` asset URI; ``(None, None)`` if they cannot be read."""
    try:
        table, conn_id = table_of_asset_uri(asset_uri)
        return _hook(conn_id or DeltaHook.default_conn_name).table_uri(table), conn_id
    except Exception:  # noqa: BLE001 - an unreadable connection must not hide the other tables
        return None, None
