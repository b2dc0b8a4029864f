"""The live files of a version as an Arrow table: rows of the checkpoint, filtered and without those that later commits touch.

Columns are read in steps: partition values, then statistics, then the requested columns, each step only from row groups in which
the previous step selected rows. Only the selected rows are held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.actions.reconciliation import FileKey, TailFiles
from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import array, scalar
from airflow_delta.log.checkpoint.file_columns import (
    FILE_SCHEMA,
    TOMBSTONE_SCHEMA,
    camel,
    from_actions,
    projected,
    to_add_files,
    to_columns,
)
from airflow_delta.log.checkpoint.prefetch import prefetched
from airflow_delta.log.replay.filter import Evaluate, FileFilter
from airflow_delta.log.replay.path_spellings import VECTOR_ID, OtherSpellings, canonical_paths, keys_of
from airflow_delta.log.storage.progress import tracked

if TYPE_CHECKING:
    from airflow_delta.log.checkpoint.part import CheckpointPart, RowGroup
    from airflow_delta.log.checkpoint.reader import CheckpointReader

_REQUIRED = ("path", "partitionValues", "size")
"""Fields that every ``add`` must have (protocol, "Add File")."""


def live_files(
    reader: CheckpointReader | None,
    tail: TailFiles,
    *,
    file_filter: FileFilter | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Return the live files that a filter may select; checkpoint files first, then those of the tail.

    :param reader: the checkpoint, or ``None`` if the log has none.
    :param tail: the commits after it.
    :param file_filter: excludes files that cannot have matching rows.
    :param columns: the columns, in this order; ``None`` for all but ``stats``.
    """
    schema = projected(columns)
    batches: list[pa.RecordBatch] = []
    if reader is not None:
        batches.extend(live_batches(reader, tail, schema, file_filter=file_filter))
    batches.append(from_actions(_tail_adds(tail, file_filter), schema))
    return pa.Table.from_batches([batch for batch in batches if batch.num_rows], schema=schema)


def live_adds(reader: CheckpointReader | None, tail: TailFiles, *, file_filter: FileFilter | None = None) -> list[AddFile]:
    """Return the files of :func:`live_files` as actions; those of the tail are actions already."""
    adds: list[AddFile] = []
    if reader is not None:
        batches = live_batches(reader, tail, FILE_SCHEMA, file_filter=file_filter)
        adds = to_add_files(pa.Table.from_batches(list(batches), schema=FILE_SCHEMA))
    return [*adds, *(msgspec.structs.replace(add, data_change=False) for add in _tail_adds(tail, file_filter))]


def live_batches(
    reader: CheckpointReader, tail: TailFiles, schema: pa.Schema, *, file_filter: FileFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the files of a checkpoint that are still live, as batches of ``schema``."""
    for rows in live_rows(reader, tail, schema.names, file_filter=file_filter):
        yield to_columns(rows, schema)


def live_rows(
    reader: CheckpointReader,
    tail: TailFiles,
    columns: Sequence[str],
    *,
    file_filter: FileFilter | None = None,
    stats_parsed: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the ``add`` rows of a checkpoint that are still live, with Delta's names for the columns.

    :param columns: columns of :data:`FILE_SCHEMA`; the result may have more.
    :param stats_parsed: include typed statistics if the checkpoint has them.
    """
    touched, others = TouchedFiles.of(tail, reader), OtherSpellings(reader)
    names = [camel(name) for name in columns if name != "data_change"]
    wanted = list(dict.fromkeys([*names, *touched.columns]))
    if stats_parsed or ("stats" in wanted and not reader.may_have_values(("add", "stats"))):
        wanted.append("stats_parsed")  # replaces JSON statistics if the checkpoint has none
    if file_filter is not None:
        file_filter.prepare(reader)
    total = reader.num_rows if file_filter is None else None
    found = _selected_rows(reader, wanted, file_filter)
    for rows in tracked(found, f"Reading the checkpoint of {reader.table}", total, count=len):
        canonical = canonical_paths(rows.column("path"))
        kept = touched.kept(rows, canonical)
        if kept is not None:
            rows, canonical = kernels.filter(rows, kept), kernels.filter(canonical, kept)
        live = others.drop_from(rows, canonical)
        if file_filter is not None:
            live = file_filter.decided(live)
        if live.num_rows:
            yield live


def _selected_rows(reader: CheckpointReader, columns: list[str], file_filter: FileFilter | None) -> Iterator[pa.RecordBatch]:
    for part in reader.parts:
        groups = [g for g in part.row_groups if g.may_hold("add") and (file_filter is None or file_filter.keeps(g))]
        selection = _Selection(part, groups, None)
        if file_filter is not None:
            for step_columns, evaluate in file_filter.steps:
                if selection.groups:
                    selection = selection.narrowed(step_columns, evaluate)
        undecided = [] if file_filter is None else file_filter.undecided
        yield from selection.rows([*columns, *(name for name in undecided if name not in columns)])


@dataclass(frozen=True, slots=True)
class _Selection:
    """Selected rows in some row groups of a part.

    :param mask: one boolean for each row of the groups, whatever its kind; ``None`` selects every ``add``.
    """

    part: CheckpointPart
    groups: list[RowGroup]
    mask: pa.BooleanArray | None

    def _struct_batches(self, columns: Sequence[str]) -> Iterator[tuple[pa.StructArray, pa.BooleanArray | None]]:
        """Yield the struct column ``add`` with the mask of the selected rows; ``None`` means all rows."""
        at = 0
        present = [name for name in (f"add.{column}" for column in columns) if self.part.has_text(name)]
        for batch in self.part.batches(self.groups, present or ["add.path"]):
            rows = batch.column("add")
            if self.mask is not None:
                yield rows, self.mask.slice(at, len(rows))
            else:
                yield rows, kernels.is_valid(rows) if rows.null_count else None
            at += len(rows)

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows with the given fields of ``add`` as columns."""
        for rows, mask in self._struct_batches(columns):
            selected = rows if mask is None else kernels.filter(rows, mask)
            if len(selected):
                batch = _as_batch(selected)
                self._check_required(batch, columns)
                yield batch

    def _check_required(self, rows: pa.RecordBatch, columns: Sequence[str]) -> None:
        for name in _REQUIRED:
            if name in columns and (name not in rows.schema.names or rows.column(name).null_count):
                raise self.part.corrupted(f"is damaged: it has files without {name}")

    def narrowed(self, columns: Sequence[str], evaluate: Evaluate) -> _Selection:
        """Return the subset of rows that ``evaluate`` selects by the given fields of ``add``."""
        masks = []
        for rows, mask in prefetched(self._struct_batches(columns)):
            if mask is None:
                masks.append(evaluate(_as_batch(rows)))
            elif kernels.any(mask).as_py():
                masks.append(kernels.replace_with_mask(mask, mask, evaluate(_as_batch(kernels.filter(rows, mask)))))
            else:
                masks.append(mask)
        combined = pa.concat_arrays(masks) if masks else array([], pa.bool_())
        groups, kept, at = [], [], 0
        for group in self.groups:
            part = combined.slice(at, group.num_rows)
            at += group.num_rows
            if kernels.any(part).as_py():
                groups.append(group)
                kept.append(part)
        return replace(self, groups=groups, mask=pa.concat_arrays(kept) if kept else array([], pa.bool_()))


def _as_batch(rows: pa.StructArray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(rows.flatten(), names=[field.name for field in rows.type])


def _tail_adds(tail: TailFiles, file_filter: FileFilter | None) -> list[AddFile]:
    adds = list(tail.adds.values())
    return adds if file_filter is None or not adds else file_filter.filter_actions(adds)


# -- anti-join ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TouchedFiles:
    """The files that the tail added or removed, whose rows in the checkpoint are outdated.

    :param paths: in canonical spelling; ``None`` if the tail touched nothing.
    :param keys: needed only if there are deletion vectors.
    :param columns: fields of a row that tell which file it is.
    """

    paths: pa.Array | None
    keys: frozenset[FileKey] | None
    columns: tuple[str, ...]

    @classmethod
    def of(cls, tail: TailFiles, reader: CheckpointReader, kind: str = "add") -> TouchedFiles:
        """Prepare the anti-join of rows of ``reader`` with ``tail``."""
        keys = frozenset([*tail.adds, *tail.removes])
        vectors = reader.may_have_values((kind, "deletionVector", "storageType"))
        columns = ("path", *(VECTOR_ID if vectors else ()))
        if not keys:
            return cls(None, None, columns)
        by_vector = vectors or any(vector is not None for _path, vector in keys)
        return cls(array(list({path for path, _vector in keys}), pa.string()), keys if by_vector else None, columns)

    def kept(self, rows: pa.RecordBatch, canonical: pa.Array) -> pa.BooleanArray | None:
        """Return which rows the tail did not touch, ``None`` if all.

        :param canonical: their paths in canonical spelling.
        """
        if self.paths is None:
            return None
        hit = kernels.is_in(canonical, value_set=self.paths)
        if not kernels.any(hit).as_py():
            return None
        if self.keys is not None:
            dead = [key in self.keys for key in keys_of(kernels.filter(rows, hit), kernels.filter(canonical, hit))]
            hit = kernels.replace_with_mask(hit, hit, array(dead, pa.bool_()))
        return kernels.invert(hit)


# -- totals and tombstones ----------------------------------------------------------------------------------------------------


def tombstones(reader: CheckpointReader | None, tail: TailFiles, *, retained_after: int | None = None) -> pa.Table:
    """Return the removed files that readers of older versions may still need; parameters as for :func:`tombstone_batches`."""
    return pa.Table.from_batches(tombstone_batches(reader, tail, retained_after=retained_after), schema=TOMBSTONE_SCHEMA)


def tombstone_batches(
    reader: CheckpointReader | None, tail: TailFiles, *, retained_after: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the removed files, as batches of :data:`TOMBSTONE_SCHEMA`.

    :param retained_after: leave out files removed at or before that time (milliseconds); a missing time counts as 0
        (Delta's InMemoryLogReplay).
    """
    if reader is not None:
        yield from _checkpoint_tombstones(reader, tail, retained_after)
    removes = [
        remove for remove in tail.removes.values() if retained_after is None or (remove.deletion_timestamp or 0) > retained_after
    ]
    if removes:
        yield from_actions(removes, TOMBSTONE_SCHEMA)


def _checkpoint_tombstones(reader: CheckpointReader, tail: TailFiles, retained_after: int | None) -> Iterator[pa.RecordBatch]:
    touched = TouchedFiles.of(tail, reader, "remove")
    wanted = [camel(name) for name in TOMBSTONE_SCHEMA.names if name != "data_change"]
    for rows in reader.batches("remove", wanted):
        if retained_after is not None and "deletionTimestamp" in rows.schema.names:
            times = kernels.fill_null(kernels.cast(rows.column("deletionTimestamp"), pa.int64()), scalar(0))
            rows = kernels.filter(rows, kernels.greater(times, scalar(retained_after)))
        kept = touched.kept(rows, canonical_paths(rows.column("path")))
        live = rows if kept is None else kernels.filter(rows, kept)
        if live.num_rows:
            yield to_columns(live, TOMBSTONE_SCHEMA)
