"""A start task as the Dag file declares it, rendered in the context of another task: what its handle may say."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.catalog_names import Reservation
from airflow_delta.contract.kinds import kinds_of, taken
from airflow_delta.contract.staging_directory import is_owned_by
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.tasks.dag_file import (
    Each,
    argument_of,
    scope_of,
)
from airflow_delta.tasks.keys.default_key import default_key_prefix
from airflow_delta.tasks.parameters import rendered_text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog


def reservation_of(conn_id: str, handle: TransactionHandle) -> Reservation | None:
    """Return what a handle says of a table that does not exist and is reserved in a catalog; ``None`` of any other."""
    if handle.read_version >= 0 or handle.committed is not None:
        return None
    reservation = Reservation.of_new_table(handle.table, handle.configuration)
    return reservation if reservation is not None and DeltaHook(conn_id).fields.is_catalog else None


def table_uri(table: str, conn_id: str, handle: TransactionHandle | None = None) -> str:
    """Return the location of a table that the Dag file names.

    :param handle: if it begins a table that is reserved in a catalog, that is where a name may lead: opening it will tell.
    """
    if handle is not None and reservation_of(conn_id, handle) is not None:
        return handle.table if table == handle.given_table else table
    return DeltaHook(conn_id).get_log(table).uri


def logs_of(start: Any, context: Context) -> list[DeltaLog]:
    """Return the logs of the tables that a start task in the Dag file names, in the context of another task."""
    declared = DeclaredStart.of(start, context)
    return [DeltaHook(conn_id).get_log(table) for table in declared.tables for conn_id in dict.fromkeys(declared.conn_ids)]


@dataclass(frozen=True, slots=True)
class DeclaredStart:
    """The rendered arguments of a start task: the values that each may have."""

    start: Any
    tables: tuple[str, ...]
    conn_ids: tuple[str, ...]
    uris: tuple[str, ...]
    identity: Mapping[str, tuple[Any, ...]]
    definition: Mapping[str, tuple[Any, ...]]

    @classmethod
    def of(cls, start: Any, context: Context, handle: TransactionHandle | None = None) -> DeclaredStart:
        """Render the arguments of a start task in the context of another task.

        :param handle: to check. If its table is new, also those that define it, which may take XComs to render.
        """
        scope = scope_of(start, context)

        kinds = kinds_of(getattr(start, "operator_class", None) or type(start))

        def rendered(name: str, given: Any) -> Any:
            if name in _KEYS and isinstance(given, str):
                return rendered_text(given, scope, start.get_template_env())
            return start.render_template(given, scope)

        def values(name: str, default: Any = None) -> tuple[Any, ...]:
            given = argument_of(start, name, default)
            if not isinstance(given, Each):
                found: Iterable[Any] = (rendered(name, given),)
            elif name in _KEYS and isinstance(given.values, list | tuple):
                literals = [item.get(given.key, default) if isinstance(item, Mapping) else item for item in given.values]
                items = [rendered(name, item) for item in literals]
                found = (item.get(given.key, default) if isinstance(item, Mapping) else item for item in items)
            else:
                items = start.render_template(given.values, scope)
                found = (item.get(given.key, default) if given.key is not None else item for item in items)
            return tuple(taken(name, value, kinds[name]) if name in kinds else value for value in found)

        conn_ids = tuple(str(name or DeltaHook.default_conn_name) for name in values("delta_conn_id"))
        tables = tuple(map(str, values("table")))
        identity = {name: values(name) for name in _KEYS}
        identity["rerun_policy"] = values("rerun_policy", "skip")
        identity["isolation_level"] = values("isolation_level")
        definition: dict[str, tuple[Any, ...]] = {}
        if handle is not None and handle.read_version < 0:
            definition = {name: _different(values(name)) for name in (*_NEW_TABLE, "description")}
            definition["create"] = values("create", True)
        uris = tuple(table_uri(table, conn_id, handle) for table in tables for conn_id in dict.fromkeys(conn_ids))
        return cls(start, tables, conn_ids, uris, identity, definition)

    def completed(self, handle: TransactionHandle) -> TransactionHandle:
        """Return the handle with unchecked fields, which are not rules of the table, as in the Dag file."""
        given_table: str | None = handle.given_table if handle.given_table in self.tables else None
        if len(self.tables) == 1:
            given_table = self.tables[0]
        if handle.read_version >= 0:
            return replace(handle, given_table=given_table)
        descriptions = self.definition["description"]
        description = handle.description if handle.description in descriptions else descriptions[0]
        return replace(handle, given_table=given_table, name=None, description=description)

    def mismatches(self, handle: TransactionHandle, context: Context) -> Iterator[str]:
        """Yield how the handle differs."""
        ti = context["ti"]
        name = self.start.task_id
        if handle.table not in self.uris:
            yield f"the table of {name!r} is {' or '.join(self.uris[:3])}"
        if handle.delta_conn_id is not None and handle.delta_conn_id not in self.conn_ids:
            yield f"the connection of {name!r} is {' or '.join(self.conn_ids[:3])}, not {handle.delta_conn_id}"
        if not is_owned_by(handle.transaction_id, ti.dag_id, name, ti.run_id):
            yield f"{name!r} did not make this id in the run {ti.run_id}"
        if handle.rerun_policy not in self.identity["rerun_policy"]:
            yield f"the rerun_policy of {name!r} is {self.identity['rerun_policy'][0]}, not {handle.rerun_policy}"
        by_property = engine.default_isolation_level(handle.configuration)  # which are checked, too
        levels = [str(level or by_property) for level in self.identity["isolation_level"]]
        if handle.isolation_level not in levels:
            yield f"the isolation level is {' or '.join(levels[:3])}, not {handle.isolation_level}"
        yield from self._other_key(handle, ti)
        if handle.read_version < 0 and handle.committed is None:
            yield from self._other_table(handle)

    def _other_key(self, handle: TransactionHandle, ti: Any) -> Iterator[str]:
        keys = [str(key) for key in (*self.identity["transaction_key"], *self.identity["app_id"]) if key is not None]
        versions = [str(version).strip() for version in self.identity["txn_version"] if version not in (None, "")]
        prefix = default_key_prefix(ti.dag_id, self.start.task_id, ti.run_id)
        if handle.app_id not in keys if keys else not handle.app_id.startswith(prefix):
            yield f"the key of {self.start.task_id!r} is {' or '.join(keys[:3]) or f'{prefix}...'}, not {handle.app_id}"
        elif handle.monotonic not in {version not in (None, "") for version in self.identity["txn_version"]}:
            yield f"the key of {self.start.task_id!r} {'has a' if versions else 'has no'} txn_version"
        elif handle.monotonic and str(handle.txn_version) not in versions and not _same_number(handle.txn_version, versions):
            yield f"the txn_version of {self.start.task_id!r} is {' or '.join(versions[:3])}, not {handle.txn_version}"

    def _other_table(self, handle: TransactionHandle) -> Iterator[str]:
        """Yield how the table that the handle would create differs from the one that the start task would."""
        name = self.start.task_id
        if not any(self.definition["create"]):
            yield f"{name!r} does not create a table (create=False), and the handle says that there is none"
            return
        nothing = replace(handle, table_id=None)
        wanted: TransactionHandle | None = None
        reserved = next(filter(None, (reservation_of(conn_id, handle) for conn_id in self.conn_ids)), None)
        provided = engine.BY_COMMITTER if reserved is not None else frozenset()
        for columns, schema, properties in itertools.product(*(self.definition[key] for key in _NEW_TABLE)):
            if reserved is not None:  # the catalog checks whether all that it requires is there
                given = {key: value for key, value in (properties or {}).items() if value is not None}
                properties = {**(properties or {}), **reserved.required, **given}
            wanted = engine.of_new_table(nothing, columns, schema, properties, provided=provided)
            if all(_without_names(getattr(wanted, key)) == _without_names(getattr(handle, key)) for key in _RULES):
                return
        for key in _RULES:
            given, found = getattr(handle, key), getattr(wanted, key)
            if _without_names(given) != _without_names(found):
                yield f"the new table of {name!r} has the {key} {str(found)[:300]}, not {str(given)[:300]}"


_KEYS = ("transaction_key", "app_id", "txn_version")

_NEW_TABLE = ("partition_by", "schema", "properties")

_RULES = ("table_id", "schema_string", "partition_columns", "configuration", "features")


def _different(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return values without repetitions: the instances of a mapped start task mostly define the same table."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return tuple(found)


def _without_names(value: Any) -> Any:
    """Return a schema without the random physical names of its columns; other values as they are."""
    return _PHYSICAL_NAME.sub("", value) if isinstance(value, str) else value


_PHYSICAL_NAME = lazy_pattern(r"col-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _same_number(version: int, versions: list[str]) -> bool:
    try:
        return version in map(int, versions)
    except ValueError:
        return False
