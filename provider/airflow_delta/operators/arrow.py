"""Stage the rows that a function returns as Arrow, pandas or Polars, without Spark: the worker writes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.standard.operators.python import PythonOperator

from airflow_delta import engine
from airflow_delta.contract.choices import Given, is_literal
from airflow_delta.contract.options import COMPARES, REPLACEMENTS, check_writer_options, writer_option_problem
from airflow_delta.contract.sql_parameters import with_given
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.frames import ROW_LIMIT
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.functions import authors_own, call_function, check_no_session, injected_by, without_injected
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.stage.files_to_load import find_new_files, new_files, parse_new_files
from airflow_delta.tasks.stage.new_rows import NewRowsParameters, check_publishes_alone
from airflow_delta.tasks.stage.operator import StageOperator
from airflow_delta.tasks.stage.read_versions import OtherTables, ReadVersions, ReadVersionsParameters
from airflow_delta.tasks.stage.reads import StageReadRecorder, change_bounds
from airflow_delta.tasks.stage.work import GivenTable, StageWorkParameters
from airflow_delta.tasks.stage.write_options import WriteOptions, WriteParameters

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.contract.payloads import StagedWrite
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.positions.files.unloaded import SourceFiles
    from airflow_delta.table.stage.stage_view import SparkWork, StageView


class ArrowTableReader(StageReadRecorder):
    """Reads the table as the transaction sees it, and records the reads for the conflict check of the commit.

    ``table()`` is the whole table, ``table("month = '2013-01-01'")`` the rows that satisfy a predicate, as a
    :class:`pyarrow.Table`. A narrower predicate means fewer conflicts with concurrent commits.
    """

    def __init__(self, stage: StageView, others: OtherTables | None = None) -> None:
        super().__init__(stage)
        self._others = others

    def __call__(self, predicate: str | None = None, *, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Return rows of the table; as :meth:`read` with its defaults."""
        return self.read(predicate, parameters=parameters)

    def read(
        self,
        where: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = ROW_LIMIT,
    ) -> pa.Table:
        """Return rows of the table at the version that the transaction reads, or as the stages of ``after`` leave it.

        :param where: Spark SQL predicate, of what :meth:`airflow_delta.hooks.delta.DeltaHook.get_df` evaluates.
        :param parameters: values of named parameters (``:day``) in ``where``.
        :param columns: names of columns; default: all.
        :param limit: number of rows that may be returned; ``None`` for any.
        :raises DeltaTableNotFoundException: if the table does not exist yet.
        :raises ReadLimitException: if there are more rows than ``limit``.
        :raises PredicateException: if ``where`` does not parse, or only Spark can evaluate it.
        """
        where = with_given(where, parameters, whose="where")
        rows = engine.table_rows(self._stage, where, columns=columns, limit=limit)
        self.note(where)
        return rows.to_table()

    def changes(self, start: int | datetime, end: int | datetime | None = None, *, limit: int | None = ROW_LIMIT) -> pa.Table:
        """Return the rows that changed between two commits, both inclusive; they conflict with no concurrent commit.

        :param start: a version, or a time (naive: UTC): the first commit at or after it.
        :param end: a version, or a time: the last commit at or before it. Default: the version that the transaction reads.
        :param limit: number of rows that may be returned; ``None`` for any.
        :raises DeltaIllegalStateException: if the table did not record changes throughout the range.
        """
        return engine.read_changes(
            self._stage.log, **change_bounds(start, end), limit=limit, snapshot=self._stage.snapshot
        ).to_table()

    def new_rows(
        self,
        name: str,
        where: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = ROW_LIMIT,
        **options: Unpack[NewRowsParameters],
    ) -> pa.RecordBatchReader:
        """Return the rows of another table that this one does not have yet; the commit records that it has them now.

        The rows are those that commits added after the position of the last run. No commit to that table conflicts with this
        read; a concurrent run that reads the same does.

        :param name: URI, absolute path, or name below the base path of the stage's connection.
        :param where: Spark SQL predicate, of what :meth:`airflow_delta.hooks.delta.DeltaHook.get_df` evaluates; rows that do not
            satisfy it are passed over for good.
        :param parameters: values of named parameters (``:day``) in ``where``.
        :param columns: names of columns; default: all.
        :param limit: number of rows that may be returned; ``None`` for any.
        :param options: :class:`~airflow_delta.tasks.stage.new_rows.NewRowsParameters`.
        :return: a reader, to be read once; ``read_all()`` makes a table of it.
        :raises DeltaUnsupportedOperationException: if rows were removed meanwhile.
        :raises VersionNotFoundException: if commits have left its log before they were read.
        :raises DeltaFileNotFoundException: if VACUUM has deleted files before they were read.
        """
        if self._others is None:
            raise DeltaIllegalArgumentException(f"This stage reads no other tables, so it cannot read the new rows of {name!r}.")
        where = with_given(where, parameters, whose="where")
        found = self._others.sources.find(self._stage, name, options)
        rows = engine.read_new_rows(found, where, columns=columns, limit=limit).to_reader()
        self.note_source(found.position)
        return rows

    def other(
        self,
        name: str,
        where: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = ROW_LIMIT,
    ) -> pa.Table:
        """Return rows of another table, at its version in ``read_versions``; no commit to it conflicts with this read.

        :param name: as ``read_versions`` has it.
        :param where: Spark SQL predicate, of what :meth:`airflow_delta.hooks.delta.DeltaHook.get_df` evaluates.
        :param parameters: values of named parameters (``:day``) in ``where``.
        :param columns: names of columns; default: all.
        :param limit: number of rows that may be returned; ``None`` for any.
        :raises DeltaIllegalArgumentException: if ``read_versions`` does not have the table.
        """
        if self._others is None:
            raise DeltaIllegalArgumentException(f"This stage has no read_versions, so it cannot read the table {name!r} by them.")
        where, table = with_given(where, parameters, whose="where"), self._others.read(name)
        return engine.read_table(table.log, version=table.version, where=where, columns=columns, limit=limit).to_table()


class DeltaStageArrowOperator(
    StageOperator, StageWorkParameters, GivenTable, WriteParameters, SqlParameters, ReadVersionsParameters, PythonOperator
):
    """Call a function and stage the rows that it returns, without Spark and without Java.

    The function returns a pyarrow Table or RecordBatchReader, a pandas or a Polars frame; a reader is written as it is read. It
    may name ``table`` (an :class:`ArrowTableReader`) and ``transaction`` (the handle) among its parameters. Rows are checked and
    cast as on Spark; what needs Spark (generated columns, a ``replace_where`` that selects some rows of a file, ``replace_on``)
    is refused by name.

    :param python_callable: function that returns the rows.
    :param new_files: files that the function reads: those of a source that the table does not have yet, each exactly once, as
        :class:`~airflow_delta.operators.copy_into.DeltaCopyIntoOperator` finds and records them. A directory, a file or a pattern
        of paths; or a mapping of one to options
        (:class:`~airflow_delta.tasks.stage.files_to_load.NewFilesParameters`). The function names ``new_files`` among its
        parameters and gets a tuple of :class:`~airflow_delta.tasks.stage.files_to_load.NewFile`. All of them count as loaded,
        also those that it passes over; if there are none, it is not called. (templated)
    :param write_options: ``compression`` and ``maxRecordsPerFile``, as for Spark's Parquet writer. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.stage.work.StageWorkParameters`,
    :class:`~airflow_delta.tasks.stage.work.GivenTable`, :class:`~airflow_delta.tasks.stage.write_options.WriteParameters` and
    :class:`~airflow_delta.tasks.stage.read_versions.ReadVersionsParameters`.
    """

    new_files: Any = parameter(default=None, templated=True)
    write_options: Mapping[str, Any] | None = parameter(default=None, templated=True)

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        kwargs.setdefault("show_return_value_in_logs", False)
        visible = without_injected(python_callable, *injected_by(kwargs))
        super().__init__(python_callable=visible, **kwargs)  # type: ignore[call-arg] # PythonOperator's
        self._found: SourceFiles | None = None
        self._check_new_files(inspect.signature(authors_own(python_callable)).parameters)
        check_no_session(python_callable, task_id=self.task_id)
        check_writer_options(self.write_options, whose=f"The task {self.task_id!r}")

    @staticmethod
    def literal_problems(given: Given) -> Iterator[str]:
        """Yield the options that need Spark whatever the table is."""
        for name in REPLACEMENTS:
            value = given(name)
            if any(is_literal(each) and each.strip() for each in (value if isinstance(value, list | tuple) else (value,))):
                yield f'{name} cannot go with engine="arrow": only Spark overwrites by {COMPARES}. Use engine="spark".'
        options = given("write_options")
        for name, value in options.items() if isinstance(options, Mapping) else ():
            if is_literal(value) or isinstance(value, int):
                problem = writer_option_problem(str(name), value)
                yield from () if problem is None else (f"it has {problem}.",)

    def table_uri(self, log: DeltaLog) -> str | None:
        """Return the worker's URI: the worker itself writes."""
        return log.uri

    def _check_new_files(self, named: Mapping[str, Any]) -> None:
        if self.new_files is None:
            return
        if "new_files" not in named:
            raise DeltaIllegalArgumentException(
                f"The stage {self.task_id!r} has new_files, and its function no parameter new_files: none of them would be read, "
                "and all count as loaded. Add the parameter."
            )
        if (mode := WriteOptions.of(self).mode) != "append":
            raise DeltaIllegalArgumentException(
                f"The stage {self.task_id!r} has new_files and mode={mode!r}, which would replace rows of files that count as "
                'loaded. Use mode="append".'
            )
        if isinstance(self.new_files, str | Mapping):
            parse_new_files(self.new_files, whose=f"the task {self.task_id!r}")

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Find the files to load, plan the write, and refuse one that needs Spark."""
        self._found = None
        if self.new_files is not None:
            self._check_new_files({"new_files": None})
            source, options = parse_new_files(self.new_files, whose=f"the task {self.task_id!r}")
            check_publishes_alone(self.opened, f"loads the files of {source!r}")
            _, self._found = find_new_files(stage, self.opened, source, options)
            if self._found.load is None:
                return stage.staged(mode="append")
        planned = WriteOptions.of(self).plan(stage, options=self.write_options)
        engine.check_possible(planned.request)
        return planned

    def work(self, stage: StageView, request: StageRequest) -> tuple[StageRequest, StageReport]:
        """Call the function and write its rows; raises as :func:`airflow_delta.table.arrow.stage_rows.stage_arrow` does."""
        self._reads = table = ArrowTableReader(stage, self.hold(ReadVersions).tables(self.opened))
        injected = {"table": table, "transaction": stage.handle}
        found = self._found
        if found is None:
            return request, engine.stage_arrow(stage.log, call_function(self, injected), request)
        found.check()
        report = engine.stage_arrow(stage.log, call_function(self, {**injected, "new_files": new_files(found)}), request)
        found.check()  # a reader is read while it is written
        if found.load is not None:
            table.note_load(found.load)
        return request, report
