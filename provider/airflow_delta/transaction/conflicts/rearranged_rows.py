"""A compaction that loses takes along what winners did to the rows of the files that it rewrote.

Its record says where each row went (:mod:`airflow_delta.log.actions.moved_rows`): rows that a winner deleted or changed are
marked in its own new files. After the winner it would have left them out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field
from typing import TYPE_CHECKING

import msgspec
from pyroaring import BitMap64

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import MOVED_ROWS_TAG, Action, AddCDCFile, AddFile, RemoveFile
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, write_deletion_vectors
from airflow_delta.log.actions.moved_rows import directory_of
from airflow_delta.log.statistics.wide_bounds import with_wide_bounds
from airflow_delta.transaction.conflicts.dropped_bins import compaction_metrics
from airflow_delta.transaction.conflicts.marked_rows import INLINE_BYTES, takes_vectors
from airflow_delta.transaction.conflicts.moved_rows import all_rows, find_source, rows_in
from airflow_delta.transaction.conflicts.own_rows import OwnRows, check_spelling
from airflow_delta.transaction.conflicts.rows_of_winners import Undecided

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import DeletionVectorDescriptor, Metadata
    from airflow_delta.log.actions.moved_rows import RowSource
    from airflow_delta.log.storage.base import LogStore
    from airflow_delta.transaction.conflicts.rows_of_winners import WinnersRows
    from airflow_delta.transaction.conflicts.winning_commit import WinningCommit


@dataclass(slots=True)
class RearrangedRows(OwnRows):
    """The new files of a transaction that moves rows.

    :param metadata: of the version that was read.
    :param moved: the files whose rows it only moves, if it changes rows too.
    """

    store: LogStore
    reader: WinnersRows
    metadata: Metadata | None
    moved: Set[str] = frozenset()
    _removes: dict[str, RemoveFile] = field(default_factory=dict)
    _left: dict[str, RemoveFile | None] = field(default_factory=dict)
    """The files that winners changed, as the last one left them; ``None`` for those that they removed."""
    _adds: dict[str, AddFile] = field(default_factory=dict)
    """The new files as they were written."""
    _gone: dict[str, BitMap64] = field(default_factory=dict)
    """Positions in the new files of rows that winners deleted or changed."""
    _changed: bool = False

    def look(self, actions: Iterable[Action]) -> None:
        """Take in the actions of the transaction, as winners left them."""
        files = [action for action in actions if isinstance(action, AddFile | RemoveFile | AddCDCFile)]
        only_moves = not any(isinstance(file, AddCDCFile) or file.data_change for file in files)
        removes = [file for file in files if isinstance(file, RemoveFile) and not file.data_change]
        self._removes = {file.path: file for file in removes if only_moves or file.path in self.moved}
        adds = [file for file in files if isinstance(file, AddFile) and MOVED_ROWS_TAG in (file.tags or {})]
        for file in adds:
            if not file.data_change and file.deletion_vector is None:  # a later stage has not changed its rows
                self._adds.setdefault(file.path, file)

    def carries(self, winner: WinningCommit, path: str) -> bool:
        """Tell whether what a winner does to a file's rows can be done to their copies."""
        if winner.only_moves_rows:  # then it may only have changed what the log says about the file
            same = None if (added := winner.replaced.get(path)) is None else self.reader.removed_from(winner, added)
            if same is None or same.rows:
                return False
        return self._source(path) is not None

    def meet(self, winner: WinningCommit, file: RemoveFile, after: Metadata) -> None:
        """Take along the rows that a winner deleted or changed in a file that was rewritten, or all of them.

        :param file: as the winner removed it.
        :param after: the table's metadata after the transaction.
        :raises Undecided: if the table has no vectors to mark them in, or the winner brought rows back.
        """
        check_spelling(winner, file.path)
        found = self._source(file.path)
        if found is None:
            raise Undecided(f"nothing says where the rows of the file {file.path} are now")
        (new, source), own = found, self._removes[file.path]
        before = self._left.get(file.path, own)
        if before is None or _id_of(before.deletion_vector) != _id_of(file.deletion_vector):
            raise Undecided(f"the deletion vector of the file {file.path} that it replaced is not the one that the file had")
        added = winner.replaced.get(file.path)
        try:
            if added is None:  # its other rows, too, are in files of the winner now
                rows = all_rows(source.num_records) - source.deleted
            else:
                replaced = self.reader.removed_from(winner, added)
                if replaced is None:
                    raise Undecided(f"rows of the file {file.path} came back, which were not there to be moved")
                rows = replaced.rows
            moved = source.moved(rows)
        except ValueError as error:
            raise Undecided(f"the file {file.path} does not have the rows that were moved ({error})") from error
        gone = self._gone.get(new.path, BitMap64()) | moved
        is_taken = takes_vectors(self.metadata) and takes_vectors(after)
        if gone and len(gone) < rows_in(self.reader, new) and not is_taken:
            raise Undecided(f"only deletion vectors could mark rows in the new file {new.path} (delta.enableDeletionVectors)")
        if gone:
            self._gone[new.path] = gone
        left = None if added is None else added.remove(own.deletion_timestamp or 0, data_change=False)
        self._left[file.path] = left
        self._changed = True

    def applied(self, actions: Sequence[Action]) -> list[Action] | None:
        """Return the actions with vectors that mark what winners have deleted; ``None`` if nothing has changed.

        Vectors are written to a new file beside the new data files.
        """
        if not self._changed:
            return None
        self._changed = False
        added = {action.path for action in actions if isinstance(action, AddFile)}  # others are left out of the commit
        gone = {path: rows for path, rows in self._gone.items() if path in added}
        stay = {path: rows for path, rows in gone.items() if len(rows) < rows_in(self.reader, self._adds[path])}
        vectors = dict(zip(stay, self._written(list(stay), list(stay.values())), strict=True))
        result: list[Action] = []
        for action in actions:
            if isinstance(action, RemoveFile):
                left = self._left.get(action.path, action)
                if left is not None:
                    result.append(left)
            elif not isinstance(action, AddFile) or action.path not in gone:
                result.append(action)
            elif action.path in vectors:
                stats = with_wide_bounds(self._adds[action.path].stats, None)
                result.append(msgspec.structs.replace(action, deletion_vector=vectors[action.path], stats=stats))
        return result

    def counted(self, actions: Sequence[Action], metrics: Mapping[str, str] | None) -> dict[str, str] | None:
        """Return the metrics of the operation for the actions as they are now; ``None``: they are right."""
        return compaction_metrics(actions, metrics) if self._adds else None

    def _source(self, path: str) -> tuple[AddFile, RowSource] | None:
        if not self._adds or path not in self._removes:
            return None
        return find_source(self.reader, self._removes[path], list(self._adds.values()))

    def _written(self, paths: Sequence[str], vectors: Sequence[BitMap64]) -> list[DeletionVectorDescriptor]:
        inline = [inline_deletion_vector(rows) for rows in vectors]
        if all(vector.size_in_bytes <= INLINE_BYTES for vector in inline):
            return inline
        return write_deletion_vectors(self.store, directory_of(self._adds[paths[0]]), vectors)


def _id_of(vector: DeletionVectorDescriptor | None) -> str | None:
    return None if vector is None else vector.unique_id
