"""What a stage is asked to do on Spark, and what it reports back.

Both are plain JSON, so that they reach a job on any cluster as configuration or as a file and come back as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.masking import has_user_info, masked
from airflow_delta.staging.contract import CONTRACT, Payload, ScanPlan
from airflow_delta.staging.options import check_source, check_writer_options
from airflow_delta.staging.rules import TableRules

NUM_FILES, NUM_ROWS, NUM_BYTES = "numFiles", "numRows", "numBytes"
"""Keys of ``StageReport.written``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRequest(Payload):
    """What one attempt of a stage has to write, and where.

    :param table: URI of the table as Spark reaches it (``s3a://`` where the worker says ``s3://``); not URL-encoded.
    :param directory: directory of the attempt, relative to the table root.
    :param mode: ``append``, ``overwrite`` or ``dynamic``.
    :param replace_where: predicate text of an overwrite; rows to be written must satisfy it.
    :param predicate: the same as Spark SQL that means the same in every session, for Spark to evaluate.
    :param schema_string: the table's schema (Spark's JSON form), ``None`` when the written data decides it.
    :param partition_columns: columns to partition the files by.
    :param options: options of Spark's Parquet writer (``compression``, ``maxRecordsPerFile``, ...).
    :param scan: the table at the version that the transaction reads, for jobs that read it.
    :param rewrite: files whose rows may match a ``replaceWhere`` on data columns; the rows that the predicate does not
        select have to be written again.
    :param rules: what the table's features ask of the rows.
    :param arguments: of an operation other than ``WRITE``: plain JSON, see the module of :mod:`airflow_delta.commands` that
        plans it.
    :param deletion_vectors: rows that go are marked as deleted, and their files stay; else the rows that stay are written again.
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

    def __post_init__(self) -> None:
        """Refuse what must not be written down: a request lies beside the table.

        :raises DeltaIllegalArgumentException: the location, an option or the source brings credentials, or may do so.
        """
        whose = f"the stage {self.stage}"
        if has_user_info(self.table):
            raise DeltaIllegalArgumentException(
                f"The location that {whose} gives Spark has credentials in it ({masked(self.table)}). Set them in the Spark "
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
    :param copied_directories: directories with rows of replaced files that were written again.
    :param rewritten_files: paths, as the log has them, of the files whose rows are in ``copied_directories`` or are
        selected by the predicate; the commit removes them.
    :param change_directories: directories with change data of the rows that were replaced.
    :param vector_directories: directories with the rows that are marked as deleted: Parquet with ``file`` (path as the log has
        it), ``number`` and ``word``: 64 rows of a file, from row ``64 * number`` on, a bit for each that goes.
    :param path: URI of the attempt's directory as Spark reached it.
    :param written: what Spark says of each of these directories: ``numFiles``, ``numRows`` and ``numBytes``; files and bytes are
        null where Spark cannot list them. The worker must find exactly that.
    :param metrics: what the operation counted, by the name that ``operationMetrics`` has for it.
    :param identities: identity columns whose values the stage generated.
    :param schema_string: Spark's JSON form of what was written, data and partition columns, under their logical names.
    :param time_zone: time zone of timestamps in the names of partition directories, or
        :data:`airflow_delta.staging.zones.AS_IN_LOG`.
    :param answers: of an ``AUDIT``: JSON forms of :class:`~airflow_delta.staging.audit.SqlAnswer`.
    :param error_class: class name of the error when the stage failed.
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
    metrics: dict[str, int] = field(default_factory=dict)
    identities: tuple[str, ...] = ()
    schema_string: str = ""
    partition_columns: tuple[str, ...] = ()
    time_zone: str = "UTC"
    answers: tuple[dict, ...] = ()  # type: ignore[type-arg]
    error_class: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AbortResult(Payload):
    """What an abort did.

    :param outcome: ``committed`` (nothing to abort: the log holds the transaction), ``deleted`` (no live commit can publish,
        the staged files were deleted) or ``marked`` (a commit may be alive: the transaction is marked as aborted, and
        maintenance deletes the files after its grace time).
    :param version: version that holds the transaction, under ``committed``.
    :param reason: one sentence for the log.
    """

    contract: int = CONTRACT
    transaction_id: str
    table: str
    outcome: str
    version: int | None = None
    num_deleted_files: int = 0
    reason: str = ""
