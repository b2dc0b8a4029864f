"""Where a compaction put the rows of each file: recorded beside the files that it wrote, outside of the table's data.

A new file has the rows of one or more old files, one file after the other, each file's live rows in the order they had. So a few
numbers for each old file say where every row went. The record is one part of a file in the directory of the attempt that wrote
the data files; a tag of their ``add`` says which. Nobody needs it once transactions that read the old files are over, and VACUUM
deletes it like every file below ``staged/`` that the table does not name.
"""

from __future__ import annotations

import base64
import binascii
import uuid
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from pyroaring import BitMap64

from airflow_delta.contract.staging_directory import STAGING_DIRECTORY
from airflow_delta.log.actions.actions import MOVED_ROWS_TAG
from airflow_delta.log.actions.reconciliation import canonical_path

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile
    from airflow_delta.log.storage.base import LogStore

_VERSION = 1
_NAME = "moved-rows-"
_MAX_BYTES = 64 << 20


class RowSource(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An old file whose live rows were copied in order.

    :param path: in the log. Its size in bytes and number of rows, deleted ones included, follow.
    :param first_row: position of its first live row in the new file.
    :param deleted_rows: positions that were not copied: a 64-bit Roaring bitmap in base64; ``None`` for none.
    """

    path: str
    size: int
    num_records: int
    first_row: int
    deleted_rows: str | None = None

    @classmethod
    def of(cls, path: str, size: int, num_records: int, first_row: int, deleted: BitMap64) -> RowSource:
        """Return the record of a file."""
        compact = deleted.copy()
        compact.run_optimize()
        text = base64.b64encode(bytes(compact.serialize())).decode() if deleted else None
        return cls(path=path, size=size, num_records=num_records, first_row=first_row, deleted_rows=text)

    @property
    def deleted(self) -> BitMap64:
        """Positions that were not copied.

        :raises ValueError: if they cannot be decoded.
        """
        if self.deleted_rows is None:
            return BitMap64()
        try:
            return BitMap64.deserialize(base64.b64decode(self.deleted_rows, validate=True))
        except binascii.Error as error:
            raise ValueError(str(error)) from error
        except Exception as error:  # pyroaring does not document which
            raise ValueError(f"not a Roaring bitmap ({error})") from error

    def moved(self, rows: BitMap64) -> BitMap64:
        """Return where rows of the old file are in the new one.

        :raises ValueError: if one of them was not copied.
        """
        deleted = self.deleted
        if rows & deleted or (rows and rows.max() >= self.num_records):
            raise ValueError("a row was not copied")
        if len(rows) == self.num_records - len(deleted):
            return BitMap64(range(self.first_row, self.first_row + len(rows)))
        if not deleted:
            return BitMap64(row + self.first_row for row in rows)  # pyroaring 1.0 has no shift
        return BitMap64(row + self.first_row - deleted.rank(row) for row in rows)


class MovedRows(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where the rows of a new file come from.

    :param path: in the log. Its size in bytes and number of rows follow.
    :param sources: in the order of their rows; together they have all rows of the file.
    """

    path: str
    size: int
    num_records: int
    sources: tuple[RowSource, ...]
    version: int = _VERSION

    def check(self) -> None:
        """Check that the sources have every row of the file exactly once.

        :raises ValueError: if they do not.
        """
        if self.version != _VERSION:
            raise ValueError(f"it has the version {self.version}, not {_VERSION}")
        expected = 0
        for source in self.sources:
            deleted = source.deleted
            if source.first_row != expected or (deleted and deleted.max() >= source.num_records):
                raise ValueError(f"the rows of {source.path} do not begin where those before them end")
            expected += source.num_records - len(deleted)
        names = {canonical_path(source.path) for source in self.sources}
        if expected != self.num_records or len(names) < len(self.sources):
            raise ValueError(f"it accounts for {expected} of {self.num_records} rows")

    def source(self, path: str) -> RowSource | None:
        """Return the record of an old file, however its path is spelled; ``None`` if no row is from there."""
        name = canonical_path(path)
        return next((source for source in self.sources if canonical_path(source.path) == name), None)


class _Tag(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    path: str
    offset: int
    size_in_bytes: int
    crc32: int


def write_moved_rows(store: LogStore, directory: str, records: Sequence[MovedRows]) -> list[str]:
    """Write records into one new file and return the values of :data:`MOVED_ROWS_TAG`, in the same order.

    :param directory: of the attempt that wrote the files, relative to the table root.
    :raises ValueError: if a record does not account for every row.
    """
    content, tags = bytearray(), []
    path = f"{directory.strip('/')}/{_NAME}{uuid.uuid4()}.json"
    for record in records:
        record.check()
        data = msgspec.json.encode(record)
        tag = _Tag(path=path, offset=len(content), size_in_bytes=len(data), crc32=zlib.crc32(data))
        tags.append(msgspec.json.encode(tag).decode())
        content += data + b"\n"
    if records:
        store.put(path, bytes(content))
    return tags


def read_moved_rows(store: LogStore, add: AddFile) -> MovedRows | None:
    """Return the record of a file's rows, checked; ``None`` if its ``add`` has no tag.

    :raises FileNotFoundError: if it is gone, as after a VACUUM.
    :raises ValueError: if it is damaged, does not account for every row, or is that of another file.
    """
    text = (add.tags or {}).get(MOVED_ROWS_TAG)
    if text is None:
        return None
    try:
        tag = msgspec.json.decode(text, type=_Tag)
        if not (tag.offset >= 0 and 0 < tag.size_in_bytes <= _MAX_BYTES):
            raise ValueError(f"the log claims {tag.size_in_bytes} bytes at {tag.offset}")
        data = store.read_range(tag.path, tag.offset, tag.size_in_bytes)
        if len(data) != tag.size_in_bytes or zlib.crc32(data) != tag.crc32:
            raise ValueError("its checksum does not match")
        record = msgspec.json.decode(data, type=MovedRows)
        record.check()
        if canonical_path(record.path) != canonical_path(add.path) or record.size != add.size:
            raise ValueError(f"it is the record of the file {record.path} of {record.size} bytes")
    except (ValueError, msgspec.MsgspecError) as error:
        raise ValueError(f"the record of where the rows of the file {add.path} come from cannot be used: {error}") from error
    return record


def size_of_moved_rows(add: AddFile) -> int:
    """Return the bytes of the record of a file's rows, as its tag says; 0 if it has none that parses."""
    tag = _tag_of(add)
    return 0 if tag is None else max(0, tag.size_in_bytes)


def directory_of(add: AddFile) -> str:
    """Return the directory with the record of a file's rows, relative to the table root; empty if its tag does not parse."""
    tag = _tag_of(add)
    return "" if tag is None else tag.path.rpartition("/")[0]


def file_of_record(add: AddFile) -> str | None:
    """Return the file with the record of a file's rows, relative to the table root; ``None`` if no tag names one of ours."""
    tag = _tag_of(add)
    directory, _, name = ("" if tag is None else tag.path).rpartition("/")
    is_ours = directory.startswith(f"{STAGING_DIRECTORY}/") and name.startswith(_NAME) and ".." not in directory.split("/")
    return tag.path if tag is not None and is_ours else None


def _tag_of(add: AddFile) -> _Tag | None:
    text = (add.tags or {}).get(MOVED_ROWS_TAG)
    try:
        return None if text is None else msgspec.json.decode(text, type=_Tag)
    except msgspec.MsgspecError:
        return None
