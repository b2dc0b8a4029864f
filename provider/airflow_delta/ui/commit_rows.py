"""The pages' rows of a commit: how many it added, removed and changed, and some of them, at a bounded cost.

Runs in the reader's process, like :mod:`airflow_delta.ui.data`, so nothing here knows Airflow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaError,
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaLogCorruptedException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    ReadLimitException,
    VersionNotFoundException,
)
from airflow_delta.log.storage.file_names import commit_file
from airflow_delta.shown_text import visible
from airflow_delta.ui.data import MAX_COMMIT_BYTES

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.effects.read_limits import ReadLimits

SAMPLE = 20
"""Rows of each kind that are shown."""

FILES = 60
"""Data files that are read, of those that come and those that go together."""

DATA_BYTES = 32 << 20
"""Their size."""

ROWS, VALUES = 30_000, 300_000
"""Rows, and values in them, that are compared, of those that come and of those that go: some seconds of work."""

COLUMNS = 40
_WIDTH = 100
MAX_NAME = 200

_Row = Mapping[str, Any]


class RowsGoneError(DeltaError):
    """Data files of the commit have been deleted."""


class RowsNotShownError(DeltaError):
    """The rows cannot be read without Spark, or not by the pages."""


class RowKeysError(DeltaError):
    """A column that should identify rows is not in the table."""


def rows_of_commit(log: DeltaLog, version: int, *, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a commit did to rows, as counts and a sample; values are text.

    :param keys: columns that identify a row, as a person writes them (:func:`given_keys`); empty: those that the condition of a
        MERGE names.
    :raises VersionNotFoundException: if the log does not have the commit.
    :raises ReadLimitException: if the commit is too large to look at.
    :raises RowsGoneError: if VACUUM has deleted its files.
    :raises RowsNotShownError: if its rows cannot be read here.
    :raises RowKeysError: if a key is not a column.
    """
    from airflow_delta.table.effects.diff import given_keys, published_diff

    status = log.store.head(commit_file(version))
    if status is not None and status.size > MAX_COMMIT_BYTES:
        raise log.error(
            ReadLimitException,
            f"The commit of version {version} of table {log.uri} has {status.size >> 20} MiB; at most "
            f"{MAX_COMMIT_BYTES >> 20} MiB are read.",
            version=version,
        )
    try:
        named = given_keys(log, version, keys) if keys else None
        diff = published_diff(log, version, keys=named, sample=SAMPLE, limit=ROWS, bounds=data_limits())
    except DeltaFileNotFoundException as error:
        raise log.error(RowsGoneError, error.message, version=version) from error
    except DeltaIllegalArgumentException as error:  # nothing else here is a user's
        if not keys:
            raise
        raise log.error(RowKeysError, error.message, version=version) from error
    except (DeltaLogCorruptedException, DeltaTableNotFoundException, VersionNotFoundException):
        raise  # they have pages of their own
    except (DeltaAnalysisException, DeltaIllegalStateException, DeltaUnsupportedOperationException) as error:
        raise log.error(RowsNotShownError, error.message, version=version) from error
    return _told(diff)


def data_limits() -> ReadLimits:
    """Return what the pages read of data files."""
    from airflow_delta.table.effects.read_limits import ReadLimits

    return ReadLimits(files=FILES, num_bytes=DATA_BYTES, values=VALUES)


def _told(diff: Any) -> dict[str, Any]:
    from airflow_delta.table.effects.report import diff_to_dict, summary

    data = diff_to_dict(diff)
    sample = data["sample"]
    changed = [(change["before"], change["after"]) for change in sample["changed"]]
    columns = sampled_columns([*(row for pair in changed for row in pair), *sample["added"], *sample["removed"]])
    shown = _shown(columns, data["keys"], changed)
    return {
        "version": diff.version,
        "summary": summary(diff),
        **{name: data[name] for name in ("keys", "exact", "added", "removed", "changed")},
        "columns": [column_text(name) for name in shown],
        "num_columns": len(columns),
        "sample": {
            "added": [cell_texts(row, shown) for row in sample["added"]],
            "removed": [cell_texts(row, shown) for row in sample["removed"]],
            "changed": [
                {"before": cell_texts(old, shown), "after": cell_texts(new, shown), "differs": _differs(old, new, shown)}
                for old, new in changed
            ],
        },
    }


def sampled_columns(rows: Sequence[_Row]) -> list[str]:
    """Return the columns of some rows, in their order."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _shown(columns: Sequence[str], keys: Sequence[str], changed: Sequence[tuple[_Row, _Row]]) -> list[str]:
    """Return the columns to show, in the table's order: of a wide table the keys, what changed, and the first ones."""
    differing = [name for name in columns if any(old.get(name) != new.get(name) for old, new in changed)]
    first = list(dict.fromkeys([*(name for name in columns if name in keys), *differing, *columns]))[:COLUMNS]
    return [name for name in columns if name in first]


def cell_texts(row: _Row, columns: Sequence[str]) -> list[str | None]:
    """Return a row as the texts of its cells."""
    return [cell_text(row.get(name)) for name in columns]


def _differs(old: _Row, new: _Row, columns: Sequence[str]) -> list[bool]:
    return [old.get(name) != new.get(name) for name in columns]


def cell_text(value: Any) -> str | None:
    """Return a value of JSON as text of a cell; ``None`` is null."""
    if value is None:
        return None
    return visible(shortened(value if isinstance(value, str) else "".join(_pieces(value)), _WIDTH))


def column_text(name: str) -> str:
    """Return the name of a column; any writer of a table may have named it."""
    return visible(shortened(name, MAX_NAME))


def _pieces(value: Any) -> Iterator[str]:
    """Yield the start of a value as JSON: it may be long."""
    length = 0
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        yield piece
        length += len(piece)
        if length > _WIDTH:
            return


def shortened(text: str, width: int) -> str:
    """Return the start of a text that is too long."""
    return text if len(text) <= width else f"{text[:width]}…"
