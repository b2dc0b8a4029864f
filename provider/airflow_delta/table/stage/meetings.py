"""Which stages of a transaction may change what one of them has read, removes or replaces.

They are found by the partitions and the paths of their files, so that stages that cannot meet are not compared: a thousand
overwrites of a day each are compared with none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Generic, Protocol, TypeVar

from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.log.schema.partition_index import PartitionIndex
from airflow_delta.table.stage.earlier_stages import stage_id
from airflow_delta.table.stage.load import StageActions
from airflow_delta.transaction.reads.read_set import ReadSet


class Meeting(Protocol):
    """A stage as it is looked for.

    :ivar position: among the stages.
    :ivar part_of: the overwrite that it is a part of, ``None``: it is by itself.
    """

    position: int
    part_of: str | None
    actions: StageActions

    @property
    def is_partitioned(self) -> bool:
        """Whether partitions say what it has read."""

    @property
    def removed(self) -> list[RemoveFile]:
        """The files that it removes, listed or whole."""


S = TypeVar("S", bound=Meeting)


class Meetings(Generic[S]):
    """Finds stages.

    :param stages: each after those that it was planned on top of.
    """

    def __init__(self, stages: Sequence[S]) -> None:
        self._stages = stages
        self._apart: dict[str | None, list[S]] = {None: list(stages)}

    def adding(self, stage: S, reads: ReadSet) -> list[S]:
        """Return the stages that may have added files to the partitions that a stage has read or replaced.

        Instances of one mapped task that replaces rows are one overwrite in parts, and are not returned to each other.
        """
        found = self._in_partitions(self._adds, stage, reads)
        return self._apart_from(stage) if found is None else self._of(found)

    def touching(self, stage: S, reads: ReadSet) -> list[S]:
        """Return the stages that may have added or removed files that a stage has read or removes."""
        found = self._in_partitions(self._changes, stage, reads)
        if found is None:
            return self._apart_from(stage)
        for path in (*reads.paths(), *(remove.path for remove in stage.actions.removes)):
            found.update(self._by_path.get(canonical_path(path), ()))
        waiting = list(found)
        while waiting:  # what was put into other files may have been changed there
            later = self._on_top.get(stage_id(self._stages[waiting.pop()].actions.write), ())
            waiting += [position for position in later if position not in found]
            found.update(later)
        return [other for other in self._of(found) if stage.part_of is None or other.part_of != stage.part_of]

    def removing(self, paths: Iterable[str]) -> list[S]:
        """Return the stages that remove one of some files."""
        return self._of({position for path in paths for position in self._removing.get(path, ())})

    def _of(self, positions: Iterable[int]) -> list[S]:
        return [self._stages[position] for position in sorted(positions)]

    def _apart_from(self, stage: S) -> list[S]:
        part = stage.part_of
        if part not in self._apart:
            self._apart[part] = [other for other in self._stages if other.part_of != part]
        return self._apart[part]

    def _in_partitions(self, files: _Partitions, stage: S, reads: ReadSet) -> set[int] | None:
        """Return the positions of the stages with files in what was read; ``None``: partitions do not say."""
        if reads.whole_table or not stage.is_partitioned:
            return None
        found = set(files.unknown)
        for read in reads.predicates.values():
            if read.matcher is None:
                return None
            for at in files.index.having(read.matcher.named_values):
                others = files.holders(at, stage.part_of)
                if others and read.covers(files.index.partitions[at]):
                    found.update(others)
        return found

    @cached_property
    def _adds(self) -> _Partitions:
        return _Partitions(self._stages, lambda stage: stage.actions.adds)

    @cached_property
    def _changes(self) -> _Partitions:
        return _Partitions(self._stages, lambda stage: [*stage.removed, *stage.actions.adds])

    @cached_property
    def _by_path(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for stage in self._stages:
            files: list[AddFile | RemoveFile] = [*stage.removed, *stage.actions.adds]
            for file in files:
                found.setdefault(canonical_path(file.path), set()).add(stage.position)
        return found

    @cached_property
    def _removing(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for stage in self._stages:
            for path in {file.path for file in stage.removed}:
                found.setdefault(path, []).append(stage.position)
        return found

    @cached_property
    def _on_top(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for stage in self._stages:
            for earlier in stage.actions.write.after:
                found.setdefault(earlier, []).append(stage.position)
        return found


class _Partitions:
    """The partitions of the stages' files.

    :ivar unknown: positions of the stages with a file whose partition is not known.
    """

    def __init__(self, stages: Sequence[S], files_of: Callable[[S], Sequence[AddFile | RemoveFile]]) -> None:
        self.unknown: set[int] = set()
        found: dict[tuple[tuple[str, str | None], ...], dict[str | None, list[int]]] = {}
        for stage in stages:
            partitions: dict[tuple[tuple[str, str | None], ...], Mapping[str, str | None]] = {}
            for file in files_of(stage):
                values = file.partition_values or {}
                partitions[tuple(values.items())] = values
            for partition in partitions:
                if partition:
                    found.setdefault(partition, {}).setdefault(stage.part_of, []).append(stage.position)
                else:
                    self.unknown.add(stage.position)
        self.index = PartitionIndex(map(dict, found))
        self._holders = list(found.values())

    def holders(self, at: int, part: str | None) -> list[int]:
        """Return the stages with files in a partition, without the parts of an overwrite."""
        groups = self._holders[at]
        return [position for other, held in groups.items() if other is None or other != part for position in held]
