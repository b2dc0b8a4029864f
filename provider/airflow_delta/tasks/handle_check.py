"""Check the handle that a task gets as XCom against the Dag file.

Users who may write XComs may not be allowed to delete a table, but they cannot change the Dag file. So each task renders the
start task's table, connection and key itself, in its own context, and refuses a handle that says otherwise. A transaction's id
also names its owner: it starts with a digest of the Dag, the start task and the run. What an existing table is comes from its log
(:mod:`airflow_delta.table.state.read_snapshot`), what a new one will be from the start task in the Dag file. The name of each
attempt of a stage holds a digest of that, so that the directory of its files shows for which table it checked them.

Where an external job writes: a directory for each of its tries.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from airflow_delta import engine
from airflow_delta.airflow_internals.tasks import params_of_run
from airflow_delta.contract.catalog_names import Reservation
from airflow_delta.contract.files import is_owned_by, owned_transaction_id, stage_key, transaction_directory
from airflow_delta.contract.kinds import kinds_of, taken
from airflow_delta.contract.payloads import Payload, read_version_name
from airflow_delta.exceptions import CatalogConflictException, DeltaTableNotFoundException, HandleMismatchException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.task_loops import check_no_loop
from airflow_delta.tasks.identity import column_names, default_key_prefix, parse_handle, schema_text
from airflow_delta.tasks.parameters import rendered_text

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog


def new_transaction_id(context: Context) -> str:
    """Return an id for this execution of a start task: a UUID (version 8) that starts with a digest of its owner."""
    ti = context["ti"]
    return owned_transaction_id(ti.dag_id, ti.task_id, ti.run_id)


def open_transaction(operator: Any, context: Context, *, start: Any = None) -> tuple[DeltaLog, TransactionHandle]:
    """Return the log and the handle of the transaction that a task works for.

    The handle must be what the start task that it comes from would have returned in this run: its table, connection, key and
    policy, an id of its own, the staging directory of that id below the table, and the definition of a new table. Without such a
    task the operator's own ``table`` must be the handle's. A literal handle in the Dag file is trusted.

    :param operator: has ``transaction`` and ``delta_conn_id``, rendered, and may have ``table``. With ``changes_table`` it
        publishes or deletes: its ``table`` must be the handle's even if there is a start task.
    :param start: the start task in the Dag file that the handle must come from, if the operator works for several transactions.
    :raises HandleMismatchException: if the handle says otherwise, or nothing in the Dag file says which table it may name.
    :raises StagingException: if there is no handle.
    """
    handle = parse_handle(operator.transaction, task_id=operator.task_id)
    mismatches: list[str] = []
    starts = start_tasks(operator, context) if start is None else [start]
    declared = None
    for start in starts or ():
        declared = _Declared.of(start, context, handle)
        mismatches = list(declared.mismatches(handle, context))
        if not mismatches:
            handle = declared.completed(handle)
            break
    if mismatches:
        raise _refused(handle, operator, "; ".join(mismatches))
    conn_id = operator.delta_conn_id
    if conn_id is None and (declared is not None or starts is None):
        conn_id = handle.delta_conn_id
    conn_id = conn_id or DeltaHook.default_conn_name
    given = getattr(operator, "table", None)
    if given is not None and (operator.changes_table or declared is None):
        if (expected := table_uri(given, conn_id, handle)) != handle.table:
            raise _refused(handle, operator, f"the table of the task is {expected}")
        if declared is None and handle.delta_conn_id not in (None, conn_id):
            raise _refused(
                handle, operator, f"the connection of the task is {conn_id}, not {handle.delta_conn_id}; pass delta_conn_id="
            )
    elif starts is not None and declared is None:
        raise _refused(
            handle,
            operator,
            "no start task is upstream of this task, so the Dag file does not say which table it may be about; pass table=",
        )
    log = _open(conn_id, handle, aborts=getattr(operator, "transaction_role", None) == "abort")
    if handle.staging_path != f"{log.uri}/{transaction_directory(handle.transaction_id)}" or log.uri != handle.table:
        raise _refused(handle, operator, f"its staging path {handle.staging_path} is not that of its id below the table")
    if declared is not None and _is_not_first(log, handle):
        why = f"a transaction with rerun_policy {handle.rerun_policy!r} is the first with its key, not {handle.txn_version}"
        raise _refused(handle, operator, why)
    return log, handle


def _open(conn_id: str, handle: TransactionHandle, *, aborts: bool) -> DeltaLog:
    """Return the log of a handle's table. Of one in a catalog, the catalog says where it is; the caller compares.

    A table that the catalog does not have is opened as it was reserved, and the catalog says where.

    :param aborts: what was staged is wanted even if the name is another table's by now.
    :raises CatalogConflictException: if the name of a new table is another one's by now.
    """
    hook = DeltaHook(conn_id)
    if not hook.fields.is_catalog or not handle.given_table:
        return hook.get_log(handle.table)
    reservation = _reservation(conn_id, handle)
    if reservation is None:
        return hook.get_log(handle.given_table)
    try:
        log = hook.get_log(handle.given_table)
    except DeltaTableNotFoundException:
        return hook.get_reserved_log(handle.given_table, reservation)
    if log.uri == handle.table:
        return log
    if aborts:
        return hook.get_reserved_log(handle.given_table, reservation)
    raise handle.error(
        CatalogConflictException,
        f"The name {handle.given_table} is another table's by now ({log.uri}), which was created since transaction "
        f"{handle.transaction_id} began to create it at {handle.table}. Nothing was committed. Clear the start task to work on "
        "that table.",
    )


def _reservation(conn_id: str, handle: TransactionHandle) -> Reservation | None:
    """Return what a handle says of a table that does not exist and is reserved in a catalog; ``None`` of any other."""
    if handle.read_version >= 0 or handle.committed is not None:
        return None
    reservation = Reservation.of_new_table(handle.table, handle.configuration)
    return reservation if reservation is not None and DeltaHook(conn_id).fields.is_catalog else None


def table_uri(table: str, conn_id: str, handle: TransactionHandle | None = None) -> str:
    """Return the location of a table that the Dag file names.

    :param handle: if it begins a table that is reserved in a catalog, that is where a name may lead: opening it will tell.
    """
    if handle is not None and _reservation(conn_id, handle) is not None:
        return handle.table if table == handle.given_table else table
    return DeltaHook(conn_id).get_log(table).uri


def _is_not_first(log: DeltaLog, handle: TransactionHandle) -> bool:
    """Return whether a handle says that its key was committed before, though its policy allows one commit that stands."""
    if handle.monotonic or not handle.txn_version or handle.committed is not None or handle.rerun_policy not in ("skip", "fail"):
        return False
    return engine.standing_version(log.update(), handle.app_id, handle.txn_version - 1) is not None  # it was not taken back


def definition_mark(handle: TransactionHandle) -> str:
    """Return a digest of the table that a transaction works on: the version that it reads, or the definition of a new table."""
    known = handle.to_dict()
    return hashlib.sha256(json.dumps([known[name] for name in _MARKED], sort_keys=True).encode()).hexdigest()[:8]


_MARKED = ("readVersion", "tableId", "schemaString", "partitionColumns", "configuration", "features")


def check_mark(handle: TransactionHandle, write: StagedWrite) -> None:
    """Check that a stage worked on the table that this task works on: its files lie below the name of its attempt.

    :raises HandleMismatchException: if not.
    """
    if write.transaction_id != handle.transaction_id or write.attempt.endswith(f"-{definition_mark(handle)}"):
        return
    raise handle.error(
        HandleMismatchException,
        f"The attempt {write.attempt} of stage {write.stage} did not check its rows for table {handle.table} "
        f"({read_version_name(handle.read_version)}) as this task knows it: another version, columns or properties were in its "
        "handle. Nothing was written. If the stage ran in an earlier release, clear the start task. Otherwise an XCom was "
        "altered.",
    )


def _refused(handle: TransactionHandle, operator: Any, why: str) -> HandleMismatchException:
    return handle.error(
        HandleMismatchException,
        f"The task {operator.task_id!r} got transaction {handle.transaction_id} on table {handle.table} "
        f"({read_version_name(handle.read_version)}), which does not match the Dag file: {why}. Nothing was written or deleted. "
        "If the Dag changed after the start task ran, or that ran in an earlier release, clear the start task. Otherwise its "
        "XCom was altered.",
    )


def logs_of(start: Any, context: Context) -> list[DeltaLog]:
    """Return the logs of the tables that a start task in the Dag file names, in the context of another task."""
    declared = _Declared.of(start, context)
    return [DeltaHook(conn_id).get_log(table) for table in declared.tables for conn_id in dict.fromkeys(declared.conn_ids)]


def check_table_of_result(operator: Any, context: Context, table: str) -> None:
    """Check that a commit's result (``committed`` of a task), passed as XCom, names a table of the Dag file.

    :param table: the table in the result.
    :raises HandleMismatchException: if no task that it can come from commits to that table.
    """
    definition = _definition(operator, context)
    if definition is None:
        return
    given = argument_of(definition, "committed", None)
    sources = _references(given)
    if not sources:
        if _is_literal(given):
            return
        sources = list(definition.get_flat_relatives(upstream=True))
    tasks = [*sources, *(start for source in sources for start in _starts_of(source) or ())]
    uris = [uri for task in tasks if argument_of(task, "table", None) is not None for uri in _Declared.of(task, context).uris]
    if table not in uris:
        known = f"the tasks that it comes from commit to {' or '.join(uris[:3])}" if uris else "no task upstream names a table"
        raise HandleMismatchException(
            f"The task {operator.task_id!r} got the result of a commit to {table}, but in the Dag file {known}. Nothing was "
            "done. Pass table=. If the Dag has not changed since the commit, its XCom was altered.",
            table=table,
        )


def _definition(operator: Any, context: Context) -> Any:
    """Return a task as in the Dag file, not rendered."""
    dag: Any = context.get("dag")
    return None if dag is None else dag.task_dict.get(operator.task_id)


def start_tasks(operator: Any, context: Context) -> list[Any] | None:
    """Return the start tasks whose handle a task may have; ``None`` for a literal handle, or without a Dag."""
    definition = _definition(operator, context)
    return None if definition is None else _starts_of(definition)


def has_previews(operator: Any, context: Context) -> bool:
    """Return whether a task before this one writes previews of its transaction, as the Dag file says."""
    definition = _definition(operator, context)
    before = () if definition is None else definition.get_flat_relatives(upstream=True)
    return any(getattr(getattr(task, "operator_class", None) or type(task), "writes_preview", False) for task in before)


def _starts_of(definition: Any) -> list[Any] | None:
    given = argument_of(definition, "transactions" if hasattr(definition, "transactions") else "transaction", None)

    def starts(tasks: Any) -> list[Any]:
        classes = ((task, getattr(task, "operator_class", None) or type(task)) for task in tasks)
        return [task for task, cls in classes if getattr(cls, "transaction_role", None) == "start"]

    references = _references(given)
    if not references and _is_literal(given):
        return None
    # Passed on by another task: it comes from a start task upstream of that one.
    return starts(references) or starts(definition.get_flat_relatives(upstream=True))


def _is_literal(given: Any) -> bool:
    """Return whether a handle, or a result, is a literal in the Dag file, without templates."""
    if isinstance(given, Each):
        return False
    value = given.to_dict() if isinstance(given, Payload) else given
    return isinstance(value, Mapping) and not any(mark in text for text in _texts(value) for mark in ("{{", "{%"))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def argument_of(definition: Any, name: str, default: Any) -> Any:
    """Return an argument of a task as in the Dag file; one that it is mapped over as :class:`Each`."""
    if not definition.is_mapped:
        return getattr(definition, name, default)
    value = getattr(getattr(definition, "_get_specified_expand_input", lambda: None)(), "value", None)
    if isinstance(value, Mapping):
        if name in value:
            return Each(value[name], None)
    elif value is not None:
        return Each(value, name) if name not in definition.partial_kwargs else definition.partial_kwargs[name]
    return definition.partial_kwargs.get(name, default)


@dataclass(frozen=True, slots=True)
class Each:
    """An argument that a task is mapped over: it may have any of the values.

    :param key: its name in each of the values, which may lack it (``expand_kwargs``).
    """

    values: Any
    key: str | None


def _references(given: Any) -> list[Any]:
    """Return the tasks whose outputs an argument refers to."""
    return [task for task, _ in XComArg.iter_xcom_references(given.values if isinstance(given, Each) else given)]


class _AsStart:
    """The running task instance under the start task's id, as templates of the start task see it."""

    def __init__(self, ti: Any, start: Any) -> None:
        self._ti = ti
        self.task = start
        self.task_id = start.task_id
        mapped = start.is_mapped or start.get_closest_mapped_task_group() is not None
        self.map_index = ti.map_index if mapped else -1  # a stage may be mapped where the start task is not

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ti, name)


def scope_of(start: Any, context: Context) -> dict[str, Any]:
    """Return the template context of a start or commit task, made from that of another task of the run."""
    ti = _AsStart(context["ti"], start)
    scope: dict[str, Any] = {**context, "task": start, "ti": ti, "task_instance": ti}
    mine, running = "task_instance_key_str", context["task"]
    if mine in scope:
        scope[mine] = scope[mine].replace(f"__{running.task_id}__", f"__{start.task_id}__", 1)
    if start.params or running.params:  # a task may have its own besides those of the Dag
        conf = getattr(context.get("dag_run"), "conf", None)
        scope["params"] = params_of_run(context["dag"], start, conf)
    return scope


@dataclass(frozen=True, slots=True)
class _Declared:
    """The rendered arguments of a start task: the values that each may have."""

    start: Any
    tables: tuple[str, ...]
    conn_ids: tuple[str, ...]
    uris: tuple[str, ...]
    identity: Mapping[str, tuple[Any, ...]]
    definition: Mapping[str, tuple[Any, ...]]

    @classmethod
    def of(cls, start: Any, context: Context, handle: TransactionHandle | None = None) -> _Declared:
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
        reserved = next(filter(None, (_reservation(conn_id, handle) for conn_id in self.conn_ids)), None)
        catalog = self.tables[0] if reserved is not None else None
        for columns, schema, properties in itertools.product(*(self.definition[key] for key in _NEW_TABLE)):
            if reserved is not None:  # the catalog checks whether all that it requires is there
                given = {key: value for key, value in (properties or {}).items() if value is not None}
                properties = {**(properties or {}), **reserved.required, **given}
            wanted = engine.of_new_table(nothing, column_names(columns), schema_text(schema), properties, catalog=catalog)
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


_PHYSICAL_NAME = re.compile(r"col-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _same_number(version: int, versions: list[str]) -> bool:
    try:
        return version in map(int, versions)
    except ValueError:
        return False


STAGING_PATH_KEY = "staging_path"


def staging_path(transaction: Any, ti: RuntimeTaskInstanceProtocol) -> str:
    """Return the URI of a directory for the Parquet files of this try, and push it as XCom ``staging_path``.

    Each try gets its own directory, so that nothing of a failed try is published. ``DeltaStageFilesOperator`` takes it as
    ``path=job.output["staging_path"]``. Also works as a Jinja macro (``user_defined_macros``).

    :param transaction: output of the start task.
    :param ti: the running task instance.
    :raises HandleMismatchException: if no start task before this task began the transaction.
    :raises DeltaIllegalArgumentException: inside a task loop, whose iterations would share the directory.
    """
    handle = parse_handle(transaction, task_id=ti.task_id)
    if (context := getattr(ti, "get_template_context", None)) is not None:
        job = SimpleNamespace(transaction=handle, task_id=ti.task_id, delta_conn_id=None, changes_table=False)
        check_no_loop(context())
        open_transaction(job, context())
    key = stage_key(ti.task_id, -1 if ti.map_index is None else ti.map_index)
    path = f"{handle.staging_path.rstrip('/')}/{key}/try-{ti.try_number}"
    ti.xcom_push(STAGING_PATH_KEY, path)
    return path
