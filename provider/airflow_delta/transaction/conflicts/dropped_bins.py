"""A compaction that loses leaves out the bins whose files winners have compacted or changed, and keeps the others.

A bin is some old files and the new ones that have their rows: what the record of a new file names, or else all other files of a
partition. Without it, the table has the same rows in other files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field
from typing import TYPE_CHECKING

from airflow_delta.contract.delta_names import ROW_TRACKING_DOMAIN
from airflow_delta.contract.partition_texts import partition_texts_of
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import (
    MOVED_ROWS_TAG,
    Action,
    AddCDCFile,
    AddFile,
    DomainMetadata,
    RemoveFile,
    SetTransaction,
)
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.log.statistics.row_counts import live_records, total
from airflow_delta.transaction import heavy
from airflow_delta.transaction.conflicts.own_rows import OwnRows
from airflow_delta.transaction.conflicts.rows_of_winners import Undecided

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import Metadata
    from airflow_delta.transaction.conflicts.rows_of_winners import WinnersRows
    from airflow_delta.transaction.conflicts.winning_commit import WinningCommit


@dataclass(slots=True)
class Bin:
    """Files of a compaction that only make sense together."""

    adds: list[AddFile] = field(default_factory=list)
    removes: list[RemoveFile] = field(default_factory=list)

    def is_balanced(self, reader: WinnersRows, *, surely: bool) -> bool:
        """Tell whether the new files have as many rows as the old ones, as far as that is known.

        :param reader: counts the rows of files without statistics, where it must be known.
        :param surely: it must be known.
        """
        before, after = (total(map(live_records, files)) for files in (self.removes, self.adds))
        if before is not None and after is not None:
            return before == after
        if not surely:
            return True
        try:
            before, after = (sum(_counted(reader, file) for file in files) for files in (self.removes, self.adds))
        except Undecided:
            return False
        return before == after


@dataclass(slots=True)
class DroppedBins(OwnRows):
    """The bins of a transaction that only moves rows, and those that it leaves out.

    :param operation: its name.
    :param orders_rows: it is a ZORDER or clusters, which no other compaction need have done.
    :param moved: if it does other things too, the files whose rows it only moves; ``None``: it only moves rows.
    :ivar removes: old files of bins that are left out; they stay as winners left them. ``adds``: the new files.
    :ivar is_due: whether winners leave files of one of them on which the operation has something to do.
    """

    reader: WinnersRows
    operation: str
    orders_rows: bool = False
    moved: Set[str] | None = None
    removes: set[str] = field(default_factory=set)
    adds: set[str] = field(default_factory=set)
    is_due: bool = False
    _actions: Sequence[Action] | None = None
    _bins: dict[str, Bin] | None = None
    _old: set[str] | None = None
    _is_pending: bool = False

    def look(self, actions: Sequence[Action]) -> None:
        """Take in the actions of the transaction, as it was before any winner."""
        if self._actions is None:
            self._actions = actions

    def takes(self, path: str) -> bool:
        """Tell whether the transaction, as it was before any winner, removes a file."""
        if self._old is None:
            self._old = {action.path for action in self._actions or () if isinstance(action, RemoveFile)}
        return path in self._old

    def meet(self, winner: WinningCommit, file: RemoveFile, after: Metadata) -> None:  # noqa: ARG002
        """Leave out the bin of a file.

        :raises Undecided: if it is in none, or nothing would be left of the operation, and there is something to do again.
        """
        if file.path not in self.removes:
            self._drop(file.path, winner.rewritten if winner.only_moves_rows else frozenset())
        assert self._bins is not None
        if self.is_due and self._bins.keys() <= self.removes:
            raise Undecided("nothing of what this transaction compacts would be left")

    def _drop(self, path: str, compacted: Set[str]) -> None:
        """Leave out the bin of an old file.

        :param compacted: old files whose rows the winner put into others; none if it changed rows.
        """
        if self._bins is None:
            self._bins = _bins_of(self.reader, self._actions or (), self.moved)
        found = self._bins.get(path)
        if found is None or not found.is_balanced(self.reader, surely=self.moved is not None):
            raise Undecided(f"this transaction does not only put the rows of the file {path} elsewhere")
        self.removes.update(file.path for file in found.removes)
        self.adds.update(file.path for file in found.adds)
        due = {file.path for file in found.removes} if self.operation == "REORG" else {path}  # which takes single files
        self.is_due |= self.orders_rows or not due <= compacted
        self._is_pending = True

    def applied(self, actions: Sequence[Action]) -> list[Action] | None:
        """Return the actions without the bins that are left out; ``None`` if there are no new ones."""
        if not self._is_pending:
            return None
        self._is_pending = False
        return [action for action in actions if not self._is_dropped(action)]

    def counted(self, actions: Sequence[Action], metrics: Mapping[str, str] | None) -> dict[str, str] | None:
        """Return the metrics for the bins that are left; ``None``: they are right."""
        return compaction_metrics(actions, metrics)

    def _is_dropped(self, action: Action) -> bool:
        if isinstance(action, AddFile):
            return action.path in self.adds
        return isinstance(action, RemoveFile) and action.path in self.removes


def _bins_of(reader: WinnersRows, actions: Sequence[Action], moved: Set[str] | None) -> dict[str, Bin]:
    """Return the bins of a compaction by the paths of their old files; none if it moves rows in any other way.

    :param moved: if it changes rows too, the files whose rows it only moves.
    """
    if moved is not None:
        actions = [action for action in actions if not _changes_rows(action)]
    adds = [action for action in actions if isinstance(action, AddFile)]
    removes = {action.path: action for action in actions if isinstance(action, RemoveFile)}
    if any(map(_is_other, actions)) or any(add.path in removes for add in adds):
        return {}
    if moved is not None and not removes.keys() <= moved:
        return {}
    by_name = {canonical_path(path): path for path in removes}
    found: list[Bin] = []
    rest: dict[tuple[tuple[str, str | None], ...], Bin] = defaultdict(Bin)
    for add in adds:
        names = heavy.old_files_of(reader, add) if MOVED_ROWS_TAG in (add.tags or {}) else None
        if names is None or not names <= by_name.keys():
            rest[_partition(add)].adds.append(add)
        else:
            found.append(Bin([add], [removes.pop(by_name.pop(name)) for name in names]))
    for remove in removes.values():
        if remove.partition_values is None:  # of which partition it is, is not known
            return {}
        rest[_partition(remove)].removes.append(remove)
    return {remove.path: one for one in (*found, *rest.values()) for remove in one.removes}


def _counted(reader: WinnersRows, file: AddFile | RemoveFile) -> int:
    """Return how many rows of a file its deletion vector leaves."""
    return heavy.rows_in(reader, file) - (file.deletion_vector.cardinality if file.deletion_vector is not None else 0)


def _changes_rows(action: Action) -> bool:
    return isinstance(action, AddCDCFile) or (isinstance(action, AddFile | RemoveFile) and action.data_change)


def _is_other(action: Action) -> bool:
    if isinstance(action, AddFile | RemoveFile):
        return action.data_change
    if isinstance(action, DomainMetadata):
        return action.domain != ROW_TRACKING_DOMAIN
    return not isinstance(action, SetTransaction)


def _partition(file: AddFile | RemoveFile) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted(partition_texts_of(file.partition_values).items()))


def compaction_metrics(actions: Iterable[Action], metrics: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the metrics of a compaction, and of a write beside it, for the actions as they are now; ``None``: they are right."""
    if metrics is None:
        return None
    files = list(actions)
    adds = sorted(file.size for file in files if isinstance(file, AddFile))
    removes = [file for file in files if isinstance(file, RemoveFile)]
    counts = {
        "numFiles": len(adds),
        "numOutputBytes": sum(adds),
        "numAddedFiles": len(adds),
        "numAddedBytes": sum(adds),
        "numRemovedFiles": len(removes),
        "numRemovedBytes": sum(remove.size or 0 for remove in removes),
        "numDeletionVectorsRemoved": sum(remove.deletion_vector is not None for remove in removes),
        "minFileSize": adds[0] if adds else None,
        "p25FileSize": adds[len(adds) // 4] if adds else None,
        "p50FileSize": adds[len(adds) // 2] if adds else None,
        "p75FileSize": adds[3 * len(adds) // 4] if adds else None,
        "maxFileSize": adds[-1] if adds else None,
    }
    now = {**metrics, **{name: str(count) for name, count in counts.items() if name in metrics and count is not None}}
    found = {name: value for name, value in now.items() if counts.get(name, 0) is not None}
    return None if found == metrics else found
