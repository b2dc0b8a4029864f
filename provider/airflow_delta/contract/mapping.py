"""Column mapping of rows to write: ids and physical names of new columns, and the names in files.

Works on Spark's JSON form of schemas, so that it can run anywhere. The worker sends the table's columns with their metadata; new
columns get the same names in every stage of a transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from airflow_delta.contract.delta_names import COLUMN_ID, PARQUET_FIELD_ID, PHYSICAL_NAME
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.schema import Type, nullable
from airflow_delta.contract.table_rules import TableRules

_NAMESPACE = uuid.UUID("5b1f6a34-6c80-4d5b-9c37-0d2a9cf1b3e1")


def mapped_schema(schema: Json, rules: TableRules, seed: str) -> Json:
    """Return the schema with an id and a physical name for every field that has none.

    :param seed: id of the transaction: a column gets the same physical name in each of its stages. The id is part of it, so that
        a column does not show the values of one that was dropped or renamed in between.
    """
    if rules.column_mapping == "none":
        return schema
    highest = max([rules.max_column_id, *_ids(schema)])

    def complete(path: str, field: Json) -> Json:
        nonlocal highest
        metadata = dict(field.get("metadata") or {})
        if COLUMN_ID not in metadata:
            highest += 1
            metadata[COLUMN_ID] = highest
        metadata.setdefault(PHYSICAL_NAME, f"col-{uuid.uuid5(_NAMESPACE, f'{seed}/{metadata[COLUMN_ID]}/{path}')}")
        return {**field, "metadata": metadata}

    return dict(_each_field(schema, "", complete))


def with_known_columns(schema: Json, known: Json) -> Json:
    """Return the schema of an overwrite; columns of the same name and type keep their ids and physical names.

    As in Delta: readers of the change data feed can then read older changes with the new schema.

    :param known: the table's schema.
    """
    before: dict[str, Json] = {}

    def note(path: str, field: Json) -> Json:
        before[path] = field
        return field

    def adopt(path: str, field: Json) -> Json:
        old = before.get(path)
        if old is None or not _same_kind(old["type"], field["type"]):
            return field
        kept = {key: value for key, value in (old.get("metadata") or {}).items() if key in (COLUMN_ID, PHYSICAL_NAME)}
        return {**field, "metadata": {**(field.get("metadata") or {}), **kept}}

    _each_field(known, "", note)
    return dict(_each_field(schema, "", adopt))


def _same_kind(before: Type, now: Type) -> bool:
    """Return whether a column keeps its id: it has the same type, except for fields of structs, which have their own ids."""
    if isinstance(before, str) or isinstance(now, str):
        return bool(before == now)
    parts = ("elementType", "keyType", "valueType")
    return before["type"] == now["type"] and all(_same_kind(before[part], now[part]) for part in parts if part in before)


def physical_field_name(field: Json, rules: TableRules) -> str:
    """Return the name of a field in data files, statistics and partition values."""
    if rules.column_mapping == "none":
        return str(field["name"])
    return str((field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"]))


def field_metadata(field: Json) -> Json:
    """Return the metadata that makes Spark's Parquet writer give a field its id."""
    identity = (field.get("metadata") or {}).get(COLUMN_ID)
    return {} if identity is None else {PARQUET_FIELD_ID: identity}


def physical_type(data_type: Type, rules: TableRules) -> Type:
    """Return a type as in files: with physical names and field ids at every depth."""
    return nullable(
        _each_field(data_type, "", lambda _path, f: {**f, "name": physical_field_name(f, rules), "metadata": field_metadata(f)})
    )


def _each_field(data_type: Type, path: str, change: Callable[[str, Json], Json]) -> Type:
    if isinstance(data_type, str):
        return data_type
    match data_type["type"]:
        case "struct":
            fields = []
            for field in data_type["fields"]:
                name = field["name"].lower()
                name = f"`{name}`" if "." in name else name  # a column `a.b` is not the field b of a
                here = f"{path}.{name}" if path else name
                # The field itself first: ids grow from the top down, as in Delta.
                changed = change(here, field)
                fields.append({**changed, "type": _each_field(field["type"], here, change)})
            return {**data_type, "fields": fields}
        case "array":
            return {**data_type, "elementType": _each_field(data_type["elementType"], f"{path}.element", change)}
        case "map":
            return {
                **data_type,
                "keyType": _each_field(data_type["keyType"], f"{path}.key", change),
                "valueType": _each_field(data_type["valueType"], f"{path}.value", change),
            }
    return data_type


def _ids(schema: Json) -> list[int]:
    found: list[int] = []

    def note(_path: str, field: Json) -> Json:
        identity = (field.get("metadata") or {}).get(COLUMN_ID)
        if identity is not None:
            found.append(int(identity))
        return field

    _each_field(schema, "", note)
    return found
