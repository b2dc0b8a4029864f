"""The reconciled file actions after a checkpoint, kept from version to version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.log.actions.decode import (
    CommitFile,
    decode_commits,
    has_file_actions,
)

if TYPE_CHECKING:
    from airflow_delta.log.actions.reconciliation import TailFiles

_WAITING_COMMITS = 1_000

_WAITING_BYTES = 16 << 20


class TailCache:
    """The reconciled file actions after a checkpoint, kept across updates; new commits are decoded only when needed.

    :param base: reconciled actions; never changed.
    """

    def __init__(self, base: TailFiles, waiting: tuple[CommitFile, ...] = ()) -> None:
        self._base = base
        self._waiting = waiting

    def files(self, *, table: str) -> TailFiles:
        """Return the reconciled actions."""
        if self._waiting:
            files = self._base.copy()
            for commit in decode_commits(self._waiting, table=table):
                files.apply(commit)
            self._base, self._waiting = files, ()
        return self._base

    def advanced(self, commits: Sequence[CommitFile]) -> TailCache | None:
        """Return the cache of a later version, or ``None`` if too many undecoded commits would be kept in memory."""
        waiting = (*self._waiting, *(commit for commit in commits if has_file_actions(commit.data)))
        if len(waiting) > _WAITING_COMMITS or sum(len(commit.data) for commit in waiting) > _WAITING_BYTES:
            return None
        return TailCache(self._base, waiting)
