"""What a stage's function has read of the table, for the conflict check of the commit."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_delta.commands.stage.stage_view import StageView
    from airflow_delta.staging.contract import StagedWrite


class StageReadRecorder:
    """Records reads of the table that a stage is for."""

    def __init__(self, stage: StageView) -> None:
        self._stage = stage
        self._predicates: list[str] = []
        self._whole_table = False

    def note(self, predicate: str | None) -> None:
        """Record a read of the rows that satisfy a predicate, or of the whole table."""
        if predicate is None:
            self._whole_table = True
        else:
            self._predicates.append(predicate)

    @property
    def exists(self) -> bool:
        """Whether the table existed when the transaction began."""
        return self._stage.handle.read_version >= 0

    def add_reads(self, staged: StagedWrite) -> StagedWrite:
        """Return the staged write with the reads of this reader added."""
        if not self._whole_table and not self._predicates:
            return staged
        own, others = staged.reads, tuple(self._predicates)
        reads = dataclasses.replace(
            own,
            predicates=tuple(dict.fromkeys((*own.predicates, *others))),
            whole_table=own.whole_table or self._whole_table,
            selected=own.selected and not self._whole_table,
            # All rows of these predicates were read, whichever of them the stage itself has looked for.
            marked=tuple(text for text in own.marked if text not in others),
            scanned=tuple(dict.fromkeys((*own.scanned, *others))),
            keys=tuple(key for key in own.keys if key.predicate not in others),
        )
        return dataclasses.replace(staged, reads=reads)


def change_bounds(start: int | datetime, end: int | datetime | None) -> dict[str, Any]:
    """Return the parameters of a range of commits, whose ends are versions or times."""
    bounds: dict[str, Any] = {"starting_timestamp" if isinstance(start, datetime) else "starting_version": start}
    if end is not None:
        bounds["ending_timestamp" if isinstance(end, datetime) else "ending_version"] = end
    return bounds
