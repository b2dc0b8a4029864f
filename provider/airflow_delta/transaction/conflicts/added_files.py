"""The files that winning commits added, tested against what a transaction read, by bounds for all of a batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from airflow_delta.log.actions.actions import AddFile
from airflow_delta.transaction.conflicts.winning_commit import ADD_KEY, WinningCommit

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import RemoveFile
    from airflow_delta.transaction.reads.read_set import ReadPredicate


class Candidate(NamedTuple):
    """A file that may hold rows that were read.

    :param reads: the reads that may have selected them.
    """

    file: AddFile
    reads: list[ReadPredicate]


class AddedFiles:
    """The added files of a batch of winning commits.

    :param reads: of the transaction.
    :param usable: reads whose row conditions can be tested; of the others, every file of their partitions is a candidate.
    """

    def __init__(self, winners: Sequence[WinningCommit], reads: Sequence[ReadPredicate], usable: Sequence[bool]) -> None:
        self._winners = [winner for winner in winners if winner.may_hold(ADD_KEY)]
        self._reads = list(zip(reads, usable, strict=True))
        self._found: dict[int, list[Candidate]] | None = None

    def candidates(self, winner: WinningCommit) -> list[Candidate]:
        """Return the files of a winner that partition values and statistics do not rule out."""
        if self._found is None:
            self._found = self._search()
        return self._found.get(winner.version, [])

    def _search(self) -> dict[int, list[Candidate]]:
        files = [(winner.version, file) for winner in self._winners if not winner.only_moves_rows for file in winner.added_files]
        reads_of: list[list[ReadPredicate]] = [[] for _ in files]
        for read, usable in self._reads:
            covered = [i for i, (_version, file) in enumerate(files) if read.covers(file.partition_values)]
            if usable and read.rows is not None and covered:
                kept = read.rows.may_hold([files[i][1] for i in covered])
                covered = [i for i, may_hold in zip(covered, kept, strict=True) if may_hold]
            for i in covered:
                reads_of[i].append(read)
        found: dict[int, list[Candidate]] = {}
        for (version, file), reads in zip(files, reads_of, strict=True):
            if reads:
                found.setdefault(version, []).append(Candidate(file, reads))
        return found


def as_added(file: RemoveFile) -> AddFile:
    """Return a removed file as statistics are looked at."""
    return AddFile(
        path=file.path,
        partition_values=file.partition_values or {},
        size=file.size or 0,
        modification_time=0,
        data_change=False,
        stats=file.stats,
    )
