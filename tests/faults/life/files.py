"""Files, names and logs that a job or another writer may bring: the table has exactly their rows, or they are refused."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from airflow_delta.exceptions import DeltaError
from airflow_delta.log import DeltaLog
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_files
from airflow_delta.table.start.begin import begin
from faults.life.model import Wrong
from support import readers

FAST = "/dev/shm"
PARTITION_COLUMNS = ("p", ".p", "_p", "p-q")
NAMES = ("part-0.parquet", "000000_0", "b.parq", "C.PARQUET")
REFUSALS_COUNT = True
"""Whether a refusal without a reason counts as a fault."""
HIDDEN = (".part-0.parquet.crc", "_metadata")
UNREADABLE = {
    "nanoseconds": pa.timestamp("ns"),
    "half floats": pa.float16(),
}
PLAIN = {"none": None, "microseconds": pa.timestamp("us", tz="UTC"), "texts": pa.string()}


@dataclass(frozen=True)
class File:
    """A file of a job: its partition, its name, and how many rows it has."""

    partition: str
    name: str
    rows: int


@dataclass(frozen=True)
class Write:
    """What a job leaves, and a try of it that failed.

    :ivar more: type of one more column.
    :ivar spelled: whether it calls the column ``id`` ``ID``.
    """

    files: tuple[File, ...]
    hidden: tuple[str, ...]  # beside the marker _SUCCESS
    more: str
    spelled: bool
    failed_before: bool


files = st.lists(
    st.builds(File, st.sampled_from(("a", "b c", "ü")), st.sampled_from(NAMES), st.integers(1, 3)),
    min_size=1,
    max_size=3,
    unique_by=lambda file: (file.partition, file.name),
).map(tuple)
writes = st.builds(
    Write,
    files,
    st.lists(st.sampled_from(HIDDEN), max_size=1).map(tuple),
    st.sampled_from(("none", "none", "texts", "microseconds", *UNREADABLE)),
    st.integers(0, 3).map(lambda number: number == 3),
    st.booleans(),
)


def _field(name: str, data_type: Any) -> dict[str, Any]:
    return {"name": name, "type": data_type, "nullable": True, "metadata": {}}


def _values(kind: str, ids: list[int]) -> pa.Array | None:
    data_type = {**PLAIN, **UNREADABLE}[kind]
    if data_type is None:
        return None
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC if getattr(data_type, "tz", None) else None)
    made: dict[str, Any] = {"texts": [str(i) for i in ids], "half floats": [float(i) for i in ids]}
    return pa.array(made.get(kind, [moment + dt.timedelta(days=i) for i in ids]), data_type)


class Case:
    """One table, written to by jobs whose files are staged and committed.

    :param dots: whether it has a column ``a.b`` beside a struct ``a``.
    :param declared: whether the start task gives the schema of the new table.
    """

    def __init__(self, partition: str, *, dots: bool, declared: bool) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="files-", dir=FAST if os.access(FAST, os.W_OK) else None)) / "t"
        self.partition, self.dots = partition, dots
        self.rows: dict[int, str] = {}
        self.columns: set[str] = {"id"} if declared else set()
        self.schema = self._schema() if declared else None
        self._ids = self._keys = 0

    def close(self) -> None:
        shutil.rmtree(self.path.parent)

    def _schema(self) -> str:
        nested = {"type": "struct", "fields": [_field("b", "long")]}
        more = [_field("a.b", "long"), _field("a", nested)] if self.dots else []
        return json.dumps({"type": "struct", "fields": [_field("id", "long"), *more, _field(self.partition, "string")]})

    def log(self) -> DeltaLog:
        return DeltaLog.for_table(str(self.path))

    def _put(self, root: Path, write: Write) -> dict[int, str]:
        rows: dict[int, str] = {}
        for file in write.files:
            self._ids += file.rows
            ids = list(range(self._ids - file.rows, self._ids))
            columns = {"ID" if write.spelled else "id": pa.array(ids, pa.int64())}
            if self.dots:  # the column a.b beside the field b of a struct a
                columns["a.b"] = pa.array(ids, pa.int64())
                columns["a"] = pa.array([{"b": i + 1000} for i in ids], pa.struct([("b", pa.int64())]))
            if (more := _values(write.more, ids)) is not None:
                columns[f"more {write.more.split()[0]}".replace(" ", "_")] = more
            folder = root / f"{self.partition}={file.partition}"
            folder.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(columns), folder / file.name, version="2.6")
            rows |= dict.fromkeys(ids, file.partition)
        for name in (*write.hidden, "_SUCCESS"):
            (root / name).write_bytes(b"no Parquet")
        return rows

    def write(self, write: Write) -> None:
        """Run one transaction; what it refuses changes nothing."""
        self._keys += 1
        handle = begin(self.log(), transaction_key=str(self._keys), partition_by=[self.partition], schema=self.schema)
        place = Path(handle.staging_path, "job")
        if write.failed_before:
            self._put(place / "try-1", write)
        rows = self._put(place / "try-2", write)
        unreadable = write.more in UNREADABLE
        try:
            view = open_stage(self.log(), handle, task_id="stage", attempt="1-00000000")
            staged = collect_files(view, path="job/try-2", merge_schema=True)
            publish(self.log(), handle, [staged], attempt="1-00000000")
        except DeltaError as error:
            if REFUSALS_COUNT and not (unreadable or self._spelled_else(write)):
                raise Wrong(f"{write} was refused: {error}") from error
            return
        if unreadable:
            raise Wrong(f"{write} was published: Spark cannot read its {write.more}")
        if not self.columns:
            self.columns.add("ID" if write.spelled else "id")
        self.rows |= rows

    def _spelled_else(self, write: Write) -> bool:
        return bool(self.columns) and ("ID" if write.spelled else "id") not in self.columns

    def check(self) -> None:
        """Compare the table with the rows, as other engines read it, and as we find files by statistics."""
        if not self.rows:
            return
        name = next(iter(self.columns))
        for reader in ("delta-rs", "Polars"):
            try:
                read = readers.READERS[reader](str(self.path), None)
            except Exception as error:
                raise Wrong(f"{reader} cannot read the table: {error}") from error
            found = sorted(zip(read.column(name).to_pylist(), read.column(self.partition).to_pylist(), strict=True), key=repr)
            if found != sorted(self.rows.items(), key=repr):
                raise Wrong(f"{reader} reads {found}, written were {sorted(self.rows.items())}")
        if self.dots:
            snapshot = self.log().snapshot
            for row, part in self.rows.items():
                for predicate in (f"`a.b` = {row}", f"a.b = {row + 1000}"):
                    partitions = [dict(file.partition_values)[self.partition] for file in snapshot.add_files(predicate)]
                    if part not in partitions:
                        raise Wrong(f"{predicate} finds no file of the partition {part}, which has the row")


def unreadable_logs() -> st.SearchStrategy[tuple[dict[str, Any], ...]]:
    """Return actions of a version that nobody may read: of a protocol to come, or without what makes a table."""
    metadata = {"metaData": {"id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": _SCHEMA}}
    metadata["metaData"] |= {"partitionColumns": [], "configuration": {}}
    known = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    coming = st.integers(4, 99).map(lambda version: {"protocol": {"minReaderVersion": version, "minWriterVersion": 7}})
    feature = st.just(
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["x"], "writerFeatures": ["x"]}}
    )
    return st.one_of(
        st.tuples(coming, st.just(metadata)), st.tuples(feature, st.just(metadata)), st.just((known,)), st.just((metadata,))
    )


_SCHEMA = json.dumps({"type": "struct", "fields": [_field("id", "long")]})


def check_unreadable(actions: tuple[dict[str, Any], ...]) -> None:
    """Ask for the files of a version that cannot be read in every way there is."""
    path = Path(tempfile.mkdtemp(prefix="logs-"))
    try:
        (path / "_delta_log").mkdir()
        add = {"add": {"path": "x", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}}
        lines = "\n".join(map(json.dumps, (*actions, add)))
        (path / "_delta_log" / f"{0:020}.json").write_text(lines)
        asked = {
            "files": lambda snapshot: snapshot.files(),
            "add_files": lambda snapshot: snapshot.add_files("id = 1"),
            "files_at": lambda snapshot: snapshot.files_at(["x"]),
            "tombstones": lambda snapshot: snapshot.tombstones(),
            "num_files": lambda snapshot: snapshot.num_files,
        }
        for name, ask in asked.items():
            try:
                answer = ask(DeltaLog.for_table(str(path)).snapshot)
            except DeltaError:
                continue
            raise Wrong(f"{name} of {actions} answers {answer}")
    finally:
        shutil.rmtree(path)
