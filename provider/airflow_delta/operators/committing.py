"""What every task that commits shares: how long it tries, what else it records, and what it tells Airflow afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from airflow_delta import exceptions
from airflow_delta.assets.delta import delta_asset, event_extra
from airflow_delta.links.delta import FAILURE_KEY, DeltaCommitLink, DeltaTableLink, failure_note
from airflow_delta.observability import Stopwatch, TaskMetrics
from airflow_delta.operators.lineage import DeltaLineageOperator
from airflow_delta.operators.observing import watched_commit
from airflow_delta.retry_policies import FINAL_ERRORS, REFUSALS

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log import DeltaLog
    from airflow_delta.staging.contract import CommitResult, StagedWrite
    from airflow_delta.transaction import CommitPolicy, PostCommitHook

__all__ = ["FINAL_ERRORS", "REFUSALS", "DeltaCommittingOperator"]


class DeltaCommittingOperator(DeltaLineageOperator):
    """Base of the tasks that commit.

    :param user_metadata: text for ``commitInfo.userMetadata``. (templated)
    :param max_commit_attempts: puts of the log entry before giving up a lost race; default: that of ``CommitPolicy``.
    :param commit_timeout: seconds that the race for a version may take; default: that of ``CommitPolicy``.
    :param checkpoint: ``inline`` writes a checkpoint after the commit when one is due, ``off`` leaves it to maintenance.
    :param post_commit_hooks: hooks to run after the commit, beside the table's own (checkpoint, checksum).
    :param fail_on_hook_error: fail the task when a hook fails. The commit stays either way.
    """

    template_fields: Sequence[str] = ("user_metadata",)
    operator_extra_links = (DeltaTableLink(), DeltaCommitLink())

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
        self._commit_clock: Stopwatch | None = None
        self._delta_log: DeltaLog | None = None

    def on_kill(self) -> None:
        """Keep a commit that has not put its log entry yet from doing so; it reads this flag right before the put."""
        self._cancelled = True
        super().on_kill()

    @property
    def is_cancelled(self) -> bool:
        """Whether the task was told to stop."""
        return self._cancelled

    def _policy(self) -> CommitPolicy:
        from airflow_delta.transaction import CommitPolicy

        limits: dict[str, Any] = {"max_attempts": self.max_commit_attempts, "total_timeout": self.commit_timeout}
        return CommitPolicy(
            cancelled=lambda: self._cancelled,
            checkpoint=self.checkpoint,  # type: ignore[arg-type]
            fail_on_hook_error=self.fail_on_hook_error,
            **{name: value for name, value in limits.items() if value is not None},
        )

    @contextmanager
    def _watched(self, context: Context, log: DeltaLog) -> Iterator[None]:
        """Count the conflicts of the commits in the block, log the races that they lose, and note when they begin.

        An error is left in short under :data:`~airflow_delta.links.delta.FAILURE_KEY`.
        """
        self._delta_log = log
        self._commit_clock = Stopwatch()
        try:
            with watched_commit(TaskMetrics(context["ti"]), self.log, log.uri):
                yield
        except exceptions.DeltaError as error:
            try:
                context["ti"].xcom_push(key=FAILURE_KEY, value=failure_note(error))
            except Exception:  # the error itself decides about retries and restarts
                self.log.warning("The note for the table's page could not be left", exc_info=True)
            raise

    def _finish(
        self, context: Context, result: CommitResult, writes: Sequence[StagedWrite] = (), *, measured: bool = False
    ) -> dict[str, Any]:
        """Log what was committed, fill in the asset events of the outlets, and return the result's JSON form.

        :param writes: what the commit consists of.
        :param measured: the metrics of this commit have been sent.
        """
        seconds = None if self._commit_clock is None else self._commit_clock.seconds
        self._tell_committed(result, seconds)
        if not result.committed_nothing:
            if not measured:
                TaskMetrics(context["ti"]).committed(result, seconds)
            self._note_commit(self._delta_log, result, writes)
        extra = event_extra(result)
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(extra)
            elif isinstance(outlet, AssetAlias):
                context["outlet_events"][outlet].add(self._asset(result), extra=extra)
        return result.to_dict()

    def _asset(self, result: CommitResult) -> Asset:
        """Return the table's asset under the name that the Dag gave it, as a static outlet of the same name would be."""
        given = self._given_table()
        if given is None or (self._delta_log is not None and self._delta_log.uri != result.table):
            return delta_asset(result.table)
        return delta_asset(*given)

    def _given_table(self) -> tuple[str, str | None] | None:
        """Return the table as it was given to the task, and its connection."""
        table = getattr(self, "table", None)
        return (table, getattr(self, "delta_conn_id", None)) if isinstance(table, str) and table.strip() else None

    def _tell_committed(self, result: CommitResult, seconds: float | None) -> None:
        if result.committed_nothing:
            self.log.info("%s of %s: nothing has changed, nothing is committed.", result.operation, result.table)
            return
        if result.committed_before:
            self.log.info(
                "Transaction %s: found its commit in version %s of %s; nothing is written again. The same result is returned.",
                result.transaction_id,
                result.version,
                result.table,
            )
            return
        self.log.info(
            "Transaction %s: committed version %s of %s (%s): %s rows and %s bytes in %s files added, %s files removed; read "
            "version %s, %s attempts, %s versions of others checked%s.",
            result.transaction_id,
            result.version,
            result.table,
            result.operation,
            result.num_records,
            result.num_bytes,
            result.num_files,
            result.num_removed_files,
            result.read_version,
            result.attempts,
            result.versions_checked,
            "" if seconds is None else f", {seconds:.1f} s",
        )
