"""The values passed between the tasks of a transaction, and their JSON forms.

Standard library only: this module is shipped to clusters. Field names in JSON are Delta's own (camelCase); ``docs/xcom.md``
documents what travels in XCom. Data goes one way: handle -> scan plan -> staged write -> commit result.
"""

from __future__ import annotations

import hashlib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import ContractVersionException, StagingException, TableRead
from airflow_delta.light_dataclasses import dataclass

if TYPE_CHECKING:
    from typing import Self  # not in Python 3.10, which clusters may have

CONTRACT = 1
"""Version of this contract. A payload of another version is refused."""

WORD_BITS = 34
"""Bits of ``key`` in ``ScanPlan.deletedRows`` for the number of a word in its file: enough for 2^40 rows."""

Json = dict[str, Any]

_PLAIN = (str, int, float, bool)


@cache
def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.title() for part in tail)


@cache  # resolving them evaluates every annotation
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@cache  # of a transaction's thousand reports, each has a dozen fields
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(hint), typing.get_args(hint)


class _Field(typing.NamedTuple):
    """A field of a payload.

    :param accepted: types of values that are taken as they are.
    """

    name: str
    key: str
    hint: Any
    accepted: frozenset[type]
    is_required: bool


@cache
def _fields(kind: type) -> tuple[_Field, ...]:
    hints = _hints(kind)
    return tuple(
        _Field(f.name, _camel(f.name), hint, _accepted(hint), f.default is MISSING and f.default_factory is MISSING)
        for f in fields(kind)
        for hint in (hints[f.name],)
    )


def _accepted(hint: Any) -> frozenset[type]:
    origin, args = _parts(hint)
    alternatives = args if origin in (typing.Union, types.UnionType) else (hint,)
    return frozenset(each for each in alternatives if each in (*_PLAIN, type(None)))


def _check(kind: str, name: str, hint: Any, value: Any) -> Any:
    """Return ``value`` as the field's type, or raise; bool is not an int here."""
    if type(value) is hint and hint in _PLAIN:
        return value
    origin, args = _parts(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _check(kind, name, next(a for a in args if a is not type(None)), value)
    if isinstance(hint, type) and issubclass(hint, Payload):
        return hint.from_dict(value)
    if origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(_check(kind, name, args[0], v) for v in value)
    elif origin is dict or hint is dict:
        if isinstance(value, Mapping):
            return dict(value)
    elif hint is Any or (isinstance(value, hint) and not (hint is int and isinstance(value, bool))):
        return value
    raise StagingException(f"{kind}.{_camel(name)} has the value {value!r}, expected {getattr(hint, '__name__', hint)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """A frozen value with a JSON form (:meth:`to_dict`, :meth:`from_dict`)."""

    def to_dict(self) -> Json:
        """Return plain JSON: dicts, lists, strings, numbers, booleans, ``None``."""
        return {_camel(f.name): _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Build from the JSON form; unknown fields are ignored.

        :raises ContractVersionException: if the payload has another contract number.
        :raises StagingException: if a field is missing or has another type.
        """
        kind = cls.__name__
        if not isinstance(value, Mapping):
            raise StagingException(f"Expected the JSON form of {kind}, got {type(value).__name__}: {str(value)[:80]}")
        if "contract" in _hints(typing.cast("type", cls)) and value.get("contract") != CONTRACT:
            raise ContractVersionException(
                f"{kind} was written under contract {value.get('contract')!r}, this provider reads contract {CONTRACT}. "
                "Run start, stage and commit with one version of airflow-provider-delta, then clear the start task."
            )
        known: Json = {}
        for name, key, hint, accepted, is_required in _fields(typing.cast("type", cls)):
            if key in value:
                found = value[key]
                known[name] = found if type(found) in accepted else _check(kind, name, hint, found)
            elif is_required:
                raise StagingException(f"{kind} lacks the field {key}")
        return cls(**known)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int)):  # most are, and asking for the others takes longer
        return value
    if isinstance(value, Payload):
        return value.to_dict()
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitResult(Payload):
    """Result of a commit: the XCom of the commit task and the ``extra`` of its asset event.

    :param version: the version that holds the transaction.
    :param committed_before: the log already held the transaction, and nothing was written.
    :param committed_by: with ``committed_before``: ``dagId``, ``runId``, ``taskId`` and ``mapIndex`` of the task that wrote the
        commit, and what Airflow had scheduled its run for (``scheduledFor``), as its tags say; ``None`` if the log does not.
    :param attempts: attempts to write the log entry, 1 if the first one won.
    :param versions_checked: winning commits checked for conflicts.
    :param timestamp: milliseconds since the epoch of the commit.
    :param auto_compaction: what auto compaction should compact now: ``version``, ``partitions``, ``numSmallFiles``,
        ``smallFileBytes``, ``minFileSize`` and ``maxFileSize``; ``None`` if the table does not ask for it, or nothing is due.
    :param resolved: how winning commits that Delta's own rules would have called a conflict turned out not to be one
        (``statistics``, ``keys``, ``rows``, ``moved``, ``dropped``), to their versions, as in ``3-12,15``.
    """

    contract: int = CONTRACT
    table: str
    table_id: str | None = None
    version: int
    read_version: int
    transaction_id: str
    app_id: str | None = None
    txn_version: int | None = None
    operation: str
    attempts: int = 1
    versions_checked: int = 0
    committed_before: bool = False
    isolation_level: str | None = None
    is_blind_append: bool | None = None
    timestamp: int | None = None
    num_files: int = 0
    num_removed_files: int = 0
    num_records: int | None = None
    num_bytes: int = 0
    partitions: tuple[dict, ...] = ()  # type: ignore[type-arg]
    auto_compaction: dict | None = None  # type: ignore[type-arg]
    resolved: dict[str, str] = field(default_factory=dict)
    committed_by: dict | None = None  # type: ignore[type-arg]

    @property
    def committed_nothing(self) -> bool:
        """Whether there was nothing to do (such as COMPUTE STATS of a table that has them); ``version`` is the version read."""
        return not (self.attempts or self.committed_before or self.num_files or self.num_removed_files)


@dataclass(frozen=True, kw_only=True, slots=True)
class AbortResult(Payload):
    """Result of an abort.

    :param outcome: ``committed`` (the log holds the transaction), ``deleted`` (no commit is alive: the staged files were
        deleted), ``marked`` (a commit may be alive: the transaction is marked as aborted, and maintenance deletes the files
        after its grace time) or ``undone`` (its publication of several tables was taken back).
    :param version: under ``committed`` and ``undone``: the version that holds the transaction.
    :param reason: one sentence for the log.
    """

    contract: int = CONTRACT
    transaction_id: str
    table: str
    outcome: str
    version: int | None = None
    num_deleted_files: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionHandle(Payload, TableRead):
    """One execution of the start task: the version read, and where to stage. Holds no secrets.

    What it says of the table itself (schema, partitioning, properties, features) is for people. Tasks take it from the log at the
    version read, and of a table that does not exist from the Dag file.

    :param transaction_id: UUID of this execution of start; also ``commitInfo.txnId`` of the commit.
    :param table: URI of the table.
    :param table_id: the table's id, ``None`` if it does not exist.
    :param read_version: the version read, -1 if the table does not exist.
    :param schema_string: Spark's JSON form of the table's schema, ``None`` if it does not exist.
    :param configuration: table properties; if the table does not exist, those to create it with.
    :param staging_path: URI that the stages of this transaction write below.
    :param app_id: the transaction key, the ``appId`` of the ``txn`` action of the commit.
    :param txn_version: its ``version``.
    :param monotonic: the version was given (Delta's monotonic scheme), and does not count the commits of this key.
    :param rerun_policy: ``skip``, ``replace``, ``append`` or ``fail``.
    :param features: table features that the protocol supports.
    :param committed: under ``skip``: the commit that already holds this key; stages then do nothing.
    :param delta_conn_id: connection of the other tasks to the table.
    :param timestamp: time of the version read, in milliseconds since the epoch.
    :param given_table: the table as given to the start task; with ``delta_conn_id`` the name of its asset.
    """

    contract: int = CONTRACT
    transaction_id: str
    table: str
    table_id: str | None = None
    read_version: int
    schema_string: str | None = None
    partition_columns: tuple[str, ...] = ()
    configuration: dict[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    name: str | None = None
    description: str | None = None
    staging_path: str
    app_id: str
    txn_version: int
    monotonic: bool = False
    rerun_policy: str = "skip"
    isolation_level: str = "Serializable"
    delta_conn_id: str | None = None
    timestamp: int | None = None
    committed: CommitResult | None = None
    given_table: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanVector(Payload):
    """The rows of a file that its deletion vector marks as deleted.

    Positions are stored as words: the position divided by 64, and a 64-bit number with a bit for each remainder.

    :param number: number of the file among the files of the plan with a vector.
    :param cardinality: rows that are deleted.
    :param num_words: number of words.
    :param words: the words: pairs of little-endian 64-bit integers, zlib, Base64; ``None`` if they are in
        ``ScanPlan.deletedRows``.
    """

    number: int
    cardinality: int
    num_words: int
    words: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanFile(Payload):
    """A file of a scan plan.

    :param path: path in the log (URL-encoded, relative to the table or absolute).
    :param partition_values: serialised partition values by physical name.
    :param size: bytes.
    :param deletion_vector: deleted rows of the file, ``None`` if there are none.
    :param num_records: rows of the file that are not deleted, ``None`` if its statistics do not have the number.
    """

    path: str
    partition_values: dict[str, str | None]
    size: int
    deletion_vector: ScanVector | None = None
    num_records: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanPlan(Payload, TableRead):
    """The files of the table at the version read, after partition pruning and data skipping.

    :param schema_string: Spark's JSON form of the table's schema at that version.
    :param partition_columns: logical names.
    :param predicate: the predicate of the plan; rows must still be filtered by it.
    :param column_mapping: ``none``, ``name`` or ``id``: how columns of the schema are found in files.
    :param files: the files.
    :param deleted_rows: Parquet file with the deleted rows of all files, relative to the table, if they are too many for the
        plan: ``key`` (number of the file times 2^34 plus number of the word) and ``word``.
    """

    contract: int = CONTRACT
    transaction_id: str
    table: str
    read_version: int
    schema_string: str
    partition_columns: tuple[str, ...] = ()
    predicate: str | None = None
    column_mapping: str = "none"
    files: tuple[ScanFile, ...] = ()
    deleted_rows: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestRef(Payload):
    """A file of an attempt that holds what is too much for XCom.

    :param path: relative to the table root.
    :param count: number of items (lines).
    :param sha256: hex digest of its bytes.
    :param size: bytes.
    """

    path: str
    count: int
    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRead(Payload):
    """Rows of the table that a stage read because they equal a row of its source in some columns, as a MERGE does.

    Values are in JSON form: integers, text, booleans; dates as ``YYYY-MM-DD`` and decimals as text.

    :param predicate: what else is true for the rows that were read; one of ``ReadSet.predicates``, which it makes narrower.
    :param columns: columns of the table.
    :param null_safe: for each column, whether null equals null (``<=>``) or nothing (``=``).
    :param low: the source's least value of each column; null if it has only nulls.
    :param high: the greatest.
    :param nulls: whether the source has nulls in each column.
    :param rows: the source's values, a list for each row, distinct or not; ``None``: too many, or in ``file``.
    :param file: a file that holds them, a JSON list on each line.
    """

    predicate: str
    columns: tuple[str, ...]
    null_safe: tuple[bool, ...]
    low: tuple[Any, ...]
    high: tuple[Any, ...]
    nulls: tuple[bool, ...]
    rows: tuple[tuple[Any, ...], ...] | None = None
    file: ManifestRef | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredReads(Payload):
    """What a stage read; the commit checks it against concurrent commits.

    :param predicates: Spark SQL, one for each read.
    :param files: paths in the log of files that the stage read and rewrote.
    :param whole_table: the whole table was read.
    :param app_ids: application ids whose versions were read.
    :param marked: those predicates all of whose rows the stage has marked in deletion vectors, and for which it read no others.
    :param scanned: those predicates for which rows that the stage left unchanged count as read, in files that are not listed: a
        MERGE inserts a row because no row matches.
    :param keys: narrower forms of some predicates.
    :param selected: ``whole_table`` means the rows that ``keys`` select, anywhere in the table.
    """

    predicates: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    whole_table: bool = False
    app_ids: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()
    scanned: tuple[str, ...] = ()
    keys: tuple[KeyRead, ...] = ()
    selected: bool = False

    def with_others(self, predicates: tuple[str, ...] = (), *, whole_table: bool = False) -> DeclaredReads:
        """Return these with other reads of the same stage, such as those of its query.

        :param predicates: all rows that they select were read.
        """
        if not whole_table and not predicates:
            return self
        return replace(
            self,
            predicates=tuple(dict.fromkeys((*self.predicates, *predicates))),
            whole_table=self.whole_table or whole_table,
            selected=self.selected and not whole_table,
            # All rows of these predicates were read, whichever of them the stage itself has looked for.
            marked=tuple(text for text in self.marked if text not in predicates),
            scanned=tuple(dict.fromkeys((*self.scanned, *predicates))),
            keys=tuple(key for key in self.keys if key.predicate not in predicates),
        )


POSITION_APP = "airflow.newRows/"
"""What the application ids begin with whose ``txn`` versions are positions in other tables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePosition(Payload):
    """Rows of another table that a stage read because no commit has them yet. The commit moves the position past them.

    :param table: URI of the other table.
    :param table_id: its id.
    :param consumer: who reads, as the author calls it.
    :param before: the last version whose rows the target had; -1: none.
    :param first: the first version whose new rows were read; ``None``: all rows of ``version`` were.
    :param version: the last version whose rows were read.
    """

    contract: int = CONTRACT
    table: str
    table_id: str
    consumer: str
    before: int = -1
    first: int | None = None
    version: int

    @property
    def app_id(self) -> str:
        """The ``appId`` under which the target's log has the position."""
        return f"{self.prefix(self.consumer)}{self.location(self.table)}/{self.table_id}"

    @property
    def versions(self) -> dict[str, int]:
        """What the commit sets, by application id."""
        return {self.app_id: self.version}

    @staticmethod
    def prefix(consumer: str) -> str:
        """Return what the application ids of all positions of a consumer begin with."""
        return f"{POSITION_APP}{consumer}/"

    @staticmethod
    def location(table: str) -> str:
        """Return the part of an application id that tells locations apart, of any length."""
        return hashlib.sha256(table.encode("utf-8", "surrogatepass")).hexdigest()[:16]


COPY_APP = "airflow.copyInto/"
"""What the application ids begin with whose ``txn`` versions count the loads of files."""

OWN_APPS = (POSITION_APP, COPY_APP)
"""What application ids begin with that no transaction key may be."""

_RECORD_DIGITS = 15


@dataclass(frozen=True, kw_only=True, slots=True)
class FileLoad(Payload):
    """Files that a stage loaded because no commit has loaded them yet. The commit names the record that lists them.

    :param source: where they are, for messages.
    :param consumer: who loads.
    :param number: of the load: 1 for the first one of the consumer.
    :param record: SHA-256 of the record of the load.
    :param num_files: files that it loads.
    """

    contract: int = CONTRACT
    source: str
    consumer: str
    number: int
    record: str
    num_files: int = 0

    @property
    def app_id(self) -> str:
        """The ``appId`` whose version is the number of the last load."""
        return f"{COPY_APP}{self.consumer}"

    @property
    def before(self) -> int:
        """The number of the last load that the target had; 0: none."""
        return self.number - 1

    @property
    def versions(self) -> dict[str, int]:
        """What the commit sets, by application id: the number, and which record of that number is its own.

        The latter as the first 60 bits of the record's digest, since a ``txn`` version is a number.
        """
        return {self.app_id: self.number, f"{self.app_id}{RECORD_SUFFIX}": int(self.record[:_RECORD_DIGITS], 16)}


RECORD_SUFFIX = "#record"


def record_digits(version: int) -> str:
    """Return the first digits of a record's digest, as its name has them."""
    return f"{version:0{_RECORD_DIGITS}x}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedWrite(Payload):
    """What one attempt of a stage wrote, for the commit to publish.

    :param stage: stage key: task id and map index, in characters safe for paths.
    :param task_id: task that staged it.
    :param map_index: its map index, -1 when not mapped.
    :param attempt: unique name of the attempt and its directory.
    :param operation: Delta operation name, ``WRITE`` for DataFrame writes.
    :param parameters: ``operationParameters`` if the operation is not ``WRITE``.
    :param metrics: ``operationMetrics`` that only the stage knows, if the operation is not ``WRITE``.
    :param after: earlier stages that this one was planned on top of, as ``<stage>/<attempt>``.
    :param mode: ``append``, ``overwrite``, ``dynamic`` (dynamic partition overwrite), ``rewrite`` (rows of files change; the
        actions include the removed files) or ``alter`` (the table itself changes).
    :param replace_where: predicate of an overwrite with ``replaceWhere``.
    :param schema_string: Spark's JSON form of the schema written, data and partition columns.
    :param merge_schema: new columns may be added to the table's schema.
    :param overwrite_schema: the table's schema may be replaced (overwrite only).
    :param partition_columns: partition columns of the files.
    :param reads: what was read.
    :param actions: staged actions in Delta's JSON form (``{"add": ...}``), if inline.
    :param manifest: the file that holds them otherwise.
    :param num_copied_records: rows of replaced files that the predicate keeps, written again.
    :param identity_high_water_marks: last value generated for each identity column.
    :param num_change_files: number of change data files among the actions.
    :param already_committed: nothing was staged, because the log already held the key.
    :param definition: of CREATE or REPLACE TABLE: ``mode``, ``clusterBy``, ``features``, Delta's ``metaData``.
    :param changes: of mode ``alter``: JSON forms of :mod:`airflow_delta.contract.changes`.
    :param keeps_row_ids: rows that were written again have their row ids and row commit versions in the new files.
    :param data_change: false if the table's rows stay the same and only move to other files (Delta's ``dataChange``).
    :param sources: new rows of other tables that the stage read.
    :param loads: files that the stage loaded.
    """

    contract: int = CONTRACT
    transaction_id: str
    stage: str
    task_id: str
    map_index: int = -1
    attempt: str
    operation: str = "WRITE"
    parameters: dict = field(default_factory=dict)  # type: ignore[type-arg]
    metrics: dict[str, int] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    mode: str
    replace_where: str | None = None
    schema_string: str
    merge_schema: bool = False
    overwrite_schema: bool = False
    partition_columns: tuple[str, ...] = ()
    reads: DeclaredReads = field(default_factory=DeclaredReads)
    actions: tuple[dict, ...] = ()  # type: ignore[type-arg]
    manifest: ManifestRef | None = None
    num_files: int = 0
    num_removed_files: int = 0
    num_records: int | None = None
    num_copied_records: int = 0
    num_bytes: int = 0
    identity_high_water_marks: dict[str, int] = field(default_factory=dict)
    num_change_files: int = 0
    already_committed: bool = False
    definition: dict = field(default_factory=dict)  # type: ignore[type-arg]
    data_change: bool = True
    keeps_row_ids: bool = False
    changes: tuple[dict, ...] = ()  # type: ignore[type-arg]
    sources: tuple[SourcePosition, ...] = ()
    loads: tuple[FileLoad, ...] = ()
