"""When a commit was made, for searches that decide exactly once: a time that another writer claims ends none of them.

``commitInfo.timestamp`` is the clock of whoever wrote the commit: an hour behind, in seconds, zero. A search back to the time
of a run, or of what may have expired, ends at a commit whose file is older by the store's clock: every version is written after
the one before. Our own commits must be older by our worker's clock, too. Where they disagree, the search goes on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.tags import APP_ID_TAG
from airflow_delta.log.actions.decode import read_commit_info
from airflow_delta.log.storage.file_names import COMMIT_SUFFIX, LOG_DIRECTORY, commit_file, commit_version, version_prefix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_delta.log.actions.decode import CommitFile
    from airflow_delta.log.delta_log import DeltaLog

__all__ = ["CommitTimes"]


_LISTED_BEFORE = 1_000
"""Earlier commits whose times are listed with the one that is asked about."""


class CommitTimes:
    """The times of a table's commits, for one search from the newest commit backwards.

    :param log: as of the version that the search begins at.
    """

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._stored: dict[int, int] = {}
        self._asked = 0
        if log.snapshot.version >= 0:
            statuses = log.snapshot.segment.statuses.items()
            self._stored = {version: status.modification_time for version, status in statuses if status is not None}

    def all_before(self, commit: CommitFile, moment: int, info: Mapping[str, Any] | None = None) -> bool:
        """Return whether a commit, and with it every earlier one, was certainly made before a moment.

        The store is asked only about a commit that claims to be older, or from the future.

        :param moment: milliseconds since the epoch, by the clock of a worker or of Airflow.
        :param info: its ``commitInfo``, if it has been read.
        """
        if info is None:
            info = read_commit_info(commit.version, commit.data, table=self._log.uri) or {}
        claimed = _claimed(info)
        if claimed is not None and claimed >= moment and (_is_own(info) or claimed <= int(time.time() * 1000)):
            return False
        stored = self.stored(commit)
        return stored is not None and stored < moment

    def stored(self, commit: CommitFile) -> int | None:
        """Return when the store wrote a commit's file, in milliseconds since the epoch; ``None`` if it does not tell."""
        if commit.modification_time is not None and commit.modification_time > 0:
            return commit.modification_time
        found = self._stored.get(commit.version, 0)
        if found <= 0:
            found = self._ask(commit.version)
        return found if found > 0 else None

    def _ask(self, version: int) -> int:
        self._asked += 1
        store = self._log.store
        if self._asked == 1 or store.probes:
            status = store.head(commit_file(version))
            return status.modification_time if status is not None else 0
        # The first one was not the end: as many requests as commits would follow.
        first = version_prefix(max(version - _LISTED_BEFORE, 0)) + COMMIT_SUFFIX
        for status in store.list_from(LOG_DIRECTORY, first):
            if (listed := commit_version(status.name)) is not None:
                self._stored[listed] = status.modification_time
        return self._stored.get(version, 0)


def _claimed(info: Mapping[str, Any]) -> int | None:
    times = [value for name in ("inCommitTimestamp", "timestamp") if type(value := info.get(name)) is int]
    return max(times, default=None)


def _is_own(info: Mapping[str, Any]) -> bool:
    tags = info.get("tags")
    return isinstance(tags, dict) and APP_ID_TAG in tags
