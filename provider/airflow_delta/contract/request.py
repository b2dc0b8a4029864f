"""The request of a stage to Spark, and Spark's report.

Both are plain JSON: a job on any cluster gets the request as configuration or a file, and writes the report as a file.
"""

from __future__ import annotations

from dataclasses import field

from airflow_delta.contract.key_values import KeyValues
from airflow_delta.contract.options import check_source, check_writer_options
from airflow_delta.contract.payloads import CONTRACT, Payload, ScanPlan, SourcePosition
from airflow_delta.contract.table_rules import TableRules
from airflow_delta.exceptions import DeltaIllegalArgumentException, TableRead
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.masking import has_user_info, masked

NUM_FILES, NUM_ROWS, NUM_BYTES = "numFiles", "numRows", "numBytes"
"""Keys of ``StageReport.written``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceScan(Payload):
    """New rows of another table, for a job that reads them.

    :param name: as the job calls the table.
    :param position: what the commit records.
    :param scan: the files.
    :param view: name of the view that they are in SQL; ``None``: the job asks for them.
    """

    name: str
    position: SourcePosition
    scan: ScanPlan
    view: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewScan(Payload):
    """Rows of a table that are a view in the SQL of a job.

    :param name: of the view.
    :param scan: the files.
    :param own: they are rows of the table that the stage is for: all that the predicate of the scan selects count as read.
    """

    name: str
    scan: ScanPlan
    own: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRequest(Payload, TableRead):
    """What one attempt of a stage has to write, and where.

    :param table: URI of the table for Spark (``s3a://`` for the worker's ``s3://``); not URL-encoded.
    :param directory: directory of the attempt, relative to the table root.
    :param mode: ``append``, ``overwrite`` or ``dynamic``.
    :param replace_where: predicate of an overwrite; rows to write must satisfy it.
    :param predicate: the same as Spark SQL that does not depend on session settings.
    :param schema_string: the table's schema (Spark's JSON form), ``None`` if the data decide it.
    :param partition_columns: columns to partition files by.
    :param options: options of Spark's Parquet writer (``compression``, ``maxRecordsPerFile``, ...).
    :param scan: the table at the version read, for jobs that read it.
    :param sources: new rows of other tables, for jobs that read them.
    :param views: what the SQL of a job reads beside them.
    :param rewrite: files with rows that may be selected by the predicate; their other rows have to be written again.
    :param rules: rules of the table's features for rows.
    :param arguments: JSON form of the operation's :class:`~airflow_delta.contract.arguments.Arguments`.
    :param deletion_vectors: mark deleted rows and keep their files, rather than write the other rows again.
    """

    contract: int = CONTRACT
    transaction_id: str
    table: str
    read_version: int
    stage: str
    task_id: str
    map_index: int = -1
    attempt: str
    directory: str
    operation: str = "WRITE"
    mode: str = "append"
    replace_where: str | None = None
    predicate: str | None = None
    schema_string: str | None = None
    partition_columns: tuple[str, ...] = ()
    merge_schema: bool = False
    overwrite_schema: bool = False
    options: dict[str, str] = field(default_factory=dict)
    scan: ScanPlan | None = None
    rewrite: ScanPlan | None = None
    rules: TableRules = field(default_factory=TableRules)
    arguments: dict = field(default_factory=dict)  # type: ignore[type-arg]
    deletion_vectors: bool = False
    sources: tuple[SourceScan, ...] = ()
    views: tuple[ViewScan, ...] = ()

    def __post_init__(self) -> None:
        """Refuse credentials and what may be secret: a request is stored beside the table.

        :raises DeltaIllegalArgumentException: if the location, an option or the source has some.
        """
        whose = f"the stage {self.stage}"
        if has_user_info(self.table):
            raise DeltaIllegalArgumentException(
                f"The location that {whose} gives Spark contains credentials ({masked(self.table)}). Set them in the Spark "
                "connection or on the cluster."
            )
        check_writer_options(self.options, whose=whose)
        check_source(self.arguments.get("source"), whose=whose)

    @property
    def path(self) -> str:
        """Return the URI of the attempt's directory as Spark reaches it."""
        return f"{self.table.rstrip('/')}/{self.directory}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageReport(Payload):
    """What one attempt of a stage wrote.

    :param directories: directories with new rows, relative to the attempt's directory.
    :param copied_directories: directories with copied rows of replaced files.
    :param rewritten_files: paths in the log of files whose rows are copied or selected by the predicate; the commit removes them.
    :param change_directories: directories with change data of replaced rows.
    :param vector_directories: directories with rows to mark as deleted: Parquet with ``file`` (path in the log), ``number`` and
        ``word``: a bit for each of the 64 rows of the file from row ``64 * number`` on.
    :param path: URI of the attempt's directory for Spark.
    :param written: ``numFiles``, ``numRows`` and ``numBytes`` of each of these directories; files and bytes are null if Spark
        cannot list them. The worker must find exactly that.
    :param first_rows: of an OPTIMIZE or a REORG, for directories with one file whose rows are known to be those of the rewritten
        files, one file after the other, each file's in order: pairs of a file's position in the request and of its first row in
        the new file.
    :param metrics: what the operation counted, by its name in ``operationMetrics``.
    :param identities: identity columns with generated values.
    :param furthest: of a check for SYNC IDENTITY: the furthest value of a column, if there is one.
    :param schema_string: Spark's JSON form of the schema written: data and partition columns under their logical names.
    :param time_zone: time zone of timestamps in the names of partition directories, or
        :data:`airflow_delta.contract.zones.AS_IN_LOG`.
    :param keys: what the rows of the source have in the columns that the table was searched by; ``None`` if all that a predicate
        selects was read, or no column has values that can be compared elsewhere.
    :param answers: of an ``AUDIT``: JSON forms of :class:`~airflow_delta.contract.audit.SqlAnswer`.
    :param differences: of a ``SchemaDriftException``.
    :param error_class: class name of the error if the stage failed.
    """

    contract: int = CONTRACT
    transaction_id: str
    stage: str
    attempt: str
    directories: tuple[str, ...] = ()
    copied_directories: tuple[str, ...] = ()
    rewritten_files: tuple[str, ...] = ()
    change_directories: tuple[str, ...] = ()
    vector_directories: tuple[str, ...] = ()
    path: str = ""
    written: dict[str, dict] = field(default_factory=dict)  # type: ignore[type-arg]
    first_rows: dict[str, list] = field(default_factory=dict)  # type: ignore[type-arg]
    metrics: dict[str, int] = field(default_factory=dict)
    identities: tuple[str, ...] = ()
    furthest: dict[str, int] = field(default_factory=dict)
    schema_string: str = ""
    partition_columns: tuple[str, ...] = ()
    time_zone: str = "UTC"
    keys: KeyValues | None = None
    answers: tuple[dict, ...] = ()  # type: ignore[type-arg]
    differences: tuple[dict, ...] = ()  # type: ignore[type-arg]
    error_class: str | None = None
    error_message: str | None = None


def is_report_of(report: StageReport, request: StageRequest) -> bool:
    """Return whether a report is that of a run of this request."""
    asked = (request.transaction_id, request.stage, request.attempt)
    return (report.transaction_id, report.stage, report.attempt) == asked
