"""COPY INTO as a task: load the files of a directory that the table does not have yet, each exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.choices import ENFORCE, SCHEMA_POLICIES, STRICT, Choices, check_choices
from airflow_delta.contract.kinds import NAMES, OPTIONS, SCHEMA, TRUTH, Kinds, table_text
from airflow_delta.contract.options import check_source, check_writer_options
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.contract.reader_options import check_reader_options
from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaUnsupportedOperationException,
)
from airflow_delta.tasks.base import Parts, templated
from airflow_delta.tasks.operation import OPERATION, DeltaTableOperator
from airflow_delta.tasks.spark.progress import spark_work
from airflow_delta.tasks.spark.session import TaskSession
from airflow_delta.tasks.spark.storage import SparkStorage
from airflow_delta.tasks.stage.new_files import NewFilesParameters, find_new_files
from airflow_delta.tasks.stage.reads import StageReadRecorder
from airflow_delta.tasks.values import column_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.stage_view import SparkWork, StageView

FORMATS = ("csv", "json", "parquet", "avro", "orc", "text")
ENGINES = ("spark", "arrow")


class DeltaCopyIntoOperator(DeltaTableOperator):
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
    :class:`~airflow_delta.tasks.spark.session.TaskSession`.
    """

    parts: ClassVar[Parts] = (*OPERATION, TaskSession)
    choices: ClassVar[Choices] = {"format": FORMATS, "engine": ENGINES, "schema_policy": SCHEMA_POLICIES}
    kinds: ClassVar[Kinds] = {
        "recursive": TRUTH,
        "format_options": OPTIONS,
        "columns": NAMES,
        "assume_new": TRUTH,
        "skip_if_none": TRUTH,
        "merge_schema": TRUTH,
        "expected_schema": SCHEMA,
        "write_options": OPTIONS,
    }
    template_fields: Sequence[str] = (
        *templated(parts),
        "copy_source",
        "pattern",
        "format_options",
        "columns",
        "force",
        "consumer",
        "modified_after",
        "source_conn_id",
        "merge_schema",
        "expected_schema",
        "write_options",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"format_options": "json", "write_options": "json"}
    staged_mode: ClassVar[str] = "append"

    def __init__(
        self,
        *,
        source: str,
        format: str,  # noqa: A002 - Spark's name
        pattern: str | None = None,
        recursive: bool = False,
        format_options: Mapping[str, Any] | str | None = None,
        columns: str | Sequence[str] = (),
        force: bool | str = False,
        consumer: str | None = None,
        modified_after: str | datetime | None = None,
        assume_new: bool = False,
        skip_if_none: bool = False,
        engine: str = "spark",
        source_conn_id: str | None = None,
        merge_schema: bool | str = False,
        schema_policy: str = ENFORCE,
        expected_schema: str | Mapping[str, Any] | None = None,
        write_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.format = format
        self.engine = engine
        self.schema_policy = schema_policy
        check_choices(self, self.choices)
        whose = f"The task {self.task_id!r}"
        source = table_text(source, name="source")
        check_source({"path": source, "options": format_options}, whose=whose)
        if engine == "spark":
            check_reader_options(format_options, format, whose=whose)
        check_writer_options(write_options, whose=whose)
        if engine == "arrow" and format != "parquet":
            raise DeltaUnsupportedOperationException(
                f'{whose} loads {format}, which only Spark reads: engine="arrow" loads Parquet. Leave it out, or read the files '
                'with a library of your choice: @task.delta_stage(engine="arrow", new_files=...).'
            )
        if engine == "arrow" and (format_options or columns):
            raise DeltaUnsupportedOperationException(
                f'{whose} has {"format_options" if format_options else "columns"}, which go with engine="spark".'
            )
        if schema_policy == ENFORCE and expected_schema is not None:
            raise DeltaIllegalArgumentException(f"{whose} has an expected_schema, which goes with schema_policy='strict'.")
        if schema_policy == STRICT and expected_schema is None and merge_schema is True:
            raise DeltaIllegalArgumentException(
                f"{whose} has schema_policy='strict', which holds the rows to the table's schema; merge_schema would change it."
            )
        self.copy_source = source
        self.pattern = pattern
        self.recursive = recursive
        self.format_options: Any = format_options
        self.columns = columns
        self.force = force
        self.consumer = consumer
        self.modified_after = modified_after
        self.assume_new = assume_new
        self.skip_if_none = skip_if_none
        self.source_conn_id = source_conn_id
        self.merge_schema: Any = merge_schema
        self.expected_schema = expected_schema
        self.write_options = write_options

    def table_uri(self, log: DeltaLog) -> str | None:
        """Return the worker's URI if the worker itself writes."""
        return log.uri if self.engine == "arrow" else super().table_uri(log)

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Find the files to load, and plan the write.

        :raises DeltaIllegalArgumentException: if templates have made the source secret, or an option drops rows.
        :raises AirflowSkipException: if there is nothing to load, and the task is then to be skipped.
        :raises DeltaTableNotFoundException: if there is no table, and no stage creates it.
        :raises DeltaIllegalStateException: if files were changed after they were loaded, or records of loads are damaged.
        :raises DeltaFileNotFoundException: if records of loads are gone.
        """
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
        if self._found.load is None:
            return stage.staged(mode="append")
        planned = engine.plan_stage(
            stage,
            mode="append",
            merge_schema=self.merge_schema,
            options=self.write_options,
            expected_schema=self.expected_schema,
            schema_policy=self.schema_policy,
        )
        if self.engine == "arrow":
            engine.check_possible(planned)
        return engine.SparkWork(planned, partial(engine.collect_stage, stage))

    def did_nothing(self, staged: StagedWrite) -> bool:
        """Return whether there was nothing to load."""
        return not staged.loads

    def work(self, stage: StageView, request: StageRequest) -> tuple[StageRequest, StageReport]:
        """Read the files and write their rows.

        :raises DeltaFileNotFoundException: if a file is gone.
        :raises DeltaIllegalStateException: if one was changed since it was found.
        :raises SchemaMismatchException: if a file cannot be read, or its rows do not fit the table.
        """
        found = self._found
        found.check()
        if self.format == "avro":
            found.check_one_avro_schema()
        report = self._by_arrow(stage, request) if self.engine == "arrow" else self._by_spark(stage, request)
        found.check()
        self._reads = recorder = StageReadRecorder(stage)
        if found.load is not None:
            recorder.note_load(found.load)
        return request, report

    def _by_arrow(self, stage: StageView, request: StageRequest) -> StageReport:
        rows = engine.read_arrow_files(self._found, stage.schema)
        return engine.stage_arrow(stage.log, rows, request)

    def _by_spark(self, stage: StageView, request: StageRequest) -> StageReport:
        found = self._found
        root = engine.spark_table(self._source)
        # Large files first: an empty one does not show its columns.
        paths = [f"{root}/{file.path}" for file in sorted(found.files, key=lambda file: -file.size)]
        with self.hold(TaskSession).session(stage.log) as spark, self._source_in(spark, root):
            rows = engine.read_spark_files(
                spark,
                paths,
                file_format=self.format,
                options=self.format_options or {},
                table=stage.target.struct if stage.target.is_known else None,
                columns=column_names(self.columns),
            )
            with spark_work(self.log, stage.log, request, session=spark):
                return engine.stage_dataframe(spark, rows, request)

    @contextmanager
    def _source_in(self, spark: SparkSession, root: str) -> Iterator[None]:
        """Let a session reach the source by its own connection."""
        conn_id, own = self._found.store.connection, self.hold(TaskSession).spark_credentials
        with SparkStorage(root, conn_id, own=bool(own)).in_session(spark, made=False):
            yield
