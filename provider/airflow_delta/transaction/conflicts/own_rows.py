"""What a transaction does to rows of files that winning commits change or move, and how it follows them.

A winner that removes such a file meets the transaction's marks in deletion vectors (:mod:`.marked_rows`) or rows that it moves
(:mod:`.rearranged_rows`), else a compaction leaves the file to the winner (:mod:`.dropped_bins`). After a batch of winners, each
puts the actions of the transaction right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from airflow_delta.transaction.conflicts.rows_of_winners import Undecided

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import Action, Metadata, RemoveFile
    from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
    from airflow_delta.transaction.conflicts.winning_commit import WinningCommit


class RowsOfBoth(Undecided):
    """A winner and the transaction both mark some rows of a file: that is a conflict, whatever else is known.

    :ivar number: of rows.
    """

    def __init__(self, path: str, number: int) -> None:
        super().__init__(f"both change {number} of its rows")
        self.path = path
        self.number = number


class OwnRows(ABC):
    """Rows of a transaction in files that winners change or move."""

    __slots__ = ()

    @abstractmethod
    def look(self, actions: Sequence[Action]) -> None:
        """Take in the actions of the transaction, as winners left them."""

    @abstractmethod
    def meet(self, winner: WinningCommit, file: RemoveFile, after: Metadata) -> None:
        """Go on after a winner that removes a file in which the transaction has rows.

        :param file: as the winner removed it; it may have added it again, with another deletion vector.
        :param after: the table's metadata after the transaction.
        :raises Undecided: if that cannot be done.
        """

    @abstractmethod
    def applied(self, actions: Sequence[Action]) -> list[Action] | None:
        """Return the actions as they are after the winners that were met; ``None`` if nothing has changed since the last call."""

    @abstractmethod
    def counted(self, actions: Sequence[Action], metrics: Mapping[str, str] | None) -> dict[str, str] | None:
        """Return the metrics of the operation for the actions as they are now; ``None``: they are right."""

    def apply(self, current: CurrentTransaction) -> None:
        """Put the actions and metrics of the transaction right after a batch of winners."""
        actions = self.applied(current.own_actions)
        if actions is not None:
            current.replace_actions(actions)
            current.count_again(partial(self.counted, actions))


def check_spelling(winner: WinningCommit, path: str) -> None:
    """Refuse to go on from a file that a winner spells otherwise: what is written of it must be spelled as there.

    :raises Undecided: if it does.
    """
    if path in winner.respelled.values():
        raise Undecided(f"a concurrent update spells the path of the file {path} otherwise")
