"""The actions of the Delta log, as typed structs and as JSON lines.

Attributes are Delta's field names in snake_case; the JSON form has Delta's own names, omits absent values and keeps empty maps
(Delta protocol, "Actions"; field order as Delta Spark declares it). Unknown fields are ignored on reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

Stats = str
"""The ``stats`` of a file: a JSON document as text, kept exactly as in the log."""


class DeletionVectorDescriptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Where the deletion vector of a file is stored.

    :param storage_type: ``u`` (relative to the table, by UUID), ``p`` (absolute path) or ``i`` (inline).
    :param path_or_inline_dv: path, encoded UUID, or the encoded vector itself.
    :param size_in_bytes: size of the serialised vector.
    :param cardinality: number of rows it marks as deleted.
    :param offset: byte offset in the file, ``None`` for inline vectors.
    """

    storage_type: str
    path_or_inline_dv: str
    offset: int | None = None
    size_in_bytes: int
    cardinality: int

    @property
    def unique_id(self) -> str:
        """Return the id that, with the path, identifies a logical file (protocol, "Derived Fields")."""
        base = f"{self.storage_type}{self.path_or_inline_dv}"
        return base if self.offset is None else f"{base}@{self.offset}"


MOVED_ROWS_TAG = "airflow.movedRows"
"""Tag of an ``add`` of a compaction: where the record of its rows is (:mod:`airflow_delta.log.actions.moved_rows`)."""


class AddFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A data file added to the table.

    :param path: URL-encoded path relative to the table root, or an absolute URI.
    :param partition_values: serialised value (or ``None``) of every partition column, by physical name.
    :param size: bytes.
    :param modification_time: milliseconds since the epoch.
    :param data_change: ``False`` when the commit only rearranges rows that are already in the table.
    :param stats: statistics as JSON text.
    """

    path: str
    partition_values: dict[str, str | None]
    size: int
    modification_time: int
    data_change: bool
    stats: Stats | None = None
    tags: dict[str, str | None] | None = None
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    clustering_provider: str | None = None

    def remove(self, deletion_timestamp: int, *, data_change: bool = True) -> RemoveFile:
        """Return the action that removes this file.

        :param deletion_timestamp: milliseconds since the epoch; one timestamp for all removes of an operation.
        """
        return RemoveFile(
            path=self.path,
            deletion_timestamp=deletion_timestamp,
            data_change=data_change,
            extended_file_metadata=True,
            partition_values=self.partition_values,
            size=self.size,
            tags=self.tags,
            deletion_vector=self.deletion_vector,
            base_row_id=self.base_row_id,
            default_row_commit_version=self.default_row_commit_version,
            stats=self.stats,
        )


class RemoveFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A data file removed from the table; kept as a tombstone for ``delta.deletedFileRetentionDuration``.

    :param deletion_timestamp: milliseconds since the epoch.
    """

    path: str
    deletion_timestamp: int | None = None
    data_change: bool
    extended_file_metadata: bool | None = None
    partition_values: dict[str, str | None] | None = None
    size: int | None = None
    tags: dict[str, str | None] | None = None
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    stats: Stats | None = None

    def as_add(self) -> AddFile:
        """Return the file as it was in the table; without ``extendedFileMetadata``, as far as the action has it."""
        return AddFile(
            path=self.path,
            partition_values=self.partition_values or {},
            size=self.size or 0,
            modification_time=0,
            data_change=True,
            stats=self.stats,
            deletion_vector=self.deletion_vector,
        )


class AddCDCFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A change data file."""

    path: str
    partition_values: dict[str, str | None]
    size: int
    data_change: bool = msgspec.field(default_factory=lambda: False)
    tags: dict[str, str | None] | None = None


# Other writers leave nulls in these maps. They are kept, so that what we write of the metadata says the same as theirs.
if TYPE_CHECKING:
    Texts = dict[str, str]
else:
    Texts = dict[str, str | None]


class Format(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """File format of the data files; Delta defines only ``parquet``."""

    provider: str = "parquet"
    options: Texts = msgspec.field(default_factory=dict)


NO_COLUMNS = '{"type":"struct","fields":[]}'
"""A schema without columns."""


# With a default factory other than the builtin type, msgspec keeps empty maps and lists in the JSON form, as Delta writes them.
def _empty_map() -> dict[str, str]:
    return {}


def _empty_list() -> list[str]:
    return []


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Schema, partitioning and properties of the table.

    :param id: UUID of the table.
    :param schema_string: Spark's JSON form of the schema; a table that does not have one yet has no columns.
    :param partition_columns: logical names, in order.
    :param configuration: table properties, as stored.
    :param created_time: milliseconds since the epoch.
    """

    id: str
    name: str | None = None
    description: str | None = None
    format: Format = msgspec.field(default_factory=lambda: Format())
    schema_string: str = msgspec.field(default_factory=lambda: NO_COLUMNS)
    partition_columns: list[str] = msgspec.field(default_factory=_empty_list)
    configuration: Texts = msgspec.field(default_factory=_empty_map)
    created_time: int | None = None

    def __post_init__(self) -> None:
        """Leave out a property of Delta's whose value is null: it is not set."""
        known: Mapping[str, str | None] = self.configuration
        if None in known.values():
            given = {key: text for key, text in known.items() if text is not None or not key.lower().startswith("delta.")}
            if len(given) < len(known):
                msgspec.structs.force_setattr(self, "configuration", given)

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties that have a value."""
        known: Mapping[str, str | None] = self.configuration
        return {key: text for key, text in known.items() if text is not None}


class Protocol(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Versions and features that a client must support to read or write the table.

    :param reader_features: present exactly when ``min_reader_version`` is 3.
    :param writer_features: present exactly when ``min_writer_version`` is 7.
    """

    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class SetTransaction(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The last version that an application (``appId``) committed; it makes commits idempotent.

    :param last_updated: milliseconds since the epoch.
    """

    app_id: str
    version: int
    last_updated: int | None = None


class DomainMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A named configuration that a feature keeps in the log.

    :param configuration: JSON text.
    :param removed: ``True`` deletes the domain.
    """

    domain: str
    configuration: str
    removed: bool


class CommitInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Who committed, what, and how; always the first line of a commit that we write.

    Other writers use other types for these fields, so commits are read as plain JSON values; this type is for what we write
    (see :meth:`from_mapping`).

    :param timestamp: milliseconds since the epoch.
    :param operation_parameters: values become JSON strings, numbers, booleans or ``null``; a parameter that is itself a
        JSON document is passed as text.
    :param operation_metrics: numbers as strings.
    :param txn_id: id of the optimistic transaction, by which a commit recognises itself when the store did not confirm the put.
    """

    version: int | None = None
    in_commit_timestamp: int | None = None
    timestamp: int | None = None
    user_id: str | None = None
    user_name: str | None = None
    operation: str | None = None
    operation_parameters: dict[str, Any] | None = None
    job: Any = None
    notebook: Any = None
    cluster_id: str | None = None
    read_version: int | None = None
    isolation_level: str | None = None
    is_blind_append: bool | None = None
    data_change: bool | None = None
    operation_metrics: dict[str, Any] | None = None
    user_metadata: str | None = None
    tags: dict[str, Any] | None = None
    engine_info: str | None = None
    txn_id: str | None = None

    @classmethod
    def from_mapping(cls, value: dict[str, Any]) -> CommitInfo:
        """Build from any writer's JSON object; fields of unexpected types are left out."""
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError:
            known = {}
            for field in msgspec.structs.fields(cls):
                if field.encode_name in value:
                    try:
                        known[field.name] = msgspec.convert(value[field.encode_name], field.type)
                    except msgspec.ValidationError:
                        continue  # another writer's own type: nothing here relies on the field
            return cls(**known)


Action = AddFile | RemoveFile | AddCDCFile | Metadata | Protocol | SetTransaction | DomainMetadata | CommitInfo

_KEYS: dict[type, str] = {
    AddFile: "add",
    RemoveFile: "remove",
    AddCDCFile: "cdc",
    Metadata: "metaData",
    Protocol: "protocol",
    SetTransaction: "txn",
    DomainMetadata: "domainMetadata",
    CommitInfo: "commitInfo",
}

_encoder = msgspec.json.Encoder()


def encode_action(action: Action) -> bytes:
    """Return the JSON line (without newline) of one action."""
    return _encoder.encode({_KEYS[type(action)]: action})


def encode_actions(actions: Iterable[Action]) -> bytes:
    """Return the content of a commit file: one action per line, UTF-8, with a newline after each."""
    return _encoder.encode_lines([{_KEYS[type(action)]: action} for action in actions])
