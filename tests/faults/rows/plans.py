"""Plans a transaction on the version that it reads: what its stage writes, and what that stage says it has read.

The rules are those of ``table/operations/rewrite/vectors.py``, ``table/stage/write/collect.py`` and
``table/operations/optimize/collect.py``, without Spark.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
from pyroaring import BitMap64

from airflow_delta.contract.manifest import encode_manifest, manifest_ref
from airflow_delta.contract.payloads import DeclaredReads, KeyRead, ManifestRef, StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import KEYS_NAME, attempt_directory
from airflow_delta.log import AddFile, DeltaLog, RemoveFile, Snapshot
from airflow_delta.log.actions.actions import MOVED_ROWS_TAG
from airflow_delta.log.actions.moved_rows import MovedRows, RowSource, write_moved_rows
from airflow_delta.log.statistics.wide_bounds import with_wide_bounds
from airflow_delta.table.stage.load import StageActions
from faults.rows import model as model
from faults.rows.files import HistoryTable, Placed
from faults.rows.values import AT, Condition, Row

STAGE, ATTEMPT = "stage", "1"
MAX_KEYS = 2
"""Keys that travel inside the staged write, at most; of more, a file holds them or only their bounds are known."""

Result = Callable[[Row], Row | None]
"""What becomes of a row: the same object if it stays, another row, ``None`` if it goes."""


@dataclass
class Changed:
    """What rows that change or go do to files.

    :param touched: paths of files with such rows.
    :param copied: rows that stay and are written again.
    """

    adds: list[AddFile]
    removes: list[RemoveFile]
    touched: tuple[str, ...]
    copied: int


@dataclass
class Planner:
    """Plans one transaction.

    :param name: of its stage, or of its first one.
    """

    table: HistoryTable
    log: DeltaLog
    snapshot: Snapshot
    handle: TransactionHandle
    step: model.Step
    name: str = STAGE
    _taken: set[str] = field(default_factory=set)
    """Files that an earlier stage removes."""

    def plan(self) -> list[StageActions]:
        """Return what the stages of the transaction leave to the commit."""
        operations = [self.step.operation, *([] if self.step.also is None else [self.step.also])]
        stages: list[StageActions] = []
        for operation in operations:
            self._taken = {remove.path for stage in stages for remove in stage.removes}
            stages.append(getattr(self, f"_{operation.kind}")(operation))
        for number, stage in enumerate(stages):
            name = self.name + "-again" * number
            stage.write = dataclasses.replace(stage.write, stage=name, task_id=name)
        return stages

    # -- operations -----------------------------------------------------------------------------------------------------------

    def _append(self, append: model.Append) -> StageActions:
        return self._stage(self._new(append.rows), mode="append")

    def _delete(self, delete: model.Delete) -> StageActions:
        files = self._files(delete.where)
        if self._by_partition(delete.where):
            reads = DeclaredReads(predicates=(text_of(delete.where),), files=tuple(file.path for file in files))
            return self._stage([], [file.remove(0) for file in files], mode="rewrite", operation="DELETE", reads=reads)
        return self._rewrite("DELETE", delete.where, lambda row: None if holds(delete.where, row) else row)

    def _update(self, update: model.Update, source: tuple[str, Sequence[AddFile]] | None = None) -> StageActions:
        return self._rewrite("UPDATE", update.where, lambda row: update.new(row) if holds(update.where, row) else row, source)

    def _merge(self, merge: model.Merge) -> StageActions:
        where = None if merge.by_source is not None else merge.where
        files = self._files(where)
        rows = [row for file in files for row, _ids in self.table.live_rows(file).values()]
        insert_only = merge.matched is None and merge.by_source is None
        changed = self._changed([] if insert_only else files, merge.result, marks=self._marks)
        text = text_of(where)
        keys = (self._key_read(merge.keys, merge.null_safe, merge.source, text),) if merge.by_source is None else ()
        return self._stage(
            [*changed.adds, *self._new(merge.inserted(rows))],
            changed.removes,
            mode="rewrite",
            operation="MERGE",
            num_copied_records=changed.copied,
            reads=DeclaredReads(predicates=(text,), files=changed.touched, keys=keys, scanned=(text,) if merge.inserts else ()),
        )

    def _replace(self, replace: model.Replace) -> StageActions:
        new = self._new(replace.rows)
        text = None if replace.where is None else str(replace.where)
        if self._by_partition(replace.where):
            return self._stage(new, mode="overwrite", replace_where=text)
        changed = self._changed(
            self._files(replace.where), lambda row: None if holds(replace.where, row) else row, marks=False
        )  # fmt: skip
        return self._stage(
            [*new, *changed.adds],
            changed.removes,
            mode="overwrite",
            replace_where=text,
            num_copied_records=changed.copied,
            reads=DeclaredReads(predicates=(str(text),), files=changed.touched),
        )

    def _replace_using(self, replace: model.ReplaceUsing) -> StageActions:
        changed = self._changed(self._files(None), lambda row: None if replace.replaces(row) else row, marks=False)
        keys = self._key_read(replace.keys, (False,) * len(replace.keys), replace.rows, "true")
        return self._stage(
            [*self._new(replace.rows), *changed.adds],
            changed.removes,
            mode="rewrite",
            parameters={"replaceUsingCols": list(replace.keys)},
            num_copied_records=changed.copied,
            reads=DeclaredReads(predicates=("true",), files=changed.touched, whole_table=True, keys=(keys,), selected=True),
        )

    def _replace_partitions(self, replace: model.ReplacePartitions) -> StageActions:
        return self._stage(self._new(replace.rows), mode="dynamic")

    def _look(self, look: model.Look) -> StageActions:
        whole = look.whole or look.where is None
        files = self._files(None if whole else look.where)
        count = look.count([row for file in files for row, _ids in self.table.live_rows(file).values()])
        if look.update is not None:
            return self._update(look.as_update(count), (text_of(None if whole else look.where), files))
        reads = DeclaredReads(predicates=() if whole else (text_of(look.where),), whole_table=whole)
        return self._stage(self._new(look.added(count)), mode="append", reads=reads)

    def _optimize(self, optimize: model.Optimize) -> StageActions:
        parts: dict[Any, list[AddFile]] = {}
        for file in sorted(self._files(None), key=lambda file: file.path):
            if file.path in self._taken:
                continue
            parts.setdefault(next(iter(file.partition_values.values()), None), []).append(file)
        wanted = None if optimize.part is None else str(optimize.part)
        chosen = (parts.get(wanted) or max(parts.values(), key=len, default=[]))[: optimize.count]
        keeps = optimize.keeps_ids and self.table.setting.tracked and self.table.setting.has_ids
        placed = [(row, ids if keeps else None) for file in chosen for row, ids in self.table.live_rows(file).values()]
        recorded = optimize.recorded and optimize.pieces == 1 and self.table.setting.vectors
        if not recorded:
            placed.sort(key=lambda one: one[0][AT["k"]])
        removes = [file.remove(0, data_change=False) for file in chosen]
        middle = len(placed) // 2 if optimize.pieces == 2 else 0
        adds = [add for part in (placed[:middle], placed[middle:]) for add in self.table.write_files(part, data_change=False)]
        return self._stage(
            self._recorded(adds, chosen) if recorded else adds,
            removes,
            mode="rewrite",
            operation="OPTIMIZE",
            keeps_row_ids=keeps,
            num_copied_records=0 if keeps else len(placed),
            reads=DeclaredReads(files=tuple(remove.path for remove in removes)),
        )

    def _recorded(self, adds: Sequence[AddFile], chosen: Sequence[AddFile]) -> list[AddFile]:
        """Return the new file with the record of where it has the rows of the old ones."""
        sources, first = [], 0
        for file in chosen:
            marked, live = self.table.marked(file), len(self.table.live_rows(file))
            sources.append(RowSource.of(file.path, file.size, live + len(marked), first, marked))
            first += live
        directory = attempt_directory(self.handle.transaction_id, STAGE, ATTEMPT)
        records = [MovedRows(path=add.path, size=add.size, num_records=first, sources=tuple(sources)) for add in adds]
        tags = write_moved_rows(self.log.store, directory, records)
        return [msgspec.structs.replace(add, tags={MOVED_ROWS_TAG: tag}) for add, tag in zip(adds, tags, strict=True)]

    # -- rows -----------------------------------------------------------------------------------------------------------------

    def _files(self, where: Condition | None) -> list[AddFile]:
        """Return the files that a stage looks at."""
        return self.snapshot.add_files(None if where is None else str(where))

    def _by_partition(self, where: Condition | None) -> bool:
        """Tell whether a condition selects whole files."""
        return where is None or (bool(self.table.partition_by) and where.columns() <= {"p"})

    @property
    def _marks(self) -> bool:
        return self.table.setting.vectors and not self.step.rewrites

    def _new(self, rows: Iterable[Row]) -> list[AddFile]:
        return self.table.write_files([(row, None) for row in rows])

    def _rewrite(
        self, operation: str, where: Condition | None, result: Result, source: tuple[str, Sequence[AddFile]] | None = None
    ) -> StageActions:
        """Plan a DELETE or an UPDATE.

        :param source: what else the stage reads of the table.
        """
        changed = self._changed(self._files(where), result, marks=self._marks)
        text, files = text_of(where), list(changed.touched)
        predicates, is_marked = [text], self._marks
        if source is not None:
            predicates.append(source[0])
            files += [file.path for file in source[1]]
            is_marked = is_marked and source[0] != text
        reads = DeclaredReads(
            predicates=tuple(dict.fromkeys(predicates)),
            files=tuple(dict.fromkeys(files)),
            marked=(text,) if is_marked and where is not None else (),
        )
        return self._stage(
            changed.adds, changed.removes, mode="rewrite", operation=operation, num_copied_records=changed.copied, reads=reads
        )

    def _changed(self, files: Sequence[AddFile], result: Result, *, marks: bool) -> Changed:
        adds: list[AddFile] = []
        removes: list[RemoveFile] = []
        new: list[Placed] = []
        marked: list[tuple[AddFile, BitMap64]] = []
        copied = 0
        for file in files:
            live = self.table.live_rows(file)
            results = {at: result(row) for at, (row, _ids) in live.items()}
            gone = [at for at, after in results.items() if after is not live[at][0]]
            if not gone:
                continue
            removes.append(file.remove(0))
            for at in gone if marks else live:
                after = results[at]
                copied += after is live[at][0]
                if after is not None:
                    new.append((after, live[at][1] if self.step.keeps_ids else None))
            if marks and len(gone) < len(live):
                marked.append((file, self.table.marked(file) | BitMap64(gone)))
        directory = attempt_directory(self.handle.transaction_id, self.name, ATTEMPT)
        vectors = self.table.vectors(self.log, directory, [rows for _file, rows in marked], inline=self.step.inline)
        for (file, _rows), vector in zip(marked, vectors, strict=True):
            stats = with_wide_bounds(file.stats, file.deletion_vector)
            adds.append(msgspec.structs.replace(file, data_change=True, deletion_vector=vector, stats=stats))
        return Changed([*adds, *self.table.write_files(new)], removes, tuple(remove.path for remove in removes), copied)

    # -- what the stage says --------------------------------------------------------------------------------------------------

    def _stage(self, adds: list[AddFile], removes: Sequence[RemoveFile] = (), **fields: Any) -> StageActions:
        write = StagedWrite(
            transaction_id=self.handle.transaction_id,
            stage=self.name,
            task_id=self.name,
            attempt=ATTEMPT,
            schema_string=str(self.handle.schema_string),
            partition_columns=self.handle.partition_columns,
            num_files=len(adds),
            num_removed_files=len(removes),
            **{"keeps_row_ids": self.step.keeps_ids, **fields},
        )
        return StageActions(write, adds, list(removes))

    def _key_read(self, names: tuple[str, ...], null_safe: tuple[bool, ...], source: Sequence[Row], text: str) -> KeyRead:
        columns = [[row[AT[name]] for row in source] for name in names]
        known = [[value for value in values if value is not None] for values in columns]
        listed = tuple(tuple(map(as_json, values)) for values in zip(*columns, strict=True))
        file = self._key_file(listed) if len(listed) > MAX_KEYS and self.step.lag % 2 else None
        return KeyRead(
            predicate=text,
            columns=names,
            null_safe=null_safe,
            low=tuple(as_json(min(values)) if values else None for values in known),
            high=tuple(as_json(max(values)) if values else None for values in known),
            nulls=tuple(None in values for values in columns),
            rows=listed if len(listed) <= MAX_KEYS else None,
            file=file,
        )

    def _key_file(self, rows: Sequence[Sequence[Any]]) -> ManifestRef:
        path = f"{attempt_directory(self.handle.transaction_id, self.name, ATTEMPT)}/{KEYS_NAME}"
        data = encode_manifest([msgspec.json.encode(row) for row in rows])
        self.log.store.put(path, data)
        return manifest_ref(path, data, len(rows))


def holds(where: Condition | None, row: Row) -> bool:
    return where is None or where.of(row) is True


def text_of(where: Condition | None) -> str:
    return "true" if where is None else str(where)


def as_json(value: Any) -> Any:
    """Return a key in the form of ``KeyRead``."""
    return value.isoformat() if isinstance(value, dt.date) else str(value) if isinstance(value, Decimal) else value
