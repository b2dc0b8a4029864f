"""Reading the file actions after a checkpoint, through log compaction files where the log has some.

A compaction file holds the reconciled actions of a run of commits, so it stands for them in the list of files (protocol, "Log
Compaction Files"). It is only ever a shortcut: one that is missing or damaged is left out, and its commits are read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.log.actions.decode import Commit, CommitFile, decode_commit, decode_commits
from airflow_delta.log.actions.reconciliation import TailFiles

if TYPE_CHECKING:
    from airflow_delta.log.segment.segment import CompactedCommits, LogSegment
    from airflow_delta.log.storage.base import LogStore

logger = logging.getLogger(__name__)


def read_tail(store: LogStore, segment: LogSegment, read_commits: Callable[[range], list[CommitFile]]) -> TailFiles:
    """Return the file actions of the commits after a segment's checkpoint, reconciled.

    :param read_commits: reads commits that are known to exist.
    :raises DeltaLogCorruptedException: a commit is damaged.
    """
    tail = TailFiles()
    following = segment.first_commit
    for run in segment.compactions:
        compacted = _read(store, run)
        if compacted is not None:
            _apply(tail, decode_commits(read_commits(range(following, run.first)), table=store.root))
            tail.apply(compacted)
            following = run.last + 1
    _apply(tail, decode_commits(read_commits(range(following, segment.version + 1)), table=store.root))
    return tail


def _apply(tail: TailFiles, commits: Iterable[Commit]) -> None:
    for commit in commits:
        tail.apply(commit)


def _read(store: LogStore, run: CompactedCommits) -> Commit | None:
    try:
        return decode_commit(run.last, store.read(run.status.path), table=store.root)
    except FileNotFoundError:
        logger.warning("Table %s: %s is gone; reading the commits that it stands for", store.root, run.status.path)
    except DeltaLogCorruptedException as error:
        logger.warning(
            "Table %s: %s is damaged and is left out (%s); reading the commits that it stands for",
            store.root,
            run.status.path,
            error.__cause__ or "it is empty or cut off",
        )
    return None
