"""Rows that a winning commit wrote again as they were, as copy-on-write does with those of a file that it does not change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_delta.contract.partition_texts import partition_texts_of
from airflow_delta.exceptions import DeltaError
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.transaction.conflicts.row_contents import ROWS_BY_CONTENT, Row, contents
from airflow_delta.transaction.conflicts.rows_of_winners import NOT_IN_PYTHON, Undecided, WinnersRows
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from airflow_delta.transaction.prepare import row_tracking

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile, RemoveFile
    from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
    from airflow_delta.transaction.reads.read_set import ReadPredicate
    from airflow_delta.transaction.reads.row_condition import RowCondition

_Row = tuple[tuple[tuple[str, str | None], ...], Row]


@dataclass(slots=True)
class CarriedRows:
    """Compares what a transaction read with what it would read after a winner.

    Rows that the transaction changes are another matter: they are in files that it rewrites or marks itself.
    """

    reader: WinnersRows
    current: CurrentTransaction
    _known: dict[int, bool] = field(default_factory=dict)

    def are_as_before(self, winner: WinningCommit, reads: Sequence[ReadPredicate], usable: Sequence[bool]) -> bool:
        """Tell whether the rows that reads select are, in every column, those that they selected before a winner.

        A no may be wrong: it is also the answer for what cannot be read within the limit, or not compared exactly.

        :param reads: all of the transaction.
        :param usable: for each, whether values in files mean what they meant to it.
        """
        if winner.version not in self._known:
            self._known[winner.version] = self._compared(winner, reads, usable)
        return self._known[winner.version]

    def _compared(self, winner: WinningCommit, reads: Sequence[ReadPredicate], usable: Sequence[bool]) -> bool:
        metadata = self.current.read_metadata
        if metadata is None or row_tracking.has_row_tracking(metadata):  # rows that are written again may lose their row ids
            return False
        if self.current.forgotten or not winner.removed_files or not winner.added_files or not all(usable):
            return False
        conditions = [read.rows for read in reads if read.rows is not None]
        if len(conditions) < len(reads):
            return False
        try:
            before = _selected(self.reader, winner.removed_files, conditions)
            return before == _selected(self.reader, winner.added_files, conditions)
        except (Undecided, pa.ArrowException, OSError, DeltaError, *NOT_IN_PYTHON):
            return False


def _selected(reader: WinnersRows, files: Sequence[AddFile | RemoveFile], conditions: Sequence[RowCondition]) -> Counter[_Row]:
    """Return the rows that may satisfy a condition, each with its partition."""
    found = Counter[_Row]()
    for file in files:
        if file.partition_values is None:
            raise Undecided(f"the commit does not say which partition the file {file.path} was in")
        place = tuple(sorted(partition_texts_of(file.partition_values).items()))
        found.update((place, row) for row in _rows(reader, file, conditions))
        if found.total() > ROWS_BY_CONTENT:
            raise Undecided(f"more than {ROWS_BY_CONTENT} rows would have to be compared")
    return found


def _rows(reader: WinnersRows, file: AddFile | RemoveFile, conditions: Sequence[RowCondition]) -> Iterator[Row]:
    data = reader.open(file)
    selected = reader.selected(file, data, conditions)
    if len(selected) > ROWS_BY_CONTENT:
        raise Undecided(f"more than {ROWS_BY_CONTENT} rows would have to be compared")
    if selected:
        for some in contents(reader, file, data, selected, sorted(data.names)):
            yield from some.rows()
