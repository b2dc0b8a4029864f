"""What a stage works with from its plan to its staged write: what it asks of Spark, and what it hands to the commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.arguments import Arguments
from airflow_delta.contract.manifest import INLINE_LIMIT, decode_actions, encode_manifest, manifest_ref
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.staging_directory import MANIFEST_NAME, attempt_directory
from airflow_delta.exceptions import DeltaIllegalStateException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Action, AddCDCFile, RemoveFile, encode_action
from airflow_delta.table.files.adds import DataFiles
from airflow_delta.table.stage.attempt import StageAttempt, check_report
from airflow_delta.table.stage.earlier_stages import stage_id
from airflow_delta.table.stage.new_columns import check_metadata
from airflow_delta.table.stage.scan import spark_table
from airflow_delta.table.stage.staged_paths import check_paths
from airflow_delta.table.stage.staged_writes import parse_staged
from airflow_delta.table.stage.together import check_same_commit
from airflow_delta.table.stage.view import TransactionView, load_stages, opened

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


@dataclass(frozen=True, kw_only=True)
class StageView(TransactionView):
    """What a transaction has read, and the attempt that stages on top of it.

    Who needs only the former takes a :class:`~airflow_delta.table.stage.view.TransactionView`, or what the table is.

    :param own: the attempt.
    """

    own: StageAttempt

    @property
    def directory(self) -> str:
        """Directory of the attempt, relative to the table."""
        return attempt_directory(self.handle.transaction_id, self.own.key, self.own.attempt)

    @property
    def after(self) -> tuple[str, ...]:
        """Ids of the stages that this one is planned on top of."""
        return tuple(stage_id(stage.write) for stage in self.stages)

    def check_open(self) -> None:
        """Refuse to stage for a committed transaction.

        :raises DeltaIllegalStateException: if the transaction is committed.
        """
        committed = self.handle.committed
        if committed is not None:
            raise self.handle.error(
                DeltaIllegalStateException,
                f"Transaction {self.handle.app_id!r} is committed in version {committed.version} of table {self.handle.table}; "
                "there is nothing to stage. Clear the start task with another rerun_policy to do it again.",
                version=committed.version,
            )

    def request(
        self,
        arguments: Arguments,
        *,
        mode: str,
        operation: str = "WRITE",
        options: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> StageRequest:
        """Return what Spark is asked to do.

        :param options: options of Spark's Parquet writer.
        :param fields: other fields of :class:`~airflow_delta.contract.request.StageRequest`; schema and partitioning are by
            default those of :attr:`target`.
        """
        if self.stages:
            check_same_commit(self, self.own.key, mode=mode, replaces_schema=bool(fields.get("overwrite_schema")))
        earlier = tuple(stage.write.to_dict() for stage in self.stages)
        planned = {"schema_string": self.target.schema_string, "partition_columns": self.target.partition_columns, **fields}
        return StageRequest(
            transaction_id=self.handle.transaction_id,
            **self.own.names,
            table=spark_table(self.log, self.spark_table_uri),
            read_version=self.handle.read_version,
            directory=self.directory,
            operation=operation,
            mode=mode,
            options={key: str(value) for key, value in (options or {}).items()},
            arguments=replace(arguments, after=self.after, earlier=earlier).to_dict(),
            **planned,
        )

    def reported(self, request: StageRequest, report: StageReport, given: Arguments) -> StageView:
        """Return the view of the attempt that a report is of: an earlier one if its job was taken over.

        :param given: the arguments of the request.
        :raises StagingException: if the report is not that of the request, or names directories outside the attempt.
        """
        check_report(self.handle, request, report)
        own = StageAttempt(request.task_id, request.map_index, request.attempt)
        stage = self if own == self.own else replace(self, own=own)
        return stage if given.after == self.after else _with_stages(stage, given.earlier)

    def staged(
        self,
        new: DataFiles | None = None,
        copied: DataFiles | None = None,
        removes: Sequence[RemoveFile] = (),
        change_files: Sequence[AddCDCFile] = (),
        *,
        mode: str,
        **fields: Any,
    ) -> StagedWrite:
        """Return what the attempt hands to the commit: its actions, inline or in a manifest beside the files.

        :param new: files with new rows.
        :param copied: files with rows of replaced files.
        :param fields: other fields of :class:`~airflow_delta.contract.payloads.StagedWrite`; they override what is counted here.

        Also raises as :func:`check_metadata` does.
        """
        if self.stages:
            check_same_commit(self, self.own.key, mode=mode, replaces_schema=bool(fields.get("overwrite_schema")))
        new, copied = new or DataFiles(), copied or DataFiles()
        adds = [*new.adds, *copied.adds]
        actions: list[Action] = [*removes, *adds, *change_files]
        lines = [encode_action(action) for action in actions]
        data = encode_manifest(lines)
        if len(data) <= INLINE_LIMIT:
            fields["actions"] = decode_actions(lines)
        else:
            path = f"{self.directory}/{MANIFEST_NAME}"
            self.log.store.put(path, data)
            fields["manifest"] = manifest_ref(path, data, len(lines))
        counted = {
            "num_files": len(adds),
            "num_removed_files": len(removes),
            "num_records": new.rows,
            "num_copied_records": copied.rows,
            "num_change_files": len(change_files),
            "num_bytes": sum(add.size for add in adds),
        }
        write = StagedWrite(
            transaction_id=self.handle.transaction_id,
            **self.own.names,
            mode=mode,
            **{
                "after": self.after,
                "schema_string": self.target.schema_string or "",
                "partition_columns": self.target.partition_columns,
                **counted,
                **fields,
            },
        )
        check_metadata(self, write)
        return write


@dataclass(frozen=True)
class SparkWork:
    """The Spark work of a planned operation, and how its report is used.

    :param collect: turns the report on a request into the staged write. The request may come from an earlier try that asked for
        the same work.
    """

    request: StageRequest
    collect: Callable[[StageRequest, StageReport], StagedWrite]


def open_stage(
    log: DeltaLog,
    handle: TransactionHandle,
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    after: Sequence[StagedWrite | Mapping[str, Any]] = (),
    spark_table_uri: str | None = None,
) -> StageView:
    """Return the view that a stage works with from its plan to its staged write.

    :param attempt: unique name of this execution (:func:`airflow_delta.contract.staging_directory.new_attempt`).
    :param after: staged writes of the earlier stages that this one is planned on top of.
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's.
    """
    own = StageAttempt(task_id, map_index, attempt)
    stage = StageView(log=log, handle=handle, read=opened(log, handle), spark_table_uri=spark_table_uri, own=own)
    return _with_stages(stage, after) if after else stage


def skipped(stage: StageView, *, mode: str = "append") -> StagedWrite:
    """Return the staged write of a stage with nothing to do: its transaction is already committed.

    It carries the totals of that commit, so that a check between stage and commit judges the rows in the table.
    """
    committed = stage.handle.committed
    totals = {} if committed is None else {name: getattr(committed, name) for name in _TOTALS}
    return stage.staged(mode=mode, already_committed=True, **totals)


_TOTALS = ("num_files", "num_removed_files", "num_records", "num_bytes")


def _with_stages(stage: StageView, writes: Sequence[StagedWrite | Mapping[str, Any]]) -> StageView:
    own = [write for write in parse_staged(stage.handle, writes) if not write.already_committed]
    view = replace(stage, stages=load_stages(stage.log, stage.handle, own))
    check_paths(stage.handle, view.stages, stage.log.store, lambda: view.snapshot)
    return view
