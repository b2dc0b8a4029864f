"""One attempt of a stage: what it works on, what it asks of Spark, what it hands to the commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.arguments import Arguments
from airflow_delta.contract.manifest import INLINE_LIMIT, decode_actions, encode_manifest, manifest_ref
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.staging_directory import MANIFEST_NAME, attempt_directory, stage_key
from airflow_delta.exceptions import DeltaIllegalStateException, StageConflictException, StagingException
from airflow_delta.log.actions.actions import Action, AddCDCFile, RemoveFile, encode_action
from airflow_delta.table.definition.altered_table import MODE, is_alter, needs_own_commit
from airflow_delta.table.files.adds import DataFiles
from airflow_delta.table.stage.earlier_stages import stage_id
from airflow_delta.table.stage.new_columns import check_metadata
from airflow_delta.table.stage.scan import spark_table
from airflow_delta.table.stage.staged_paths import check_paths
from airflow_delta.table.stage.staged_writes import parse_staged
from airflow_delta.table.stage.view import TransactionView, load_stages, opened

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


@dataclass(frozen=True, kw_only=True)
class StageView(TransactionView):
    """The view of one attempt of a stage.

    :param attempt: unique name of this execution (:func:`airflow_delta.contract.staging_directory.new_attempt`).
    """

    task_id: str
    map_index: int = -1
    attempt: str

    @property
    def key(self) -> str:
        """Name of the stage in paths."""
        return stage_key(self.task_id, self.map_index)

    @property
    def directory(self) -> str:
        """Directory of the attempt, relative to the table."""
        return attempt_directory(self.handle.transaction_id, self.key, self.attempt)

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
        self._check_together(mode, fields)
        earlier = tuple(stage.write.to_dict() for stage in self.stages)
        planned = {"schema_string": self.target.schema_string, "partition_columns": self.target.partition_columns, **fields}
        return StageRequest(
            transaction_id=self.handle.transaction_id,
            table=spark_table(self.log, self.spark_table_uri),
            read_version=self.handle.read_version,
            stage=self.key,
            task_id=self.task_id,
            map_index=self.map_index,
            attempt=self.attempt,
            directory=self.directory,
            operation=operation,
            mode=mode,
            options={key: str(value) for key, value in (options or {}).items()},
            arguments=replace(arguments, after=self.after, earlier=earlier).to_dict(),
            **planned,
        )

    def _check_together(self, mode: str, fields: Mapping[str, Any]) -> None:
        """Refuse a stage on top of others that cannot be in one commit with it, as the commit does, but before its work.

        :raises StageConflictException: if the stage or one before it replaces the schema, and the other does not, or one
            before it needs a commit of its own.
        """
        replaces = bool(fields.get("overwrite_schema"))
        for write in (stage.write for stage in self.stages):
            if (alone := needs_own_commit(write)) is not None:
                raise self.handle.error(
                    StageConflictException,
                    f"Stage {self.key} of transaction {self.handle.transaction_id} on table {self.handle.table} cannot be "
                    f"planned on top of stage {write.stage}: {alone} needs its own transaction.",
                )
            others = bool(write.definition) or write.overwrite_schema
            if self.handle.read_version < 0:
                together = not (write.definition and replaces)
            elif mode == MODE or is_alter(write):
                together = not (others or replaces)
            elif write.definition:
                together = not replaces
            else:
                together = others == replaces
            if not together:
                raise self.handle.error(
                    StageConflictException,
                    f"Stage {self.key} of transaction {self.handle.transaction_id} cannot be planned on top of stage "
                    f"{write.stage} ({write.operation}): {'it' if replaces else 'that one'} replaces the schema of table "
                    f"{self.handle.table}, and the other does not. Put them into separate transactions. Rows can be written on "
                    "top of a table that DeltaCreateTableOperator replaces.",
                )

    def reported(self, request: StageRequest, report: StageReport) -> StageView:
        """Return the view of the attempt that a report is of: an earlier one if its job was taken over.

        :raises StagingException: if the report is not that of the request, or names directories outside the attempt.
        """
        asked = {"transaction_id": self.handle.transaction_id, "stage": request.stage, "attempt": request.attempt}
        for name, expected in asked.items():
            if getattr(report, name) != expected:
                raise self.handle.error(
                    StagingException,
                    f"The report of stage {request.stage} is of another execution: {name} is {getattr(report, name)!r}, expected "
                    f"{expected!r}. Clear the start task with everything downstream.",
                )
        names = (*report.directories, *report.copied_directories, *report.change_directories, *report.vector_directories)
        if any("/" in name or name.startswith(".") for name in names):
            raise self.handle.error(
                StagingException, f"The report of stage {request.stage} names directories outside its attempt"
            )
        given = Arguments.of(request)
        same = (request.task_id, request.map_index, request.attempt) == (self.task_id, self.map_index, self.attempt)
        stage = self if same else replace(self, task_id=request.task_id, map_index=request.map_index, attempt=request.attempt)
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
        self._check_together(mode, fields)
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
            stage=self.key,
            task_id=self.task_id,
            map_index=self.map_index,
            attempt=self.attempt,
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
    stage = StageView(
        log=log,
        handle=handle,
        read=opened(log, handle),
        spark_table_uri=spark_table_uri,
        task_id=task_id,
        map_index=map_index,
        attempt=attempt,
    )
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
