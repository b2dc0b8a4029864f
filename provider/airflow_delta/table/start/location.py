"""Where a transaction may begin: on a table that can be read and written, or where one may be created.

That is an empty or missing folder (Delta's ``DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION``): other files would not belong to the
table, and VACUUM would delete them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from airflow_delta.contract.staging_directory import STAGING_DIRECTORY, is_hidden, is_preview
from airflow_delta.exceptions import (
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    NonEmptyLocationException,
)
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.features import protocol
from airflow_delta.table.start.format_warnings import warn_of_other_formats

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import LogStore

_SHOWN = 3

_TRANSACTION = lazy_pattern(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def check_no_preview(table: str) -> None:
    """Refuse the preview of a transaction.

    :raises DeltaIllegalArgumentException: if the table is one.
    """
    if is_preview(table):
        raise DeltaIllegalArgumentException(
            f"{table} is the preview of a transaction, which cannot be written to: it is deleted with the transaction. "
            "Name the table itself.",
            table=table,
        )


def check_existing(snapshot: Snapshot) -> None:
    """Check that a table can be read and written.

    :raises InvalidProtocolVersionException: if it needs a newer reader or writer.
    :raises DeltaUnsupportedTableFeatureException: if it needs a feature that is not supported.
    """
    table, provided = snapshot.log.uri, snapshot.log.provided
    protocol.check_can_write(snapshot.protocol, snapshot.metadata, table, snapshot.version, provided=provided)
    warn_of_other_formats(table, snapshot)


def check_missing(log: DeltaLog, *, create: bool, in_place: bool) -> None:
    """Check that a table that does not exist may and can be created here.

    :param create: a missing table is no error.
    :param in_place: the table is made from the files at the location.
    :raises DeltaTableNotFoundException: if ``create`` is false.
    :raises NonEmptyLocationException: if other files are where the table would be created.
    :raises ConditionalPutException: if the store does not keep writers apart.
    """
    if not create:
        raise log.error(
            DeltaTableNotFoundException,
            f"There is no Delta table at {log.uri}. Check the location, the connection, and that an earlier task has "
            "created it: DeltaCreateTableOperator, or a transaction whose start task does not have create=False.",
        )
    from airflow_delta.log.storage.conditional_put import check_conditional_put

    if not in_place:
        check_location(log)
    check_conditional_put(log.store)


def check_location(log: DeltaLog) -> None:
    """Check that the location of a new table is empty; the listing stops at the first files.

    Staged files of transactions do not count, nor do hidden names (``_`` or ``.`` first, but not ``name=value``), which VACUUM
    leaves alone too.

    :raises NonEmptyLocationException: if other files are there.
    """
    found = list(islice(_foreign_files(log.store), _SHOWN + 1))
    if not found:
        return
    shown = ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
    way_out = "Choose another location, or move the files away."
    if any(_is_parquet(log.store, path) for path in found):
        way_out += " To turn the Parquet files there into a table, use DeltaConvertOperator (CONVERT TO DELTA)."
    raise log.error(
        NonEmptyLocationException,
        f"There is no Delta table at {log.uri}, and none can be created: the location holds other files ({shown}). They would "
        f"not belong to the table, and VACUUM would delete them. {way_out}",
    )


def _foreign_files(store: LogStore) -> Iterator[str]:
    for status in store.list_visible(lambda name: name == STAGING_DIRECTORY or is_hidden(f"{name}/x")):
        if not is_hidden(status.path) and not status.path.startswith(f"{STAGING_DIRECTORY}/"):
            yield status.path
    files, directories = store.list_children(STAGING_DIRECTORY)
    yield from (f"{STAGING_DIRECTORY}/{name}" for name in files if not is_hidden(name))
    yield from (f"{STAGING_DIRECTORY}/{name}/" for name in directories if not _TRANSACTION.fullmatch(name))


def _is_parquet(store: LogStore, path: str) -> bool:
    if path.endswith("/"):
        return False
    try:
        return store.read_range(path, 0, 4) == b"PAR1"
    except (OSError, DeltaError):  # gone, a link, a pipe
        return path.endswith(".parquet")
