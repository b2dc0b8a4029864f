"""A reader of small local Delta tables that shares no code with the provider: log, Parquet files, deletion vectors and row ids.

It reads every version, and notes what no version may look like: a file removed that is not there, statistics that do not hold,
two rows with one row id.
"""

from __future__ import annotations

import json
import math
import struct
import uuid
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyroaring import BitMap64

from faults.rows.values import AT, COLUMNS, Row

LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
MAGIC = 1681511377
ROW_ID, ROW_VERSION = (f"delta.rowTracking.materialized{what}ColumnName" for what in ("RowId", "RowCommitVersion"))
FLOAT_SLACK = Decimal("1e-9")

Json = dict[str, Any]


@dataclass
class Stored:
    """A Parquet file as it is stored: all rows, and the row ids and commit versions that it holds for them."""

    rows: list[Row]
    ids: list[int | None]
    versions: list[int | None]


@dataclass
class File:
    """A file of a version.

    :param rows: live rows by position.
    :param ids: their row ids; empty if the table has none.
    """

    add: Json
    rows: dict[int, Row]
    ids: dict[int, int] = field(default_factory=dict)


@dataclass
class Version:
    number: int
    info: Json
    files: dict[str, File]

    @property
    def rows(self) -> list[Row]:
        return [row for file in self.files.values() for row in file.rows.values()]


class TableReader:
    """Reads a table version by version.

    :ivar versions: what was read.
    :ivar wrong: what is wrong with them.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.versions: list[Version] = []
        self.wrong: list[str] = []
        self._stored: dict[str, Stored] = {}
        self._metadata: Json = {}
        self._physical: dict[str, str] = {}
        self._vectors: dict[str, BitMap64] = {}
        self._tracked = False
        self._mark: int | None = None

    def advance(self) -> None:
        """Read the versions that have been written since."""
        while (path := self.directory / "_delta_log" / f"{len(self.versions):020d}.json").exists():
            self._add([json.loads(line, parse_float=Decimal) for line in path.read_text().splitlines() if line])

    def _add(self, lines: list[Json]) -> None:
        number = len(self.versions)
        before = self.versions[-1].files if self.versions else {}
        files, seen = dict(before), len(self.wrong)
        info: Json = next((line["commitInfo"] for line in lines if "commitInfo" in line), {})
        for line in lines:
            if "metaData" in line:
                self._metadata = line["metaData"]
                fields = json.loads(self._metadata["schemaString"])["fields"]
                self._physical = {f["name"]: f["metadata"].get("delta.columnMapping.physicalName", f["name"]) for f in fields}
            if "protocol" in line:
                self._tracked = "rowTracking" in line["protocol"].get("writerFeatures", [])
            if line.get("domainMetadata", {}).get("domain") == "delta.rowTracking":
                self._mark = json.loads(line["domainMetadata"]["configuration"])["rowIdHighWaterMark"]
            if "remove" in line:
                self._remove(files, line["remove"])
        added = [line["add"] for line in lines if "add" in line]
        for add in added:
            known = files.get(add["path"])
            if known is not None and _vector_id(known.add) != _vector_id(add):
                self.wrong.append(f"{add['path']} is there twice, with vectors {_vector_id(known.add)} and {_vector_id(add)}")
            for key in ("baseRowId", "defaultRowCommitVersion"):
                if add["path"] in before and before[add["path"]].add.get(key) not in (None, add.get(key)):
                    self.wrong.append(f"{key} of {add['path']} was {before[add['path']].add[key]}, and is {add.get(key)} now")
            files[add["path"]] = self._file(add)
        self.versions.append(Version(number, info, files))
        changes = {line[kind]["dataChange"] for line in lines for kind in ("add", "remove") if kind in line}
        if changes == {False} and _uids(before) != _uids(files):
            self.wrong.append("the commit says that it changes no data, and does")
        if self._tracked:
            self._check_ids(before, files, info)
        self.wrong[seen:] = [f"version {number}: {text}" for text in self.wrong[seen:]]

    def _remove(self, files: dict[str, File], remove: Json) -> None:
        known = files.get(remove["path"])
        if known is None or _vector_id(known.add) != _vector_id(remove):
            there = "is not there" if known is None else f"has the vector {_vector_id(known.add)}"
            self.wrong.append(f"{remove['path']} with vector {_vector_id(remove)} is removed, and {there}")
        else:
            del files[remove["path"]]

    # -- files ----------------------------------------------------------------------------------------------------------------

    def stored(self, path: str) -> Stored:
        """Return what a data file holds, but for its partition values."""
        if path not in self._stored:
            table = pq.ParquetFile(self.directory / unquote(path)).read(use_threads=False)  # a few rows
            nothing = [None] * table.num_rows

            def column(name: str) -> list[Any]:
                return table.column(name).to_pylist() if name in table.column_names else nothing

            configuration = self._metadata["configuration"]
            rows = list(zip(*(column(self._physical[name]) for name in COLUMNS), strict=True))
            ids, versions = (column(configuration.get(key, "-")) for key in (ROW_ID, ROW_VERSION))
            self._stored[path] = Stored(rows, ids, versions)
        return self._stored[path]

    def _file(self, add: Json) -> File:
        stored = self.stored(add["path"])
        gone = self.marked(add["deletionVector"]) if add.get("deletionVector") else BitMap64()
        if gone and gone.max() >= len(stored.rows):
            self.wrong.append(f"the vector of {add['path']} marks row {gone.max()} of {len(stored.rows)}")
        rows = {at: self._in_partition(row, add) for at, row in enumerate(stored.rows) if at not in gone}
        if not rows:
            self.wrong.append(f"{add['path']} has no row left")
        file = File(add, rows)
        if self._tracked:
            if add.get("baseRowId") is None or add.get("defaultRowCommitVersion") is None:
                self.wrong.append(f"{add['path']} has no row ids")
            base = add.get("baseRowId") or 0
            file.ids = {at: base + at if stored.ids[at] is None else stored.ids[at] for at in rows}
        self._check_stats(file, len(stored.rows))
        return file

    def _in_partition(self, row: Row, add: Json) -> Row:
        name = self._physical["p"]
        if name not in add["partitionValues"]:
            return row
        text = add["partitionValues"][name]
        return (*row[:-1], None if text is None else int(text))

    def marked(self, vector: Json) -> BitMap64:
        """Return the positions that a deletion vector marks."""
        key = f"{vector['pathOrInlineDv']}@{vector.get('offset')}"
        if key not in self._vectors:
            data = self._vector_data(vector)
            if struct.unpack("<I", data[:4]) != (MAGIC,):
                raise ValueError(f"{key} is not a deletion vector")
            bitmap = self._vectors[key] = BitMap64.deserialize(data[4:])
            if len(bitmap) != vector["cardinality"]:
                self.wrong.append(f"the vector {key} marks {len(bitmap)} rows, not {vector['cardinality']}")
        return self._vectors[key]

    def _vector_data(self, vector: Json) -> bytes:
        size, text = vector["sizeInBytes"], vector["pathOrInlineDv"]
        if vector["storageType"] == "i":
            return _z85(text)[:size]
        start = vector["offset"] + 4
        return (self.directory / _vector_path(text)).read_bytes()[start : start + size]

    def paths_of(self, version: Version) -> set[str]:
        """Return the files of a version: data files and those of deletion vectors."""
        found = {unquote(path) for path in version.files}
        vectors = (file.add.get("deletionVector") for file in version.files.values())
        return found | {_vector_path(vector["pathOrInlineDv"]) for vector in vectors if vector and vector["storageType"] == "u"}

    # -- checks ---------------------------------------------------------------------------------------------------------------

    def _check_ids(self, before: dict[str, File], files: dict[str, File], info: Json) -> None:
        ids = [row_id for file in files.values() for row_id in file.ids.values()]
        twice = [row_id for row_id, number in Counter(ids).items() if number > 1]
        if twice:
            self.wrong.append(f"rows with the same id: {twice}")
        if ids and (self._mark is None or max(ids) > self._mark):
            self.wrong.append(f"the row id {max(ids)} is above the mark {self._mark}")
        preserved = (info.get("tags") or {}).get("delta.rowTracking.preserved") == "true"
        old = {row[0]: (row_id, path) for path, file in before.items() for row_id, row in _rows_by_id(file)}
        for path, file in files.items():
            for row_id, row in _rows_by_id(file):
                known = old.get(row[0])
                if known is not None and known[0] != row_id and (preserved or known[1] == path):
                    self.wrong.append(f"row {row[0]} had the id {known[0]}, and has {row_id} now")

    def _check_stats(self, file: File, physical: int) -> None:
        stats = json.loads(file.add.get("stats") or "{}", parse_float=Decimal)
        path, rows = file.add["path"], list(file.rows.values())
        if stats.get("numRecords", physical) != physical:
            self.wrong.append(f"{path} has {physical} rows, not {stats['numRecords']}")
        names = {physical_name: name for name, physical_name in self._physical.items()}
        for kind in ("minValues", "maxValues"):
            for name, bound in stats.get(kind, {}).items():
                values = [value for row in rows if (value := row[AT[names[name]]]) is not None]
                if bound is not None and not all(_bounded(value, bound, kind == "minValues") for value in values):
                    self.wrong.append(f"{path}: {kind} of {names[name]} is {bound!r}, and there are {values}")
        tight = stats.get("tightBounds", True)
        for name, number in stats.get("nullCount", {}).items():
            found = sum(row[AT[names[name]]] is None for row in rows)
            wrong = number != found if tight else (number == 0 and found) or (number == physical and found < len(rows))
            if wrong:
                self.wrong.append(f"{path}: nullCount of {names[name]} is {number}, and {found} of {len(rows)} rows are null")


def _rows_by_id(file: File) -> list[tuple[int, Row]]:
    return [(file.ids[at], row) for at, row in file.rows.items()]


def _uids(files: dict[str, File]) -> Counter[Row]:
    return Counter(row[0] for file in files.values() for row in file.rows.values())


def _vector_id(action: Json) -> str | None:
    vector = action.get("deletionVector")
    return None if vector is None else f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"


def _vector_path(text: str) -> str:
    name = f"deletion_vector_{uuid.UUID(bytes=_z85(text[-20:]))}.bin"
    return f"{text[:-20]}/{name}" if text[:-20] else name


def _z85(text: str) -> bytes:
    found = bytearray()
    for start in range(0, len(text), 5):
        number = 0
        for letter in text[start : start + 5]:
            number = number * 85 + LETTERS.index(letter)
        found += number.to_bytes(4, "big")
    return bytes(found)


def _bounded(value: Any, bound: Any, is_minimum: bool) -> bool:
    """Tell whether a bound covers a value; NaN is covered by every bound, since many writers leave it out."""
    if isinstance(value, float | int | Decimal):
        one, other = Decimal(value), Decimal(bound)
        if one.is_nan() or other.is_nan():
            return True
        if isinstance(value, float) and math.isinf(value) != other.is_infinite() and math.isfinite(value):
            return other < 0 if is_minimum else other > 0
        return other <= one + FLOAT_SLACK if is_minimum else one <= other + FLOAT_SLACK
    text = value if isinstance(value, str) else value.isoformat()
    return bool(bound <= text) if is_minimum else bool(text <= bound)
