"""What every task that commits shares: how long it tries, what else it records, and what it tells Airflow afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias, BaseOperator, ExceptionRetryPolicy, RetryAction, RetryRule

from airflow_delta import exceptions
from airflow_delta.assets.delta import delta_asset, event_extra

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.staging.contract import CommitResult
    from airflow_delta.transaction import CommitPolicy, PostCommitHook

_REFUSED: list[type[BaseException] | str] = [
    exceptions.DeltaAnalysisException,
    exceptions.DeltaIllegalArgumentException,
    exceptions.DeltaUnsupportedOperationException,
    exceptions.InvariantViolationException,
    exceptions.AppendOnlyException,
    exceptions.InvalidProtocolVersionException,
    exceptions.DeltaUnsupportedTableFeatureException,
    exceptions.ProtocolDowngradeException,
    exceptions.StagingException,
    exceptions.TransactionAlreadyCommittedException,
]

FINAL_ERRORS = ExceptionRetryPolicy(
    rules=[
        RetryRule(
            exception=[exceptions.DeltaConcurrentModificationException, *_REFUSED],
            action=RetryAction.FAIL,
            reason="The same transaction would fail again: clear the start task to begin a new one.",
        )
    ]
)
"""Retry policy of start and commit: what a retry cannot change fails at once; lost races and store errors are retried."""

REFUSALS = ExceptionRetryPolicy(
    rules=[RetryRule(exception=_REFUSED, action=RetryAction.FAIL, reason="What the task asks for is not possible on this table.")]
)
"""Retry policy of an operation that may be a transaction of its own: after a conflict, a retry begins a new one."""


class DeltaCommittingOperator(BaseOperator):
    """Base of the tasks that commit.

    :param user_metadata: text for ``commitInfo.userMetadata``. (templated)
    :param max_commit_attempts: puts of the log entry before giving up a lost race; default: that of ``CommitPolicy``.
    :param commit_timeout: seconds that the race for a version may take; default: that of ``CommitPolicy``.
    :param checkpoint: ``inline`` writes a checkpoint after the commit when one is due, ``off`` leaves it to maintenance.
    :param post_commit_hooks: hooks to run after the commit, beside the table's own (checkpoint, checksum).
    :param fail_on_hook_error: fail the task when a hook fails. The commit stays either way.
    """

    template_fields: Sequence[str] = ("user_metadata",)

    def __init__(
        self,
        *,
        user_metadata: str | None = None,
        max_commit_attempts: int | None = None,
        commit_timeout: float | None = None,
        checkpoint: str = "inline",
        post_commit_hooks: Sequence[PostCommitHook] = (),
        fail_on_hook_error: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.user_metadata = user_metadata
        self.max_commit_attempts = max_commit_attempts
        self.commit_timeout = commit_timeout
        self.checkpoint = checkpoint
        self.post_commit_hooks = post_commit_hooks
        self.fail_on_hook_error = fail_on_hook_error
        self._cancelled = False

    def on_kill(self) -> None:
        """Keep a commit that has not put its log entry yet from doing so; it reads this flag right before the put."""
        self._cancelled = True
        super().on_kill()

    def _policy(self) -> CommitPolicy:
        from airflow_delta.transaction import CommitPolicy

        limits: dict[str, Any] = {"max_attempts": self.max_commit_attempts, "total_timeout": self.commit_timeout}
        return CommitPolicy(
            cancelled=lambda: self._cancelled,
            checkpoint=self.checkpoint,  # type: ignore[arg-type]
            fail_on_hook_error=self.fail_on_hook_error,
            **{name: value for name, value in limits.items() if value is not None},
        )

    def _finish(self, context: Context, result: CommitResult) -> dict[str, Any]:
        """Log what was committed, fill in the asset events of the outlets, and return the result's JSON form."""
        self.log.info(
            "%s version %s of %s: %s rows in %s files added, %s files removed; read version %s, %s attempts, %s winners checked.",
            "Found the earlier commit of this transaction in" if result.committed_before else "Committed",
            result.version,
            result.table,
            result.num_records,
            result.num_files,
            result.num_removed_files,
            result.read_version,
            result.attempts,
            result.versions_checked,
        )
        extra = event_extra(result)
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(extra)
            elif isinstance(outlet, AssetAlias):
                context["outlet_events"][outlet].add(delta_asset(result.table), extra=extra)
        return result.to_dict()
