"""How far a commit may go, and how it went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.actions import CommitInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitPolicy:
    """Bounds of the commit loop. Losing the race for a version is retried within them; a logical conflict never is.

    :param max_attempts: puts of the log entry before giving up.
    :param min_wait: seconds; the shortest pause after several losses.
    :param max_wait: seconds; the longest pause.
    :param total_timeout: seconds that the whole loop may take; ``None`` for no bound.
    :param cancelled: asked right before every put; true stops the commit with nothing written.
    :param checkpoint: ``inline`` writes a due checkpoint after the commit, ``off`` leaves it to maintenance.
    :param checksum: write ``<version>.crc`` after the commit.
    :param fail_on_hook_error: raise when a post-commit hook fails. The commit stays either way.
    """

    max_attempts: int = 10_000
    min_wait: float = 0.0
    max_wait: float = 0.25
    total_timeout: float | None = 600.0
    cancelled: Callable[[], bool] | None = None
    checkpoint: Literal["inline", "off"] = "inline"
    checksum: bool = True
    fail_on_hook_error: bool = False

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise DeltaIllegalArgumentException(f"max_attempts must be at least 1, got {self.max_attempts}")
        if not 0 <= self.min_wait <= self.max_wait:
            raise DeltaIllegalArgumentException(
                f"0 <= min_wait <= max_wait must hold, got min_wait={self.min_wait}, max_wait={self.max_wait}"
            )
        if self.total_timeout is not None and self.total_timeout <= 0:
            raise DeltaIllegalArgumentException(f"total_timeout must be positive, got {self.total_timeout}")
        if self.checkpoint not in ("inline", "off"):
            raise DeltaIllegalArgumentException(f"checkpoint must be 'inline' or 'off', got {self.checkpoint!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitOutcome:
    """How a commit went.

    :param version: version that it is.
    :param attempts: puts of the log entry that were tried.
    :param versions_checked: winning commits that were checked for conflicts.
    :param recognised: the log held this transaction's commit already: an earlier put had landed unnoticed.
    :param commit_info: as it is in the log.
    :param timestamp: milliseconds since the epoch, ``commitInfo.timestamp``.
    :param elapsed: seconds from the start of the loop to the durable commit.
    """

    version: int
    attempts: int
    versions_checked: int
    recognised: bool
    commit_info: CommitInfo
    timestamp: int
    elapsed: float
