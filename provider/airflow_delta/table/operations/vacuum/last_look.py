"""The last look before VACUUM deletes: what has been, or is being, committed since it decided what to delete.

Before unpublished files of a transaction are deleted, its commit is fenced off: a later attempt refuses; an earlier one is seen,
and its files stay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.exceptions import StagingException, VersionsNotContiguousException
from airflow_delta.log.actions.decode import decode_commit
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.storage.table_paths import keys_to_keep
from airflow_delta.table.operations.vacuum.staged_transactions import transaction_of
from airflow_delta.table.operations.vacuum.valid_files import kept_vectors, valid_files
from airflow_delta.table.state.markers import fence_off, read_markers

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog

COMMIT_MAY_LAST = 24 * 3_600_000
"""Milliseconds for which an attempt of a commit counts as alive, even with a shorter grace time."""


class LastLook:
    """Decides which files of a batch may be deleted now; thread-safe.

    :param version: version of the table that was decided on.
    :param over: tells whether a staged transaction is committed; its other files are unused.
    :param deleted_before: milliseconds since the epoch; files removed before that are not kept.
    :param dead_before: the same; attempts of commits that began before are dead.
    """

    def __init__(
        self, log: DeltaLog, version: int, *, over: Callable[[str], bool], deleted_before: int, dead_before: int, now: int
    ) -> None:
        self._log = log
        self._version = version
        self._over = over
        self._deleted_before = deleted_before
        self._dead_before = min(dead_before, now - COMMIT_MAY_LAST)
        self._kept: set[str] = set()
        self._given_up: dict[str, bool] = {}
        self._lock = threading.Lock()

    def __call__(self, files: Collection[FileStatus]) -> list[FileStatus]:
        """Return those that may be deleted; nothing may happen between this and the deletion."""
        with self._lock:
            for transaction in {transaction_of(status.path) for status in files} - self._given_up.keys():
                if transaction is not None:
                    self._given_up[transaction] = self._over(transaction) or self._give_up(transaction)
            self._read_new_commits()
            return [status for status in files if self._may_go(status.path)]

    def _may_go(self, path: str) -> bool:
        transaction = transaction_of(path)
        return path not in self._kept and (transaction is None or self._given_up[transaction])

    def _give_up(self, transaction: str) -> bool:
        """Announce that the files of a transaction will be deleted; return whether no commit can publish them."""
        store = self._log.store
        try:
            if read_markers(store, transaction, dead_before=self._dead_before).committed:
                return True
        except StagingException:  # not a name that a transaction can have
            return True
        markers, _ = fence_off(store, transaction, dead_before=self._dead_before)
        return markers.committed or not markers.alive

    def _read_new_commits(self) -> None:
        """Keep what commits since the last look have added or removed: RESTORE brings removed files back."""
        newest = self._log.update()
        if newest.version <= self._version:
            return
        try:
            commits = self._log.read_commit_range(range(self._version + 1, newest.version + 1))
        except VersionsNotContiguousException:
            self._kept |= valid_files(newest, deleted_before=self._deleted_before)
        else:
            for entry in commits:
                commit = decode_commit(entry.version, entry.data, table=self._log.uri)
                self._keep(action.path for action in commit.adds)
                self._keep(action.path for action in commit.removes)
                self._keep(action.path for action in commit.cdcs)
                vectors = [*(add.deletion_vector for add in commit.adds), *(r.deletion_vector for r in commit.removes)]
                described = [msgspec.structs.asdict(vector) for vector in vectors if vector is not None]
                self._kept |= kept_vectors(self._log.store, described)
        self._version = newest.version

    def _keep(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._kept |= keys_to_keep(self._log.store, path)
