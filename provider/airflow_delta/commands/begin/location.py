"""Where a table may be created: in an empty or missing folder (Delta's ``DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION``).

Files that lie there would be no part of the table, and VACUUM would delete them as leftovers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from airflow_delta.exceptions import NonEmptyLocationException, PathOutsideTableException
from airflow_delta.staging.paths import STAGING_DIRECTORY, is_hidden

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog
    from airflow_delta.log.storage.base import LogStore

_SHOWN = 3
_TRANSACTION = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def check_location(log: DeltaLog) -> None:
    """Check that nothing lies where a table is to be created; the listing ends at the first files that do.

    Staged files of transactions are left out, and hidden names (``_`` or ``.`` in front, but not ``name=value``), which VACUUM
    leaves alone as well.

    :raises NonEmptyLocationException: if other files are there.
    """
    found = list(islice(_foreign_files(log.store), _SHOWN + 1))
    if not found:
        return
    shown = ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
    way_out = "Choose another location, or move the files away."
    if any(_is_parquet(log.store, path) for path in found):
        way_out += " To make a table of Parquet files that are there, use DeltaConvertOperator (CONVERT TO DELTA)."
    raise NonEmptyLocationException(
        f"There is no Delta table at {log.uri}, and none can be created: the location holds other files ({shown}). They would be "
        f"no part of the table, and VACUUM would delete them. {way_out}",
        table=log.uri,
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
    except (OSError, PathOutsideTableException):
        return path.endswith(".parquet")
