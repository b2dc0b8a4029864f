"""Reading the file actions after a checkpoint, using log compaction files if there are any.

A compaction file has the reconciled actions of a run of commits, so its file actions can be read in their place (protocol, "Log
Compaction Files"). It is only a shortcut: if one is missing or damaged, its commits are read instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.log.actions.decode import CommitFile, DecodedCommit, decode_commit, decode_commits
from airflow_delta.log.actions.reconciliation import TailFiles, file_key
from airflow_delta.log.segment.segment import CompactedCommits, LogSegment
from airflow_delta.log.storage.base import LogStore

logger = logging.getLogger(__name__)


def read_tail(store: LogStore, segment: LogSegment, read_commits: Callable[[range], list[CommitFile]]) -> TailFiles:
    """Return the file actions of the commits after a segment's checkpoint, reconciled.

    :param read_commits: reads commits that are known to exist.
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


def _apply(tail: TailFiles, commits: Iterable[DecodedCommit]) -> None:
    for commit in commits:
        tail.apply(commit)


def _read(store: LogStore, run: CompactedCommits) -> DecodedCommit | None:
    try:
        compacted = decode_commit(run.last, store.read(run.status.path), table=store.root)
        if {file_key(add) for add in compacted.adds}.isdisjoint(map(file_key, compacted.removes)):
            return compacted
        logger.info(
            "Table %s: %s holds a file both added and removed, by two spellings of its path; reading its commits instead",
            store.root,
            run.status.path,
        )
    except FileNotFoundError:
        logger.info("Table %s: %s is gone; reading its commits instead", store.root, run.status.path)
    except DeltaLogCorruptedException as error:
        logger.warning(
            "Table %s: ignoring damaged %s (%s); reading its commits instead",
            store.root,
            run.status.path,
            error.__cause__ or "it is empty or truncated",
        )
    return None
