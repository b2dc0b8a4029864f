"""Actions of a log, built by hand."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import Any

from airflow_delta.log.actions.actions import (
    Action,
    AddCDCFile,
    AddFile,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
    encode_actions,
)

TABLE_ID = "5fba94ed-9794-4965-ba6e-6ee3c0d22af9"
AT = 1_700_000_000_000
"""When it happened, unless told otherwise: milliseconds since the epoch."""

ATOMIC_TYPES = (
    *("byte", "short", "integer", "long", "float", "double", "string", "boolean", "binary", "date", "timestamp"),
    *("timestamp_ntz", "decimal(10,2)", "decimal(20,0)", "decimal(38,18)"),
)
"""Types of columns, but for structs, arrays and maps."""


def column(name: str, data_type: Any = "integer", nullable: bool = True, **extra: Any) -> dict[str, Any]:
    """A column; keywords are its metadata, with ``__`` inside for a dot."""
    found = {key[:1] + key[1:].replace("__", "."): value for key, value in extra.items()}
    return {"name": name, "type": data_type, "nullable": nullable, "metadata": found}


def struct(*columns: dict[str, Any], **types: Any) -> dict[str, Any]:
    """A struct of the columns, and of columns by name and type."""
    return {"type": "struct", "fields": [*columns, *(column(name, data_type) for name, data_type in types.items())]}


def schema(*columns: dict[str, Any], **types: Any) -> str:
    """A schema string of the columns, and of columns by name and type."""
    return json.dumps(struct(*columns, **types))


ID_PART = (column("id", "long"), column("part", "string"))
SCHEMA = schema(*ID_PART)


def metadata(*columns: dict[str, Any], partition_by: Iterable[str] = (), **given: Any) -> Metadata:
    """Metadata of a table; without columns it has ``id`` (long) and ``part`` (string).

    :param given: its fields; others are table properties.
    """
    known = {name: given.pop(name) for name in Metadata.__struct_fields__ if name in given}
    text = schema(*columns or ID_PART)
    fields = {"id": TABLE_ID, "schema_string": text, "partition_columns": list(partition_by), "created_time": AT, **known}
    return Metadata(**{**fields, "configuration": {**fields.get("configuration", {}), **given}})


def protocol(
    reader: int = 1, writer: int = 2, reader_features: list[str] | None = None, writer_features: list[str] | None = None
) -> Protocol:
    return Protocol(
        min_reader_version=reader, min_writer_version=writer, reader_features=reader_features, writer_features=writer_features
    )


def listed(reader: Iterable[str] = (), *writer_only: str) -> Protocol:
    """A protocol of named features, with the two that every table has."""
    reading = sorted(reader)
    writing = sorted({*reading, *writer_only, "appendOnly", "invariants"})
    return protocol(3 if reading else 1, 7, reader_features=reading or None, writer_features=writing)


def _values(given: dict[str, Any], kind: Any, records: int | None) -> dict[str, Any]:
    """Divide keywords into an action's fields and partition values."""
    known = {name: given.pop(name) for name in kind.__struct_fields__ if name in given}
    if records is not None:
        known["stats"] = json.dumps({"numRecords": records}, separators=(",", ":"))
    return {"partition_values": {name: None if value is None else str(value) for name, value in given.items()}, **known}


def add(path: str, *, records: int | None = None, **given: Any) -> AddFile:
    """An added file.

    :param records: statistics that tell no more than their number.
    :param given: its fields; others are partition values.
    """
    return AddFile(path=path, **{"size": 100, "modification_time": AT, "data_change": True, **_values(given, AddFile, records)})


def remove(path: str, *, records: int | None = None, **given: Any) -> RemoveFile:
    """A tombstone; the keywords of :func:`add`."""
    fields = {"deletion_timestamp": AT, "data_change": True, "extended_file_metadata": True, "size": 100}
    return RemoveFile(path=path, **{**fields, **_values(given, RemoveFile, records)})


def cdc(path: str = "_change_data/c", *, size: int = 1, **partition: Any) -> AddCDCFile:
    """A file of the change data feed."""
    return AddCDCFile(path=path, size=size, **_values(partition, AddCDCFile, None))


def vector(offset: int | None = 1, **given: Any) -> DeletionVectorDescriptor:
    """A deletion vector in a file that need not be there."""
    fields = {"storage_type": "u", "path_or_inline_dv": "ab^-aqEH.-t@S}K{vb[*k^", "size_in_bytes": 36, "cardinality": 2}
    return DeletionVectorDescriptor(**{**fields, "offset": offset, **given})


def domain(name: str, configuration: str = "{}", *, removed: bool = False) -> DomainMetadata:
    """A domain's metadata."""
    return DomainMetadata(domain=name, configuration=configuration, removed=removed)


def txn(app_id: str, version: int, last_updated: int | None = None) -> SetTransaction:
    """An application's transaction."""
    return SetTransaction(app_id=app_id, version=version, last_updated=last_updated)


def info(operation: str = "WRITE", **given: Any) -> CommitInfo:
    """A commitInfo."""
    return CommitInfo(**{"timestamp": AT, "operation": operation, "txn_id": str(uuid.uuid4()), **given})


def foreign_info(**fields: Any) -> dict[str, Any]:
    """The line of another engine's commitInfo, with fields of any name."""
    return {"commitInfo": {"timestamp": AT, "operation": "WRITE", "txnId": str(uuid.uuid4()), **fields}}


def as_json(action: Action) -> dict[str, Any]:
    """The line of an action, as other engines read it."""
    return dict(json.loads(encode_actions([action])))
