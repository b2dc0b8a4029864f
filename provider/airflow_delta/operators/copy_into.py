"""COPY INTO as a task: load the files of a directory that the table does not have yet, each exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.choices import ENFORCE, SCHEMA_POLICIES, STRICT
from airflow_delta.contract.kinds import LOCATION, NAMES, OPTIONS, SCHEMA, TRUTH
from airflow_delta.contract.operations import FileArguments, WriteArguments
from airflow_delta.contract.options import check_source, check_writer_options
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.contract.reader_options import check_reader_options
from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaUnsupportedOperationException,
    StagingException,
)
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.engines import ARROW, SPARK
from airflow_delta.tasks.operation import DeltaTableOperator
from airflow_delta.tasks.spark.progress import spark_work
from airflow_delta.tasks.spark.session import SessionParameters, TaskSession
from airflow_delta.tasks.spark.storage import SparkStorage
from airflow_delta.tasks.stage.files_to_load import NewFilesParameters, find_new_files
from airflow_delta.tasks.stage.reads import StageReadRecorder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.stage_view import SparkWork, StageView
    from airflow_delta.tasks.declared import Taken

FORMATS = ("csv", "json", "parquet", "avro", "orc", "text")


class DeltaCopyIntoOperator(DeltaTableOperator, SessionParameters):
    """Load the files of a source that the table does not have yet (COPY INTO), each exactly once.

    What was loaded is recorded beside the table's log, by the commit that adds the rows. If there is nothing to load, a task that
    is its own transaction commits nothing.

    :param source: a directory, a file, or a pattern of paths: URI, absolute path, or name below the base path of
        ``source_conn_id``. In one part of a path ``*`` is any text, ``?`` one character, ``[ab]`` one of some, ``{a,b}`` one of
        several strings. Files and directories whose names begin with ``_`` or ``.`` are left out. (templated)
    :param format: ``csv``, ``json``, ``parquet``, ``avro``, ``orc``, or ``text``: each line as the column ``value``.
    :param pattern: pattern of paths below ``source``, which then is a directory. (templated)
    :param recursive: also files in directories below.
    :param format_options: options of Spark's reader of the format, such as ``header``, ``delimiter`` and ``multiLine``;
        or JSON of them. (templated)
    :param columns: names of the columns of CSV without a header; default: the table's. (templated)
    :param force: load files that were loaded already, too: all that the pattern selects. Their rows are then in the table twice.
        (templated)
    :param consumer: who loads: each consumer has a record of its own of what it has loaded. Default: one for each directory, the
        one before the first wildcard of ``source``. (templated)
    :param modified_after: load only files that were modified later: ISO time (naive: UTC). (templated)
    :param assume_new: a consumer of which the table knows nothing has loaded nothing, even if the table may have forgotten it.
        For one run.
    :param skip_if_none: skip the task if there is nothing to load.
    :param engine: ``spark``, or ``arrow`` to load Parquet in the worker, without Spark and Java.
    :param source_conn_id: connection of type ``delta`` to the source; default: the table's. (templated)
    :param merge_schema: add columns that the table does not have. (templated)
    :param schema_policy: ``enforce`` (default): rows are cast where no value can be lost, and missing columns are null;
        ``strict``: rows that do not have exactly the expected columns and types are refused before anything is written.
    :param expected_schema: with ``strict``: columns as in SQL; default: those of the table. (templated)
    :param write_options: options of Spark's Parquet writer, such as ``maxRecordsPerFile``. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.operation.DeltaTableOperator` and of
    :class:`~airflow_delta.tasks.spark.session.SessionParameters`.
    """

    by_job: ClassVar[bool | str] = True
    staged_mode: ClassVar[str] = "append"

    copy_source: str = parameter(alias="source", templated=True, kind=LOCATION)
    format: str = parameter(choices=FORMATS)
    pattern: str | None = parameter(default=None, templated=True)
    recursive: bool = parameter(default=False, kind=TRUTH)
    format_options: Taken[Mapping[str, Any] | str | None, Mapping[str, Any] | None] = parameter(
        default=None, templated=True, kind=OPTIONS, renderer="json"
    )
    columns: Taken[str | Sequence[str], tuple[str, ...]] = parameter(default=(), templated=True, kind=NAMES)
    force: Taken[bool | str, bool] = parameter(default=False, templated=True, kind=TRUTH)
    consumer: str | None = parameter(default=None, templated=True)
    modified_after: str | datetime | None = parameter(default=None, templated=True)
    assume_new: bool = parameter(default=False, kind=TRUTH)
    skip_if_none: bool = parameter(default=False, kind=TRUTH)
    engine: str = parameter(default=SPARK, choices=(SPARK, ARROW))
    source_conn_id: str | None = parameter(default=None, templated=True)
    merge_schema: Taken[bool | str, bool] = parameter(default=False, templated=True, kind=TRUTH)
    schema_policy: str = parameter(default=ENFORCE, choices=SCHEMA_POLICIES)
    expected_schema: Taken[str | Mapping[str, Any] | None, str | None] = parameter(default=None, templated=True, kind=SCHEMA)
    write_options: Mapping[str, Any] | None = parameter(default=None, templated=True, kind=OPTIONS, renderer="json")

    def __post_init__(self) -> None:
        super().__post_init__()
        whose = f"The task {self.task_id!r}"
        check_source({"path": self.copy_source, "options": self.format_options}, whose=whose)
        if self.engine == "spark":
            check_reader_options(self.format_options, self.format, whose=whose)
        check_writer_options(self.write_options, whose=whose)
        if self.engine == "arrow" and self.format != "parquet":
            raise DeltaUnsupportedOperationException(
                f'{whose} loads {self.format}, which only Spark reads: engine="arrow" loads Parquet. Leave it out, or read the '
                'files with a library of your choice: @task.delta_stage(engine="arrow", new_files=...).'
            )
        if self.engine == "arrow" and (self.format_options or self.columns):
            raise DeltaUnsupportedOperationException(
                f'{whose} has {"format_options" if self.format_options else "columns"}, which go with engine="spark".'
            )
        if self.schema_policy == ENFORCE and self.expected_schema is not None:
            raise DeltaIllegalArgumentException(f"{whose} has an expected_schema, which goes with schema_policy='strict'.")
        if self.schema_policy == STRICT and self.expected_schema is None and self.merge_schema is True:
            raise DeltaIllegalArgumentException(
                f"{whose} has schema_policy='strict', which holds the rows to the table's schema; merge_schema would change it."
            )

    def table_uri(self, log: DeltaLog) -> str | None:
        """Return the worker's URI if the worker itself writes."""
        return log.uri if self.engine == "arrow" else super().table_uri(log)

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Find the files to load, and plan the write.

        :raises SchemaMismatchException: if there are Avro files of different schemas.
        :raises DeltaIllegalArgumentException: if templates have made the source secret, or an option drops rows.
        :raises AirflowSkipException: if there is nothing to load, and the task is then to be skipped.
        :raises DeltaTableNotFoundException: if there is no table, and no stage creates it.
        :raises DeltaIllegalStateException: if files were changed after they were loaded, or records of loads are damaged.
        :raises DeltaFileNotFoundException: if records of loads are gone.
        """
        self._find(stage)
        found = self._found
        if found.load is None:
            return stage.staged(mode="append")
        found.check()
        if self.format == "avro":
            found.check_one_avro_schema()
        planned = engine.plan_stage(
            stage,
            mode="append",
            merge_schema=self.merge_schema,
            options=self.write_options,
            expected_schema=self.expected_schema,
            schema_policy=self.schema_policy,
            files=None if self.engine == "arrow" else self._files(stage),
        )
        if self.engine == "arrow":
            engine.check_possible(planned)
        return engine.SparkWork(planned, partial(engine.collect_stage, stage))

    def _find(self, stage: StageView) -> None:
        whose = f"The task {self.task_id!r}"
        check_source({"path": self.copy_source, "options": self.format_options}, whose=whose)
        if self.engine == "spark":
            check_reader_options(self.format_options, self.format, whose=whose)
        options: NewFilesParameters = {
            "pattern": self.pattern,
            "recursive": self.recursive,
            "force": self.force,
            "consumer": self.consumer,
            "modified_after": self.modified_after,
            "assume_new": self.assume_new,
            "skip_if_none": self.skip_if_none,
            "source_conn_id": self.source_conn_id,
        }
        self._source, self._found = find_new_files(stage, self.opened, self.copy_source, options)

    def _files(self, stage: StageView) -> FileArguments:
        # Large files first: an empty one does not show its columns.
        root, files = self._root(stage), sorted(self._found.files, key=lambda file: -file.size)
        return FileArguments(
            paths=tuple(f"{root}/{file.path}" for file in files),
            format=self.format,
            options=dict(self.format_options or {}),
            columns=tuple(self.columns),
        )

    def _root(self, stage: StageView) -> str:
        return engine.spark_table(self._source, engine.uri_beside(stage, self._source))

    def did_nothing(self, staged: StagedWrite) -> bool:
        """Return whether there was nothing to load."""
        return not staged.loads

    def work(self, stage: StageView, request: StageRequest) -> tuple[StageRequest, StageReport]:
        """Read the files and write their rows.

        :raises DeltaFileNotFoundException: if a file is gone.
        :raises DeltaIllegalStateException: if one was changed since it was found.
        :raises SchemaMismatchException: if a file cannot be read, or its rows do not fit the table.
        """
        report = self._by_arrow(stage, request) if self.engine == "arrow" else self._by_spark(stage, request)
        self._found.check()
        self._reads = self._loads(stage)
        return request, report

    def collect_job(self, stage: StageView, request: StageRequest, report: StageReport) -> StagedWrite:
        """Return the staged write of a job, if the files are still those that it was to read.

        :raises StagingException: if they are not those of the transaction.

        Also raises as :meth:`work` does.
        """
        self._find(stage)
        asked = WriteArguments.of(request).files
        if asked is None or set(asked.paths) != set(self._files(stage).paths):
            raise stage.handle.error(
                StagingException,
                f"The job of stage {request.stage} was to load other files of {self._found.source} than the transaction on table "
                f"{stage.handle.table} does. Nothing was staged. Clear the start task with everything downstream.",
            )
        self._found.check()
        return self._loads(stage).add_reads(engine.collect_stage(stage, request, report))

    def _loads(self, stage: StageView) -> StageReadRecorder:
        recorder = StageReadRecorder(stage)
        if self._found.load is not None:
            recorder.note_load(self._found.load)
        return recorder

    def _by_arrow(self, stage: StageView, request: StageRequest) -> StageReport:
        rows = engine.read_arrow_files(self._found, stage.schema)
        return engine.stage_arrow(stage.log, rows, request)

    def _by_spark(self, stage: StageView, request: StageRequest) -> StageReport:
        with (
            self.hold(TaskSession).session(stage.log, request) as spark,
            self._source_in(spark, self._root(stage)),
            spark_work(self.log, stage.log, request, session=spark),
        ):
            return engine.run_operation(spark, request)

    @contextmanager
    def _source_in(self, spark: SparkSession, root: str) -> Iterator[None]:
        """Let a session reach the source by its own connection."""
        conn_id, own = self._found.store.connection, self.hold(TaskSession).spark_credentials
        with SparkStorage(root, conn_id, own=bool(own)).in_session(spark, made=False):
            yield
