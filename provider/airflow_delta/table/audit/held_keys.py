"""Keys that a commit brings, compared with those of the rows that others have added since they were checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.table.audit.unique import StagedKeys, UndecidedKeysError

if TYPE_CHECKING:
    from airflow_delta.contract.audit import HeldCheck
    from airflow_delta.log.actions.actions import Action
    from airflow_delta.table.audit.audited_table import AuditedTable
    from airflow_delta.transaction.conflicts.winning_commit import WinningCommit


class Met(NamedTuple):
    """A winner that brings keys which are staged, too.

    :param what: which keys; if it is not certain, why.
    """

    winner: WinningCommit
    what: str
    certain: bool


@dataclass
class HeldKeys:
    """One check of :class:`~airflow_delta.table.audit.held.HeldChecks`; it costs what the rows cost that winners add.

    :param table: returns the stages, loaded when a winner has added rows.
    """

    check: HeldCheck
    table: Callable[[], AuditedTable]

    def met(self, winners: Sequence[WinningCommit], actions: Sequence[Action]) -> Met | None:
        """Return the first winner with a key that is staged, too, or of which it is not known; ``None`` if there is none.

        :param winners: as of :class:`~airflow_delta.table.audit.held.HeldChecks`. So is ``actions``.
        """
        new = [winner for winner in winners if winner.version > self.check.version]
        adding = [winner for winner in new if winner.added_files and not winner.only_moves_rows]
        if not adding:
            return None
        # A file that the commit removes, or of which it marks rows, is what it leaves of it.
        own = {action.path: action for action in actions if isinstance(action, AddFile)}
        gone = {action.path for action in actions if isinstance(action, RemoveFile)} - own.keys()
        brought = {
            winner.version: [own.get(file.path, file) for file in winner.added_files if file.path not in gone]
            for winner in adding
        }
        if self._found([file for files in brought.values() for file in files]) is None:  # in one go, as nearly always
            return None
        for winner in adding:
            later = {file.path for other in new if other.version > winner.version for file in other.removed_files}
            added = brought[winner.version]
            for certain in (True, False):
                found = self._found([file for file in added if (file.path in later) is not certain])
                if found is not None:
                    text, decided = found
                    return Met(winner, text, certain and decided)
        return None

    def _found(self, files: Sequence[AddFile]) -> tuple[str, bool] | None:
        """Return which keys are in files, and whether that is known; ``None`` if none is."""
        try:
            found = self._staged.among(files)
        except UndecidedKeysError as error:
            return str(error), False
        return (self._staged.shown(found), True) if found.num_rows else None

    @cached_property
    def _staged(self) -> StagedKeys:
        return StagedKeys(self.table(), self.check.unique, self.check.limit, version=self.check.version)
