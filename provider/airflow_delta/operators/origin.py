"""Check the handle that a task gets as XCom against the Dag file.

Users who may write XComs may not be allowed to delete a table, but they cannot change the Dag file. So each task renders the
start task's table, connection and key itself, in its own context, and refuses a handle that says otherwise. A transaction's id
also names its owner: it starts with a digest of the Dag, the start task and the run.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from airflow_delta.airflow_internals.tasks import params_of_run
from airflow_delta.exceptions import HandleMismatchException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.operators.identity import default_key_prefix, parse_handle
from airflow_delta.read_versions import read_version_name
from airflow_delta.staging.paths import transaction_directory

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log import DeltaLog
    from airflow_delta.staging.contract import TransactionHandle


def new_transaction_id(context: Context) -> str:
    """Return an id for this execution of a start task: a UUID (version 8) that starts with a digest of its owner."""
    ti = context["ti"]
    return _transaction_id(_digest(ti.dag_id, ti.task_id, ti.run_id), os.urandom(6))


def _digest(dag_id: str, start_task_id: str, run_id: str) -> bytes:
    return hashlib.sha256(json.dumps([dag_id, start_task_id, run_id]).encode()).digest()[:10]


def _transaction_id(digest: bytes, tail: bytes) -> str:
    value = bytearray(digest + tail)
    value[6] = 0x80 | (value[6] & 0x0F)
    value[8] = 0x80 | (value[8] & 0x3F)
    return str(uuid.UUID(bytes=bytes(value)))


def open_transaction(operator: Any, context: Context) -> tuple[DeltaLog, TransactionHandle]:
    """Return the log and the handle of the transaction that a task works for.

    If the handle can come from a start task of the Dag, it must be what that task would have returned in this run: its table,
    connection, key and policy, an id of its own, and the staging directory of that id below the table. A literal handle in the
    Dag file is trusted.

    :param operator: has ``transaction`` and ``delta_conn_id``, rendered. With ``changes_table`` it publishes or deletes, so a
        start task or its own ``table`` must say which table it may change.
    :raises HandleMismatchException: if the handle says otherwise, or nothing says which table it may name.
    :raises StagingException: if there is no handle.
    """
    handle = parse_handle(operator.transaction, task_id=operator.task_id)
    mismatches: list[str] = []
    starts = start_tasks(operator, context)
    declared = None
    for start in starts or ():
        declared = _Declared.of(start, context)
        mismatches = list(declared.mismatches(handle, context))
        if not mismatches:
            handle = replace(handle, given_table=declared.table_of(handle))
            break
    if mismatches:
        raise _refused(handle, operator, "; ".join(mismatches))
    conn_id = operator.delta_conn_id or handle.delta_conn_id or DeltaHook.default_conn_name
    given = operator.table if operator.changes_table else None
    if given is not None:
        if (expected := _uri(given, conn_id)) != handle.table:
            raise _refused(handle, operator, f"the table of the task is {expected}")
    elif starts is not None and declared is None and operator.changes_table:
        raise _refused(
            handle,
            operator,
            "no start task is upstream of this task, so the Dag file does not say which table it may change; pass table=",
        )
    log = DeltaHook(conn_id).get_log(handle.table)
    if handle.staging_path != f"{log.uri}/{transaction_directory(handle.transaction_id)}" or log.uri != handle.table:
        raise _refused(handle, operator, f"its staging path {handle.staging_path} is not that of its id below the table")
    return log, handle


def _refused(handle: TransactionHandle, operator: Any, why: str) -> HandleMismatchException:
    return HandleMismatchException(
        f"The task {operator.task_id!r} got transaction {handle.transaction_id} on table {handle.table} "
        f"({read_version_name(handle.read_version)}), which does not match the Dag file: {why}. Nothing was written or deleted. "
        "If the Dag changed after the start task ran, or that ran in an earlier release, clear the start task. Otherwise its "
        "XCom was altered.",
        table=handle.table,
        version=handle.read_version,
    )


def _uri(table: str, conn_id: str) -> str:
    return DeltaHook(conn_id).get_log(table).uri


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
        if isinstance(given, Mapping):
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


def _starts_of(definition: Any) -> list[Any] | None:
    given = argument_of(definition, "transaction", None)

    def starts(tasks: Any) -> list[Any]:
        classes = ((task, getattr(task, "operator_class", None) or type(task)) for task in tasks)
        return [task for task, cls in classes if getattr(cls, "transaction_role", None) == "start"]

    references = _references(given)
    if not references and isinstance(given, Mapping):
        return None
    # Passed on by another task: it comes from a start task upstream of that one.
    return starts(references) or starts(definition.get_flat_relatives(upstream=True))


def argument_of(definition: Any, name: str, default: Any) -> Any:
    """Return an argument of a task as in the Dag file; one that it is mapped over as :class:`_Each`."""
    if not definition.is_mapped:
        return getattr(definition, name, default)
    value = getattr(getattr(definition, "_get_specified_expand_input", lambda: None)(), "value", None)
    if isinstance(value, Mapping):
        if name in value:
            return _Each(value[name], None)
    elif value is not None:
        return _Each(value, name) if name not in definition.partial_kwargs else definition.partial_kwargs[name]
    return definition.partial_kwargs.get(name, default)


@dataclass(frozen=True, slots=True)
class _Each:
    """An argument that a task is mapped over: it may have any of the values."""

    values: Any
    key: str | None


def _references(given: Any) -> list[Any]:
    """Return the tasks whose outputs an argument refers to."""
    return [task for task, _ in XComArg.iter_xcom_references(given.values if isinstance(given, _Each) else given)]


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

    @classmethod
    def of(cls, start: Any, context: Context) -> _Declared:
        scope = scope_of(start, context)

        def values(name: str, default: Any = None) -> tuple[Any, ...]:
            given = argument_of(start, name, default)
            if not isinstance(given, _Each):
                return (start.render_template(given, scope),)
            rendered = start.render_template(given.values, scope)
            return tuple(item.get(given.key, default) if given.key is not None else item for item in rendered)

        conn_ids = tuple(str(name or DeltaHook.default_conn_name) for name in values("delta_conn_id"))
        tables = tuple(map(str, values("table")))
        identity = {name: values(name) for name in ("transaction_key", "app_id", "txn_version")}
        identity["rerun_policy"] = values("rerun_policy", "skip")
        uris = tuple(_uri(table, conn_id) for table in tables for conn_id in dict.fromkeys(conn_ids))
        return cls(start, tables, conn_ids, uris, identity)

    def table_of(self, handle: TransactionHandle) -> str | None:
        """Return the table as named in the Dag file."""
        if len(self.tables) == 1:
            return self.tables[0]
        return handle.given_table if handle.given_table in self.tables else None

    def mismatches(self, handle: TransactionHandle, context: Context) -> Iterator[str]:
        """Yield how the handle differs."""
        ti = context["ti"]
        name = self.start.task_id
        if handle.table not in self.uris:
            yield f"the table of {name!r} is {' or '.join(self.uris[:3])}"
        if handle.delta_conn_id is not None and handle.delta_conn_id not in self.conn_ids:
            yield f"the connection of {name!r} is {' or '.join(self.conn_ids[:3])}, not {handle.delta_conn_id}"
        if not _is_of(handle.transaction_id, _digest(ti.dag_id, name, ti.run_id)):
            yield f"{name!r} did not make this id in the run {ti.run_id}"
        if handle.rerun_policy not in self.identity["rerun_policy"]:
            yield f"the rerun_policy of {name!r} is {self.identity['rerun_policy'][0]}, not {handle.rerun_policy}"
        yield from self._other_key(handle, ti)

    def _other_key(self, handle: TransactionHandle, ti: Any) -> Iterator[str]:
        keys = [str(key) for key in (*self.identity["transaction_key"], *self.identity["app_id"]) if key is not None]
        versions = [str(version).strip() for version in self.identity["txn_version"] if version not in (None, "")]
        prefix = default_key_prefix(ti.dag_id, self.start.task_id, ti.run_id)
        if handle.app_id not in keys if keys else not handle.app_id.startswith(prefix):
            yield f"the key of {self.start.task_id!r} is {' or '.join(keys[:3]) or f'{prefix}...'}, not {handle.app_id}"
        elif versions and str(handle.txn_version) not in versions and not _same_number(handle.txn_version, versions):
            yield f"the txn_version of {self.start.task_id!r} is {' or '.join(versions[:3])}, not {handle.txn_version}"


def _same_number(version: int, versions: list[str]) -> bool:
    try:
        return version in map(int, versions)
    except ValueError:
        return False


def _is_of(transaction_id: str, digest: bytes) -> bool:
    try:
        value = uuid.UUID(transaction_id)
    except ValueError:
        return False
    return transaction_id == _transaction_id(digest, value.bytes[10:])
