"""Small tables with real rows, and transactions that read and change them as stages do, without Spark."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from airflow_delta.log import AddFile, DeltaLog
from airflow_delta.log.actions.actions import MOVED_ROWS_TAG, Action, AddCDCFile, Metadata, Protocol, RemoveFile, encode_actions
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, read_deletion_vector, write_deletion_vectors
from airflow_delta.log.actions.moved_rows import MovedRows, RowSource, write_moved_rows
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.types import arrow_type, parse_schema
from airflow_delta.log.statistics.footers_to_stats import stats_from_footer
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.log.statistics.wide_bounds import with_wide_bounds
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction
from airflow_delta.transaction.reads.key_set import KeySet
from support import readers

Row = dict[str, Any]
Chooses = Callable[[Row], bool]

ROW_IDS = "delta.rowTracking.materializedRowIdColumnName"
ROW_VERSIONS = "delta.rowTracking.materializedRowCommitVersionColumnName"


@dataclass
class RowTable:
    """A table with the columns ``id`` (long), ``kind`` (string), ``n`` (integer), or others.

    :param tracked: with row ids.
    :param layout: Arrow's type of texts that files note beside their columns, as writers do that have them so in memory.
    """

    root: Path
    partition_by: Sequence[str] = ()
    vectors: bool = True
    tracked: bool = False
    columns: Mapping[str, str] = field(default_factory=lambda: {"id": "long", "kind": "string", "n": "integer"})
    configuration: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    row_groups: int = 1 << 20
    layout: pa.DataType | None = None

    def __post_init__(self) -> None:
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in self.columns.items()]
        configuration = dict(self.configuration)
        features = ["appendOnly", "invariants"]
        reading: list[str] = []
        if self.vectors:
            configuration["delta.enableDeletionVectors"] = "true"
            reading.append("deletionVectors")
        if self.tracked:
            configuration |= {"delta.enableRowTracking": "true", ROW_IDS: "_row_id", ROW_VERSIONS: "_row_version"}
            features += ["domainMetadata", "rowTracking"]
        if configuration.get("delta.enableChangeDataFeed"):
            features.append("changeDataFeed")
        self.schema_string = json.dumps({"type": "struct", "fields": fields})
        metadata = Metadata(
            id="11111111-2222-3333-4444-555555555555",
            schema_string=self.schema_string,
            partition_columns=list(self.partition_by),
            configuration=configuration,
            created_time=1,
        )
        protocol = Protocol(
            min_reader_version=3 if reading else 1,
            min_writer_version=7,
            reader_features=reading or None,
            writer_features=[*features, *reading],
        )
        log = self.root / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020d}.json").write_bytes(encode_actions([protocol, metadata]))

    def log(self) -> DeltaLog:
        return DeltaLog.for_table(str(self.root), {"durable": "false"})

    # -- files ----------------------------------------------------------------------------------------------------------------

    def write(self, *rows: Row, data_change: bool = True, ids: Sequence[int] | None = None) -> AddFile:
        """Write rows of one partition."""
        self.number += 1
        path, schema = f"{self.number:03}.parquet", parse_schema(self.schema_string)
        data = schema.without(self.partition_by)
        columns = {f.name: pa.array([row.get(f.name) for row in rows], arrow_type(f.data_type)) for f in data}
        if ids is not None:
            columns["_row_id"] = pa.array(ids, pa.int64())
        if self.layout is not None:
            columns = {name: self._laid_out(values) for name, values in columns.items()}
        footer = self._write_file(pa.table(columns), self.root / path)
        values = {name: None if rows[0].get(name) is None else str(rows[0][name]) for name in self.partition_by}
        return AddFile(
            path=path,
            partition_values=values,
            size=(self.root / path).stat().st_size,
            modification_time=1,
            data_change=data_change,
            stats=stats_from_footer(footer, data, TableProperties({}), tight_bounds=self.vectors),
        )

    def _write_file(self, rows: pa.Table, path: Path) -> pq.FileMetaData:
        views = self.layout == pa.string_view()  # the lowest PyArrow writes none: the same columns, with the note added by hand
        with pq.ParquetWriter(path, rows.schema, store_schema=not views) as writer:
            writer.write_table(rows, row_group_size=self.row_groups)
            if views:
                noted = pa.schema([f.with_type(self.layout) if f.type == pa.string() else f for f in rows.schema])
                writer.add_key_value_metadata({"ARROW:schema": base64.b64encode(noted.serialize().to_pybytes())})
        return pq.read_metadata(path)

    def _laid_out(self, values: pa.Array) -> pa.Array:
        if self.layout in (None, pa.string_view()) or values.type != pa.string():
            return values
        if not pa.types.is_dictionary(self.layout):
            return values.cast(self.layout)
        distinct = values.unique().drop_null()
        places = pc.index_in(values, value_set=distinct).cast(self.layout.index_type)
        return pa.DictionaryArray.from_arrays(places, distinct.cast(self.layout.value_type))

    def stored(self, file: AddFile) -> dict[int, Row]:
        """Return the live rows of a file by position."""
        rows = pq.ParquetFile(self.root / file.path).read().to_pylist()
        store = self.log().store
        gone = read_deletion_vector(store, file.deletion_vector) if file.deletion_vector is not None else BitMap64()
        types = {f.name: f.data_type for f in parse_schema(self.schema_string)}
        parts = {name: _partition(file.partition_values[name], types[name].name) for name in self.partition_by}
        plain = [{name: value for name, value in row.items() if name in types} for row in rows]
        return {at: {**row, **parts} for at, row in enumerate(plain) if at not in gone}

    def files(self) -> list[AddFile]:
        from airflow_delta.log.checkpoint.file_columns import FILE_COLUMNS, to_add_files

        return to_add_files(self.log().update().files(None, FILE_COLUMNS))

    def rows(self, version: int | None = None) -> list[Row]:
        """Return the rows as independent readers see them, in order."""
        return sorted(readers.rows(self.root, version), key=repr)

    # -- commits --------------------------------------------------------------------------------------------------------------

    def append(self, *rows: Row) -> int:
        return self.begin().append(*rows).commit()

    def begin(self, level: str = "rows", *, isolation: str | None = None, **policy: Any) -> Work:
        options = CommitPolicy(conflict_detection=level, checksum=False, **policy)  # type: ignore[arg-type]
        return Work(self, self.log().start_transaction(policy=options, isolation_level=isolation))

    def compact(self, *, keep_ids: bool = True, recorded: bool = False) -> int:
        """Rewrite all files into one, as another engine does, or as we do."""
        return self.begin("delta").compact(keep_ids=keep_ids, recorded=recorded).commit()

    def info(self, version: int) -> dict[str, Any]:
        line = (self.root / "_delta_log" / f"{version:020d}.json").read_text().splitlines()[0]
        return dict(json.loads(line)["commitInfo"])

    def actions(self, version: int, kind: str) -> list[dict[str, Any]]:
        lines = (self.root / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
        return [dict(found[kind]) for line in lines if kind in (found := json.loads(line))]


def _partition(text: str | None, kind: str) -> Any:
    return text if text is None or kind == "string" else int(text)


@dataclass
class Work:
    """One transaction: its reads and what it writes."""

    table: RowTable
    transaction: OptimisticTransaction
    actions: list[Action] = field(default_factory=list)
    operation: Operation = field(default_factory=lambda: Operation.write())

    def __post_init__(self) -> None:
        self.files = {file.path: file for file in self.table.files()}

    def append(self, *rows: Row) -> Work:
        if rows:
            self.actions.append(self.table.write(*rows))
        return self

    def read(self, predicate: str | None = None) -> Work:
        """Read rows of the table, as ``table(...)`` of a stage does."""
        if predicate is None:
            self.transaction.filter_files()
            self.transaction.read_whole_table(rows=True)
        else:
            self.transaction.filter_files(predicate)
        return self

    def delete(self, predicate: str, chooses: Chooses, **how: Any) -> Work:
        self.operation = Operation.delete([predicate])
        return self._change(predicate, chooses, None, **how)

    def update(self, predicate: str, chooses: Chooses, change: Mapping[str, Any], **how: Any) -> Work:
        self.operation = Operation.update(predicate)
        return self._change(predicate, chooses, lambda row: {**row, **change}, **how)

    def merge(
        self, source: Sequence[Row], keys: KeySet | None, *, on: Sequence[str] = ("id",), changes: Chooses = bool, **how: Any
    ) -> Work:
        """Update rows that equal one of the source, if they are among those that ``changes`` chooses; insert the others.

        :param keys: what the stage says of the source.
        """
        self.operation = Operation.merge("source.id = target.id")
        by_key = {tuple(row[name] for name in on): row for row in source}
        live = [row for file in self.files.values() for row in self.table.stored(file).values()]
        found = {tuple(row[name] for name in on) for row in live}

        def matched(row: Row) -> Row | None:
            return by_key.get(tuple(row[name] for name in on))

        how = {"keys": keys, "marked": False, "scanned": True, **how}
        self._change("true", lambda row: matched(row) is not None and changes(row), matched, **how)
        return self.append(*(row for key, row in by_key.items() if key not in found))

    def _change(
        self,
        predicate: str,
        chooses: Chooses,
        change: Callable[[Row], Row | None] | None,
        *,
        vectors: bool = True,
        inline: bool = False,
        marked: bool = True,
        scanned: bool = False,
        keys: KeySet | None = None,
        change_files: bool = False,
    ) -> Work:
        touched, new = [], []
        for file in self.files.values():
            rows = self.table.stored(file)
            gone = {at: row for at, row in rows.items() if chooses(row)}
            if not gone:
                continue
            touched.append(file.path)
            new += [after for row in gone.values() if change is not None and (after := change(row)) is not None]
            self.actions.append(file.remove(2))
            if not vectors:
                stay = [row for at, row in rows.items() if at not in gone]
                self.append(*stay)
            elif len(gone) < len(rows):
                self.actions.append(self._with_vector(file, BitMap64(gone), inline=inline))
        by_part: dict[tuple[Any, ...], list[Row]] = {}
        for row in new:
            by_part.setdefault(tuple(row.get(name) for name in self.table.partition_by), []).append(row)
        for rows_of_part in by_part.values():
            self.append(*rows_of_part)
            if change_files:
                self._add_changes(rows_of_part)
        self.transaction.track_read_predicates(predicate, keys=keys, marked=marked and vectors, scanned=scanned)
        self.transaction.track_files_read(touched, whole=False)
        return self

    def _with_vector(self, file: AddFile, rows: BitMap64, *, inline: bool) -> AddFile:
        store = self.transaction.log.store
        if file.deletion_vector is not None:
            rows = rows | read_deletion_vector(store, file.deletion_vector)
        vector = inline_deletion_vector(rows) if inline else write_deletion_vectors(store, "staged/x", [rows])[0]
        stats = with_wide_bounds(file.stats, file.deletion_vector)
        return msgspec.structs.replace(file, deletion_vector=vector, stats=stats, data_change=True)

    def _add_changes(self, rows: Sequence[Row]) -> None:
        file = self.table.write(*rows)
        self.actions.append(AddCDCFile(path=file.path, partition_values=file.partition_values, size=file.size))

    def remove_all(self, *, read: bool = True) -> Work:
        """Remove every file whole, as a DELETE without a predicate does."""
        if read:
            self.transaction.filter_files()
        self.actions += [file.remove(2) for file in self.files.values()]
        return self

    def compact(self, *, keep_ids: bool = True, recorded: bool = False) -> Work:
        """Put all rows into one file.

        :param recorded: in the order of the files and their rows, with a record of that.
        """
        self.operation = Operation.optimize()
        rows: list[Row] = []
        ids: list[int] = []
        for file in self.files.values():
            stored_ids = {}
            if self.table.tracked:
                stored = pq.ParquetFile(self.table.root / file.path).read()
                known = stored.column("_row_id").to_pylist() if "_row_id" in stored.column_names else [None] * stored.num_rows
                stored_ids = {at: (file.base_row_id or 0) + at if row_id is None else row_id for at, row_id in enumerate(known)}
            for at, row in self.table.stored(file).items():
                rows.append(row)
                ids.append(stored_ids.get(at, -1))
        self.transaction.track_files_read(self.files)
        self.actions += [file.remove(3, data_change=False) for file in self.files.values()]
        order = list(range(len(rows)))
        if not recorded:
            order.sort(key=lambda at: (str(rows[at]), ids[at]), reverse=True)
        kept = [ids[at] for at in order] if self.table.tracked and keep_ids else None
        new = self.table.write(*(rows[at] for at in order), data_change=False, ids=kept)
        self.actions.append(self._recorded(new) if recorded else new)
        return self

    def _recorded(self, new: AddFile) -> AddFile:
        """Return a new file with the record that it has the rows of all files, one file after the other."""
        store, sources, first = self.transaction.log.store, [], 0
        for file in self.files.values():
            deleted = BitMap64() if file.deletion_vector is None else read_deletion_vector(store, file.deletion_vector)
            records = num_records(file.stats) or 0
            sources.append(RowSource.of(file.path, file.size, records, first, deleted))
            first += records - len(deleted)
        record = MovedRows(path=new.path, size=new.size, num_records=first, sources=tuple(sources))
        [tag] = write_moved_rows(store, f"staged/{uuid.uuid4()}/optimize/1-a", [record])
        return msgspec.structs.replace(new, tags={MOVED_ROWS_TAG: tag})

    def with_data_change(self, value: bool) -> Work:
        found: list[Action] = []
        for action in self.actions:
            changed = isinstance(action, AddFile | RemoveFile)
            found.append(msgspec.structs.replace(action, data_change=value) if changed else action)
        return replace(self, actions=found)

    def commit(self) -> int:
        return self.transaction.commit(self.actions, self.operation)

    @property
    def resolved(self) -> dict[str, str]:
        assert self.transaction.outcome is not None
        return dict(self.transaction.outcome.resolved)


def row(number: int, kind: str = "a", n: int | None = 0) -> dict[str, Any]:
    return {"id": number, "kind": kind, "n": n}


def with_id(*ids: int) -> Callable[[dict[str, Any]], bool]:
    return lambda found: found["id"] in ids


def keys_of(table: RowTable, *ids: int, listed: bool = True) -> KeySet:
    """What a MERGE has read by these keys."""
    found = Predicate.parse("id = 1", parse_schema(table.schema_string)).columns
    rows = frozenset((number,) for number in ids)
    return KeySet(found, (False,), (min(ids),), (max(ids),), (False,), rows if listed else None)


def merged(table: RowTable, *ids: int, listed: bool = True, **how: Any) -> Work:
    """MERGE of rows with n = 9: updates those that are there, inserts the others."""
    return table.begin().merge([row(number, "m", 9) for number in ids], keys_of(table, *ids, listed=listed), **how)


def live(table: RowTable) -> dict[int, int]:
    """The value of n by id, which no two rows may have."""
    found = [(one["id"], one["n"]) for one in table.rows()]
    assert len(dict(found)) == len(found)
    return dict(found)
