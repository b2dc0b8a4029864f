"""Turn Parquet files of a stage into ``add`` actions: statistics from footers, partition values from directories.

All files that Spark wrote must be found first: a missing directory is never an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.request import NUM_BYTES, NUM_FILES, NUM_ROWS, StageReport, StageRequest
from airflow_delta.contract.schema import TYPED_VALUE, WRITE_WHOLE
from airflow_delta.contract.staging_directory import is_hidden
from airflow_delta.contract.zones import AS_IN_LOG
from airflow_delta.exceptions import InvariantViolationException, StagedFileException, StagingException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log import heavy
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.features.identity_columns import identity_columns
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructField, StructType
from airflow_delta.log.schema.walk import Path, dotted
from airflow_delta.log.statistics.footers_to_stats import FooterStatistics
from airflow_delta.log.storage.progress import tracked
from airflow_delta.table.files.partitions import partition_values, time_zone_of, url_encode
from airflow_delta.table.files.written_here import WrittenHere

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import FileStatus
    from airflow_delta.log.table_definition import TableDefinition


def check_written(
    log: DeltaLog, request: StageRequest, report: StageReport, directory: str, statuses: Sequence[FileStatus]
) -> None:
    """Check the number of files and bytes of a directory.

    :param directory: its name below the attempt's.
    :raises StagedFileException: if the files are not those that Spark wrote.
    :raises StagingException: if the report does not say what Spark wrote.
    """
    said = _said(log, request, report, directory)
    found = {NUM_FILES: len(statuses), NUM_BYTES: sum(status.size for status in statuses)}
    if any(said[name] is not None and said[name] != count for name, count in found.items()) or (said[NUM_ROWS] and not statuses):
        raise _differs(log, request, report, directory, f"{found[NUM_FILES]} files of {found[NUM_BYTES]} bytes")


def check_rows(log: DeltaLog, request: StageRequest, report: StageReport, directory: str, rows: int) -> None:
    """Check the number of rows of a directory, after its footers were read.

    :raises StagedFileException: if the number of rows is not the one that Spark wrote.
    """
    if _said(log, request, report, directory)[NUM_ROWS] != rows:
        raise _differs(log, request, report, directory, f"{rows} rows")


def _said(log: DeltaLog, request: StageRequest, report: StageReport, directory: str) -> dict[str, int | None]:
    said = report.written.get(directory)
    if said is None or not isinstance(said.get(NUM_ROWS), int):
        raise log.error(
            StagingException,
            f"The report of stage {request.stage} does not say how many rows Spark wrote to {directory}: it comes from another "
            "version of airflow-provider-delta. Use one version for worker and cluster, and "
            "clear the start task with everything downstream.",
            version=request.read_version,
        )
    return {name: said.get(name) for name in (NUM_FILES, NUM_ROWS, NUM_BYTES)}


def _differs(log: DeltaLog, request: StageRequest, report: StageReport, directory: str, found: str) -> StagedFileException:
    said = _said(log, request, report, directory)
    wrote = f"{said[NUM_ROWS]} rows"
    if said[NUM_FILES] is not None:
        wrote += f" in {said[NUM_FILES]} files of {said[NUM_BYTES]} bytes"
    return log.error(
        StagedFileException,
        f"Stage {request.stage}: Spark wrote {wrote} to {report.path or request.path}/{directory}, the worker finds {found} in "
        f"{log.uri.rstrip('/')}/{request.directory}/{directory}. Both must be the same place, shared by driver, executors and "
        "worker: check spark_table_uri, and that no machine writes to its own disk. Nothing was staged.",
        version=request.read_version,
    )


def variant_paths(schema: StructType, *, mapped: bool) -> list[Path]:
    """Return where variants are in files of a schema, at every depth.

    :param mapped: files have physical names.
    """

    def walk(data_type: DataType, path: Path) -> Iterator[Path]:
        match data_type:
            case StructType(fields):
                for part in fields:
                    yield from walk(part.data_type, (*path, part.physical_name if mapped else part.name))
            case ArrayType(element, _):
                yield from walk(element, (*path, "element"))
            case MapType(key, value, _):
                yield from walk(key, (*path, "key"))
                yield from walk(value, (*path, "value"))
            case _ if data_type.name == "variant":
                yield path

    return list(walk(schema, ()))


def shredded(footer: pq.FileMetaData, variants: Sequence[Path]) -> str | None:
    """Return the column that a file stores as a shredded variant: values of one kind in columns of their own (``typed_value``).

    :param variants: from :func:`variant_paths`.
    :returns: ``None`` if all variants are whole.
    """
    paths = heavy.leaf_paths(footer) if variants else []
    return next((dotted(at) for at in variants if any(path[: len(at) + 1] == (*at, TYPED_VALUE) for path in paths)), None)


CONCURRENCY = 32


@dataclass(slots=True)
class DataFiles:
    """Data files of a stage, as actions.

    :param marks: last values of the requested identity columns.
    """

    adds: list[AddFile] = field(default_factory=list)
    rows: int = 0
    marks: dict[str, int] = field(default_factory=dict)


def find_data_files(log: DeltaLog, directory: str) -> list[FileStatus]:
    """Return the files under a directory that readers do not ignore, sorted by path.

    :raises StagedFileException: if a job is still writing there or died while writing, or there is a symbolic link.
    """
    found = []
    for status in tracked(log.store.list_recursive(directory), f"Listing {directory} of {log.uri}"):
        relative = status.path.removeprefix(f"{directory}/")
        if is_unfinished(relative):
            raise unfinished(log, directory, relative)
        if is_hidden(relative):
            continue
        if status.is_link:
            raise log.error(
                StagedFileException,
                f"{status.path} of table {log.uri} is a symbolic link. Have the job write the file itself: only files in the "
                "table can be published.",
            )
        found.append(status)
    return sorted(found, key=lambda status: status.path)


def is_unfinished(relative: str) -> bool:
    """Return whether a job has yet to move a file to its place."""
    return "_temporary" in relative.split("/")


def unfinished(log: DeltaLog, directory: str, relative: str) -> StagedFileException:
    """Return the error of a directory that a job is still writing to, or died writing to."""
    return log.error(
        StagedFileException,
        f"{directory} of table {log.uri} holds {relative}: its job is still running or died. Run it again with "
        "another directory.",
    )


class Footers:
    """Turns Parquet files into ``add`` actions."""

    def __init__(
        self,
        log: DeltaLog,
        table: TableDefinition,
        written: TableDefinition,
        time_zone: str,
        *,
        overwrite_schema: bool = False,
    ) -> None:
        """Take what decides about the actions.

        :param table: what the table is; of a new one perhaps without columns.
        :param written: what the rows of the files are by themselves.
        :param overwrite_schema: the files decide the schema.
        """
        self._log = log
        self._table = table
        self._schema = written.schema
        fields = [self._schema.find(name) for name in written.partition_columns]
        # Partition values are known by physical names, as statistics are.
        self._types = {self._stored_name(f): f.data_type for f in fields if f is not None}
        self._partition_columns = [f.name for f in fields if f is not None]
        self._zone = None if time_zone == AS_IN_LOG else time_zone_of(time_zone)
        not_null = [] if overwrite_schema else [f for f in table.schema.fields if not f.nullable]
        self._not_null = [self._stored_name(f) for f in not_null]
        self._not_null_variants = [self._stored_name(f) for f in not_null if f.data_type.name == "variant"]
        # As in Delta, if a deletion vector may loosen the bounds later.
        self._tight_bounds = "deletionVectors" in table.features

    def collect(
        self,
        directory: str,
        into: DataFiles,
        statuses: Sequence[FileStatus] | None = None,
        footers: Sequence[pq.FileMetaData] | None = None,
        *,
        identities: Sequence[str] = (),
    ) -> None:
        """Add the files of a directory with at least one row.

        :param footers: of ``statuses``, if already read.
        :param identities: columns whose last value is needed.
        """
        statuses = find_data_files(self._log, directory) if statuses is None else statuses
        if not statuses:
            return
        schema = self._schema.without(self._partition_columns)
        variants = variant_paths(schema, mapped=self._table.column_mapping != "none")
        footers = heavy.read_footers(self._log.store, statuses, CONCURRENCY) if footers is None else footers
        statistics = FooterStatistics(schema, self._table.properties, tight_bounds=self._tight_bounds)
        for status, footer in zip(statuses, footers, strict=True):
            if footer.num_rows == 0:
                continue
            if (column := shredded(footer, variants)) is not None:
                raise self._shredded(status.path, column)
            relative = status.path.removeprefix(f"{directory}/").rpartition("/")[0]
            values = partition_values(relative, self._types, self._zone, table=self._log.uri)
            self._check_not_null(status.path, footer, values)
            self._note_identities(status.path, footer, identities, into)
            into.rows += footer.num_rows
            into.adds.append(
                AddFile(
                    path=url_encode(status.path),
                    partition_values=values,
                    size=status.size,
                    modification_time=status.modification_time,
                    data_change=True,
                    stats=statistics.of(footer, file=status.path),
                )
            )

    def collect_written(
        self, request: StageRequest, report: StageReport, name: str, into: DataFiles, *, identities: Sequence[str] = ()
    ) -> None:
        """Add the files of a directory that Spark wrote, after checking that they are what it wrote.

        :param name: of the directory, below the attempt's.
        """
        directory, before = f"{request.directory}/{name}", into.rows
        statuses = find_data_files(self._log, directory)
        check_written(self._log, request, report, name, statuses)
        footers = None
        if isinstance(report, WrittenHere):
            root = len(request.directory) + 1
            kept = [report.footer_of(status.path[root:], status.size) for status in statuses]
            footers = [footer for footer in kept if footer is not None]
            footers = footers if len(footers) == len(statuses) else None
        self.collect(directory, into, statuses, footers, identities=identities)
        check_rows(self._log, request, report, name, into.rows - before)

    def _note_identities(self, path: str, footer: Any, identities: Sequence[str], into: DataFiles) -> None:
        if not identities:
            return
        from airflow_delta.table.files.footer_statistics import bounds_of_column

        steps = {column.name: column.step for column in identity_columns(self._schema)}
        for name in identities:
            field = self._schema.find(name)
            bounds = None if field is None else bounds_of_column(footer, self._stored_name(field))
            if bounds is None:
                raise self._log.error(
                    StagedFileException,
                    f"The footer of {path} of table {self._log.uri} does not say which values its identity column {name} has. "
                    "Keep statistics enabled in Spark's Parquet writer.",
                )
            low, high = bounds
            last = high if steps[name] > 0 else low
            pick = max if steps[name] > 0 else min
            into.marks[name] = pick(into.marks.get(name, last), last)

    def _shredded(self, path: str, column: str) -> StagedFileException:
        return self._log.error(
            StagedFileException,
            f"{path} of table {self._log.uri} stores column {column} as a shredded variant. {WRITE_WHOLE} Nothing was committed.",
            version=self._table.version,
        )

    def _stored_name(self, field: StructField) -> str:
        return field.physical_name if self._table.column_mapping != "none" else field.name

    def _check_not_null(self, path: str, footer: Any, values: Mapping[str, str | None]) -> None:
        if not self._not_null:
            return
        from airflow_delta.table.files.footer_statistics import footer_null_counts

        names = [name for name in self._not_null if name not in values]
        counts = footer_null_counts(footer, names, self._not_null_variants)
        counts.update({name: int(values[name] is None) for name in self._not_null if name in values})
        for name, count in counts.items():
            if count:
                raise self._log.error(
                    InvariantViolationException,
                    f"NOT NULL column {name} of table {self._log.uri} is {'missing or ' if count < 0 else ''}null in "
                    f"{path}. Nothing was committed; filter such rows out or fill them.",
                    version=self._table.version,
                )
