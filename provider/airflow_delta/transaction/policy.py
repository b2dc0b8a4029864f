"""The limits and options of a commit and of the conflict checker, which Delta has as configuration; and a commit's outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import CommitInfo
from airflow_delta.transaction.conflict_detection import ConflictDetection, check_level
from airflow_delta.transaction.intents import WAIT_FOR_INTENTS, IntentRule

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import Action, Metadata


AUTO_COMPACT_MIN_FILES = 50
"""Number of small files at which a partition is compacted (``autoCompact.minNumFiles``)."""

AUTO_COMPACT_MAX_FILE_SIZE = 128 << 20
"""Bytes of the files that are written; files below half of that are small (``autoCompact.maxFileSize``)."""


def check_user_metadata(value: object) -> None:
    """Refuse what would not be text in ``commitInfo.userMetadata``: other engines could not read the table's history.

    :raises DeltaIllegalArgumentException: if it is neither text nor ``None``.
    """
    if value is not None and not isinstance(value, str):
        raise DeltaIllegalArgumentException(f"user_metadata must be text, got {str(value)[:80]!r} ({type(value).__name__}).")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConflictOptions:
    """Options of the conflict checker; the defaults are Delta's, except for ``resolve_same_new_columns``.

    :param resolve_feature_enablement: accept a winner's metadata if it only enables features that need nothing from this commit
        (Delta: ``featureEnablement.conflictResolution.enabled``). If off, only row tracking enabled on its own and moved identity
        columns are accepted.
    :param enforce_concurrent_feature_enablement: fail if a winner's protocol gains a feature with rules for every write, such as
        check constraints (Delta: ``conflictChecker.enforceConcurrentFeatureEnablement.enabled``).
    :param replace_removes_new_domains: a REPLACE TABLE removes clustering that was declared in the meantime (Delta:
        ``conflictDetection.allowReplaceTableToRemoveNewDomainMetadata``).
    :param resolve_same_new_columns: accept a winner that added the very columns that this commit adds; Delta does not.
    """

    resolve_feature_enablement: bool = True
    enforce_concurrent_feature_enablement: bool = False
    replace_removes_new_domains: bool = True
    resolve_same_new_columns: bool = True


CheckMode = Literal["off", "log", "fatal"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitPolicy:
    """Limits and options of a commit. A lost race for a version is retried within the limits; a logical conflict never is.

    :param max_attempts: puts of the log entry before giving up.
    :param min_wait: seconds; the shortest pause after several losses.
    :param max_wait: seconds; the longest pause.
    :param total_timeout: seconds that the whole loop may take; ``None`` for no limit.
    :param cancelled: called right before every put; if it returns true, the commit stops with nothing written.
    :param check_actions: called with the metadata and the actions of the commit before anything is written, and again when the
        commits of others have changed them; raises what forbids it.
    :param check_winners: called with the commits of others that the commit goes on after, before it is put: those found
        together (:class:`~airflow_delta.transaction.conflicts.winning_commit.WinningCommit`), in ascending order, each once;
        and with the actions of the commit as they leave them. Raises what forbids it.
    :param checkpoint: ``inline`` writes a due checkpoint after the commit, ``off`` leaves it to maintenance.
    :param checksum: write ``<version>.crc`` after the commit.
    :param fail_on_hook_error: raise an error if a post-commit hook fails. The commit is valid either way.
    :param conflicts: options of the conflict checker.
    :param conflict_detection: ``delta``, ``statistics`` or ``rows``: see
        :data:`~airflow_delta.transaction.conflict_detection.ConflictDetection`.
    :param conflict_read_limit: bytes of columns of winning commits' files that a commit may read to decide by rows.
    :param commit_lock: hold the table's lock in this process while committing; default: depends on the kind of store
        (Delta: ``commitLock.enabled``).
    :param skip_recording_empty_commits: ``commit_if_needed`` writes no version if there are no actions
        (Delta: ``skipRecordingEmptyCommits``).
    :param duplicate_action_check: refuse a file that is added twice, removed twice, or both added and removed
        (Delta: ``duplicateActionCheck.enabled``).
    :param consistent_data_change: what to do if only some adds and removes of a commit change data: ``off``, ``log`` or
        ``fatal`` (Delta: ``commitValidation.consistentDataChange.mode``). ``log`` still refuses a commit whose other adds and
        removes cannot hold the same rows.
    :param fail_on_empty_file: refuse an added file of 0 bytes instead of logging it (Delta: ``emptyFileCheck.throwEnabled``).
    :param fail_on_null_partition: refuse a null in a NOT NULL partition column instead of logging it
        (Delta: ``nullPartitionCheck.throwEnabled``).
    :param partition_column_change: what to do if an operation changes the partitioning but may not: ``off``, ``log`` or ``fatal``
        (Delta: ``partitionColumnChangeCheck``, which only logs by default).
    :param history_metrics: write ``operationMetrics`` (Delta: ``history.metricsEnabled``).
    :param user_metadata: ``commitInfo.userMetadata`` if neither commit, operation nor transaction has one
        (Delta: ``commitInfo.userMetadata``).
    :param auto_compact: request compaction after commits that leave many small files; default: the table's properties decide
        (Delta: ``autoCompact.enabled``).
    :param auto_compact_min_files: how many small files in one partition trigger the request (``autoCompact.minNumFiles``).
    :param auto_compact_max_file_size: bytes; files up to half that size are small (``autoCompact.maxFileSize``).
    :param on_auto_compact: called with the request, which is in the outcome of the commit either way.
    :param intents: what to do about intents that are open on the table.
    :param next_version_only: the commit must be the version right after the one that was read, or it fails.
    """

    max_attempts: int = 10_000
    min_wait: float = 0.0
    max_wait: float = 0.25
    total_timeout: float | None = 600.0
    cancelled: Callable[[], bool] | None = None
    check_actions: Callable[[Metadata, Sequence[Action]], None] | None = None
    check_winners: Callable[[Sequence[Any], Sequence[Action]], None] | None = None
    checkpoint: Literal["inline", "off"] = "inline"
    checksum: bool = True
    fail_on_hook_error: bool = False
    conflicts: ConflictOptions = field(default_factory=ConflictOptions)
    conflict_detection: ConflictDetection = "rows"
    conflict_read_limit: int = 64 * 1024 * 1024
    commit_lock: bool | None = None
    skip_recording_empty_commits: bool = True
    duplicate_action_check: bool = True
    consistent_data_change: CheckMode = "log"
    fail_on_empty_file: bool = False
    fail_on_null_partition: bool = False
    partition_column_change: CheckMode = "fatal"
    history_metrics: bool = True
    user_metadata: str | None = None
    auto_compact: bool | None = None
    auto_compact_min_files: int = AUTO_COMPACT_MIN_FILES
    auto_compact_max_file_size: int = AUTO_COMPACT_MAX_FILE_SIZE
    on_auto_compact: Callable[[AutoCompactionRequest], None] | None = None
    intents: IntentRule = WAIT_FOR_INTENTS
    next_version_only: bool = False

    def __post_init__(self) -> None:
        check_user_metadata(self.user_metadata)
        if self.max_attempts < 1:
            raise DeltaIllegalArgumentException(f"max_attempts must be at least 1, got {self.max_attempts}")
        if not 0 <= self.min_wait <= self.max_wait:
            raise DeltaIllegalArgumentException(
                f"min_wait and max_wait must satisfy 0 <= min_wait <= max_wait, got {self.min_wait} and {self.max_wait}"
            )
        if self.total_timeout is not None and self.total_timeout <= 0:
            raise DeltaIllegalArgumentException(f"total_timeout must be positive, got {self.total_timeout}")
        check_level(self.conflict_detection)
        if self.conflict_read_limit < 0:
            raise DeltaIllegalArgumentException(f"conflict_read_limit must be 0 or more, got {self.conflict_read_limit}")
        if self.checkpoint not in ("inline", "off"):
            raise DeltaIllegalArgumentException(f"checkpoint must be 'inline' or 'off', got {self.checkpoint!r}")
        for name in ("consistent_data_change", "partition_column_change"):
            if getattr(self, name) not in get_args(CheckMode):
                raise DeltaIllegalArgumentException(f"{name} must be 'off', 'log' or 'fatal', got {getattr(self, name)!r}")
        if self.auto_compact_min_files < 2 or self.auto_compact_max_file_size < 1:
            raise DeltaIllegalArgumentException(
                "auto_compact_min_files must be at least 2 and auto_compact_max_file_size at least 1, got "
                f"{self.auto_compact_min_files} and {self.auto_compact_max_file_size}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitOutcome:
    """How a commit went.

    :param version: version of the commit.
    :param attempts: puts of the log entry.
    :param versions_checked: winning commits that were checked for conflicts.
    :param recognised: the log already held this transaction's commit: an earlier put had landed unnoticed.
    :param commit_info: as it is in the log.
    :param timestamp: milliseconds since the epoch, ``commitInfo.timestamp``.
    :param elapsed: seconds from the start of the loop to the durable commit.
    :param auto_compaction: what should be compacted now, if a post-commit hook found anything.
    :param resolved: how winning commits turned out not to conflict (``statistics``, ``keys``, ``rows``, ``moved``,
        ``dropped``), to their versions, as in ``3-12,15``; empty if Delta's own rules found no conflict.
    """

    version: int
    attempts: int
    versions_checked: int
    recognised: bool
    commit_info: CommitInfo
    timestamp: int
    elapsed: float
    auto_compaction: AutoCompactionRequest | None = None
    resolved: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoCompactionRequest:
    """Small files that a commit left in the partitions it wrote to (Delta's ``AutoCompactRequest``).

    It calls for an OPTIMIZE of these partitions with ``auto=true``; the receiver decides when and where that runs.

    :param version: version at which the files were found.
    :param partitions: serialised values by physical column name; one empty mapping for an unpartitioned table.
    :param num_small_files: small files in these partitions.
    :param small_file_bytes: their bytes.
    :param min_file_size: bytes; smaller files should be compacted.
    :param max_file_size: bytes; the size to write.
    """

    table: str
    version: int
    partitions: tuple[Mapping[str, str | None], ...]
    num_small_files: int
    small_file_bytes: int
    min_file_size: int
    max_file_size: int
