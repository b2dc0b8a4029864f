"""The reservation of a new table in a catalog: the start task makes it once, and finds it again when it is retried or cleared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta.contract.catalog_names import TABLE_ID, Reservation
from airflow_delta.exceptions import (
    CatalogConflictException,
    CatalogNotFoundException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
)
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.tasks.settlement import publication_of
from airflow_delta.tasks.task_state import keep

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog

STATE_KEY = "delta_reservation"
"""Key in the state store of the start task, which Airflow keeps across tries and clears."""


def open_or_reserve(start: Any, context: Context, table: str, conn_id: str, *, create: bool) -> DeltaLog:
    """Return the log of the table that a transaction begins on. A new one of a catalog is reserved, once for each run.

    :param start: the running start task.
    :param create: whether a missing table may be reserved.
    :raises DeltaTableNotFoundException: if a catalog has no such table, and none is to be made.
    :raises DeltaUnsupportedOperationException: if the catalog requires what later tasks could not check.
    """
    hook = DeltaHook(conn_id)
    try:
        return hook.get_log(table)
    except DeltaTableNotFoundException:
        if not create or publication_of(start, context) is not None:
            raise
    store: Any = context.get("task_state_store")
    found = _found_again(start, hook, table, store)
    if found is not None:
        return found
    log = hook.get_log(table, create=True)
    required = log.store.committer.required_properties
    if TABLE_ID not in required or log.table_exists():  # somebody else has made it in between
        return log
    reservation = Reservation.of_new_table(log.uri, required)
    start.log.info("Reserved the new table %s in the catalog: id %s, at %s.", table, required[TABLE_ID], log.uri)
    if reservation is None or (unknown := reservation.unknown(required)):
        raise log.error(
            DeltaUnsupportedOperationException,
            f"The catalog requires more of the new table {table} than the tasks of a transaction can check "
            f"({', '.join(unknown) if reservation is not None else TABLE_ID}). Create it before, with DeltaCreateTableOperator.",
        )
    if store is not None:
        note = {"server": hook.fields.catalog_url, "table": table, "location": log.uri, "properties": dict(reservation.required)}
        keep(store, STATE_KEY, note)
    return log


def _found_again(start: Any, hook: DeltaHook, table: str, store: Any) -> DeltaLog | None:
    """Return the log of the table that an earlier try has reserved; ``None`` if a new reservation is needed."""
    note = store.get(STATE_KEY) if store is not None else None
    if not isinstance(note, dict) or (note.get("server"), note.get("table")) != (hook.fields.catalog_url, table):
        return None
    location = str(note.get("location"))
    reservation = Reservation.of_new_table(location, note.get("properties") or {})
    if reservation is None:
        return None
    try:
        log = hook.get_reserved_log(table, reservation, unused=True)
    except (CatalogNotFoundException, CatalogConflictException) as error:
        start.log.warning("Reserving the new table %s again: its reservation at %s cannot be used: %s", table, location, error)
        return None
    start.log.info("The new table %s is reserved since an earlier try: id %s, at %s.", table, reservation.table_id, location)
    return log
