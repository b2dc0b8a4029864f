"""Writes what a transaction of a row history stages: Parquet files with statistics, deletion vectors, a table's first version."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from airflow_delta.log import AddFile, DeletionVectorDescriptor, DeltaLog
from airflow_delta.log.actions.actions import DomainMetadata, Metadata, Protocol, encode_actions
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, write_deletion_vectors
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.types import parse_schema
from airflow_delta.log.statistics.footers_to_stats import stats_from_footer
from faults.rows.reader import ROW_ID, ROW_VERSION, TableReader
from faults.rows.setting import Setting
from faults.rows.values import AT, TYPES, Row
from support.actions import TABLE_ID
from support.table import Table

ARROW = {
    "long": pa.int64(),
    "integer": pa.int32(),
    "string": pa.string(),
    "date": pa.date32(),
    "decimal(9,2)": pa.decimal128(9, 2),
    "double": pa.float64(),
}
ID_COLUMNS = {ROW_ID: "_row_id", ROW_VERSION: "_row_version"}
FEW = ("uid", "k", "s")
PREFIX = 32

Ids = tuple[int, int]
"""Row id and row commit version of a row that keeps them."""
Placed = tuple[Row, Ids | None]


class HistoryTable(Table):
    """A table of a history.

    :ivar reader: reads every version, to judge it.
    """

    def __init__(self, path: Path, setting: Setting) -> None:
        super().__init__(path)
        self.setting = setting
        self.reader = TableReader(path)
        self.physical = {name: f"col-{name}" if setting.mapped else name for name in TYPES}
        self.partition_by = ["p"] if setting.partitioned else []
        self._number = 0
        self._metadata = self._new_metadata()
        self._schema = parse_schema(self._metadata.schema_string).without(self.partition_by)
        self._properties = TableProperties(self._metadata.configuration)

    def create_with(self, first: Sequence[Sequence[Row]]) -> None:
        """Write version 0."""
        self.log_file(0).parent.mkdir(parents=True)
        setting = self.setting
        reading = [*(["deletionVectors"] if setting.vectors else []), *(["columnMapping"] if setting.mapped else [])]
        writing = ["appendOnly", "invariants", *reading, *(["domainMetadata", "rowTracking"] if setting.tracked else [])]
        protocol = Protocol(min_reader_version=1, min_writer_version=2)
        if len(writing) > 2:
            protocol = Protocol(
                min_reader_version=3 if reading else 1,
                min_writer_version=7,
                reader_features=reading or None,
                writer_features=writing,
            )
        adds, base = [], 0
        for rows in first:
            for add in self.write_files([(row, None) for row in rows]):
                if setting.tracked:
                    add = msgspec.structs.replace(add, base_row_id=base, default_row_commit_version=0)
                    base += json.loads(add.stats or "")["numRecords"]
                adds.append(add)
        mark = DomainMetadata(
            domain="delta.rowTracking", configuration=json.dumps({"rowIdHighWaterMark": base - 1}), removed=False
        )
        actions = [protocol, self._metadata, *adds, *([mark] if setting.tracked and base else [])]
        self.log_file(0).write_bytes(encode_actions(actions))

    def _new_metadata(self) -> Metadata:
        setting = self.setting
        configuration = {"delta.isolationLevel": setting.level}
        if setting.interval:
            configuration["delta.checkpointInterval"] = str(setting.interval)
        if setting.vectors:
            configuration["delta.enableDeletionVectors"] = "true"
        if setting.tracked and setting.has_ids:
            configuration |= {"delta.enableRowTracking": "true", **ID_COLUMNS}
        if setting.mapped:
            configuration |= {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(len(TYPES))}
        fields = []
        for number, (name, kind) in enumerate(TYPES.items()):
            known = {"delta.columnMapping.id": number + 1, "delta.columnMapping.physicalName": self.physical[name]}
            fields.append({"name": name, "type": kind, "nullable": True, "metadata": known if setting.mapped else {}})
        return Metadata(
            id=TABLE_ID,
            schema_string=json.dumps({"type": "struct", "fields": fields}),
            partition_columns=self.partition_by,
            configuration=configuration,
            created_time=1,
        )

    def vacuum(self) -> None:
        """Delete the files that versions had and the latest one does not have."""
        live = self.reader.paths_of(self.reader.versions[-1])
        for version in self.reader.versions:
            for path in self.reader.paths_of(version) - live:
                (self.path / path).unlink(missing_ok=True)

    # -- data files -----------------------------------------------------------------------------------------------------------

    def write_files(self, rows: Iterable[Placed], *, data_change: bool = True) -> list[AddFile]:
        """Write rows, a file for each partition."""
        parts: dict[Any, list[Placed]] = {}
        for row, ids in rows:
            parts.setdefault(row[AT["p"]] if self.partition_by else None, []).append((row, ids))
        return [self._write_one(part, placed, data_change) for part, placed in parts.items()]

    def _write_one(self, part: int | None, placed: Sequence[Placed], data_change: bool) -> AddFile:
        self._number += 1
        path = f"{self._number:04} é%+.parquet" if self.setting.odd else f"{self._number:04}.parquet"
        columns: dict[str, pa.Array] = {}
        for name, kind in TYPES.items():
            values = [row[AT[name]] for row, _ids in placed]
            pruned = self.setting.prunes and name != "uid" and not any(value is not None for value in values)
            if name not in self.partition_by and not pruned:
                columns[self.physical[name]] = pa.array(values, ARROW[kind])
        if any(ids is not None for _row, ids in placed):
            for position, name in enumerate(ID_COLUMNS.values()):
                columns[name] = pa.array([None if ids is None else ids[position] for _row, ids in placed], pa.int64())
        footers: list[pq.FileMetaData] = []
        data = pa.BufferOutputStream()
        pq.write_table(
            pa.table(columns),
            data,
            row_group_size=self.setting.fine,
            compression="NONE",
            store_decimal_as_integer=self.setting.short_decimals,
            metadata_collector=footers,
        )
        size = (self.path / path).write_bytes(data.getvalue())
        return AddFile(
            path=quote(path),
            partition_values={self.physical["p"]: None if part is None else str(part)} if self.partition_by else {},
            size=size,
            modification_time=1,
            data_change=data_change,
            stats=self._stats([row for row, _ids in placed], footers[0]),
        )

    def _stats(self, rows: Sequence[Row], footer: pq.FileMetaData) -> str | None:
        setting = self.setting
        kind = setting.stats
        if kind == "mixed":
            kind = ("footer", "spark", "few", "spark")[self._number % 4]
        if kind == "none":
            return json.dumps({"numRecords": len(rows)}) if setting.tracked or setting.vectors else None
        if kind == "footer":
            return stats_from_footer(footer, self._schema, self._properties, tight_bounds=setting.vectors)
        names = [name for name in (FEW if kind == "few" else TYPES) if name not in self.partition_by]
        stats: dict[str, Any] = {"numRecords": len(rows), "minValues": {}, "maxValues": {}, "nullCount": {}}
        for name in names:
            values = [value for row in rows if (value := row[AT[name]]) is not None]
            stats["nullCount"][self.physical[name]] = len(rows) - len(values)
            if values:
                ordered = sorted(values, key=lambda value: (isinstance(value, float) and math.isnan(value), value))
                stats["minValues"][self.physical[name]] = _bound(ordered[0], is_minimum=True)
                stats["maxValues"][self.physical[name]] = _bound(ordered[-1], is_minimum=False)
        if setting.vectors:
            stats["tightBounds"] = True
        return json.dumps(stats)

    # -- live rows ------------------------------------------------------------------------------------------------------------

    def live_rows(self, add: AddFile) -> dict[int, Placed]:
        """Return the live rows of a file by position; with their ids if the table has row ids."""
        stored = self.reader.stored(add.path)
        gone = self.marked(add)
        found: dict[int, Placed] = {}
        for at, row in enumerate(stored.rows):
            if at in gone:
                continue
            if self.partition_by:
                text = add.partition_values[self.physical["p"]]
                row = (*row[:-1], None if text is None else int(text))
            ids = None
            if add.base_row_id is not None and add.default_row_commit_version is not None:
                row_id, version = stored.ids[at], stored.versions[at]
                ids = (
                    add.base_row_id + at if row_id is None else row_id,
                    add.default_row_commit_version if version is None else version,
                )
            found[at] = (row, ids)
        return found

    def marked(self, add: AddFile) -> BitMap64:
        """Return the positions that a file's deletion vector marks."""
        return BitMap64() if add.deletion_vector is None else self.reader.marked(_as_json(add.deletion_vector))

    @staticmethod
    def vectors(log: DeltaLog, directory: str, bitmaps: Sequence[BitMap64], *, inline: bool) -> list[DeletionVectorDescriptor]:
        """Store deletion vectors."""
        if inline:
            return [inline_deletion_vector(bitmap) for bitmap in bitmaps]
        return write_deletion_vectors(log.store, directory, bitmaps)


def _as_json(vector: DeletionVectorDescriptor) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(msgspec.json.encode(vector))
    return known


def _bound(value: Any, *, is_minimum: bool) -> Any:
    """Return a bound as Delta Spark writes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str) and len(value) > PREFIX:
        return value[:PREFIX] + ("" if is_minimum else "\U0010ffff")
    if isinstance(value, dt.date):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value
