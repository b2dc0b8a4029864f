"""What a stage's function has read of the table, for the conflict check of the commit."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import StagedWrite

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import FileLoad, SourcePosition
    from airflow_delta.table.stage.stage_view import StageView


class StageReadRecorder:
    """Records reads of the table that a stage is for, and how far it has read the new rows of others."""

    def __init__(self, stage: StageView) -> None:
        self._stage = stage
        self._predicates: list[str] = []
        self._whole_table = False
        self._sources: dict[str, SourcePosition] = {}
        self._loads: list[FileLoad] = []

    def note(self, predicate: str | None) -> None:
        """Record a read of the rows that satisfy a predicate, or of the whole table."""
        if predicate is None:
            self._whole_table = True
        else:
            self._predicates.append(predicate)

    def note_source(self, position: SourcePosition) -> None:
        """Record that the new rows of another table were read, up to a position that the commit records."""
        self._sources[position.app_id] = position

    def note_load(self, load: FileLoad) -> None:
        """Record that files were loaded, which the commit records."""
        self._loads.append(load)

    @property
    def exists(self) -> bool:
        """Whether the table existed when the transaction began."""
        return self._stage.handle.read_version >= 0

    def add_reads(self, staged: StagedWrite) -> StagedWrite:
        """Return the staged write with the reads of this reader added."""
        if self._sources:
            staged = dataclasses.replace(staged, sources=tuple(self._sources.values()))
        if self._loads:
            staged = dataclasses.replace(staged, loads=tuple(self._loads))
        reads = staged.reads.with_others(tuple(self._predicates), whole_table=self._whole_table)
        return dataclasses.replace(staged, reads=reads)


def change_bounds(start: int | datetime, end: int | datetime | None) -> dict[str, Any]:
    """Return the parameters of a range of commits, whose ends are versions or times."""
    bounds: dict[str, Any] = {"starting_timestamp" if isinstance(start, datetime) else "starting_version": start}
    if end is not None:
        bounds["ending_timestamp" if isinstance(end, datetime) else "ending_version"] = end
    return bounds
