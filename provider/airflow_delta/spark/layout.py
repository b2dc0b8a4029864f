"""Columns of a table in its files: names and ids of column mapping, and back to the table's names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from airflow_delta.contract.delta_names import PHYSICAL_NAME
from airflow_delta.contract.mapping import field_metadata
from airflow_delta.contract.payloads import Json, ScanPlan
from airflow_delta.contract.plain_schema import plain_type, with_fields_changed, without_delta_metadata
from airflow_delta.contract.schema import Type, find_field
from airflow_delta.spark.align import spark_name, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column


class Layout:
    """The columns of a scan plan.

    :ivar fields: the table's columns in order, without Delta's own metadata.
    :ivar partition_columns: partition columns, with the keys of their values in the log.
    :ivar stored: schema to read files with (physical names; field ids if columns are found by id).
    """

    def __init__(self, plan: ScanPlan) -> None:
        schema = json.loads(plan.schema_string)
        self._mode = plan.column_mapping
        partition = [f for f in (find_field(schema, name) for name in plan.partition_columns) if f is not None]
        names = {f["name"] for f in partition}
        self.partition_columns = [(without_delta_metadata(f), self._name(f)) for f in partition]
        self._in_files = [f for f in schema["fields"] if f["name"] not in names]
        self.fields: list[Json] = [without_delta_metadata(f) for f in schema["fields"]]
        self.stored: Json = {"type": "struct", "fields": [self._physical_field(f) for f in self._in_files]}

    @property
    def by_id(self) -> bool:
        """Return whether columns are found in files by field id."""
        return self._mode == "id"

    def columns(self) -> list[Column]:
        """Return rows read from files under the table's names."""
        return [self._logical(field) for field in self._in_files]

    def _logical(self, field: Json) -> Column:
        column = sf.col(spark_name(self._name(field)))
        if self._renames(field["type"]):
            column = column.cast(spark_type(plain_type(field["type"])))  # by position, at every depth
        return column.alias(field["name"], metadata=without_delta_metadata(field)["metadata"])

    def _name(self, field: Json) -> str:
        if self._mode == "none":
            return str(field["name"])
        return str((field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"]))

    def _physical_field(self, field: Json) -> Json:
        metadata = without_delta_metadata(field)["metadata"]
        # Only for mapping by id: files of a table that got names later have no ids, and Spark would refuse them.
        if self.by_id:
            metadata = {**metadata, **field_metadata(field)}
        return {"name": self._name(field), "type": self._physical(field["type"]), "nullable": True, "metadata": metadata}

    def _physical(self, data_type: Type) -> Type:
        return with_fields_changed(data_type, self._physical_field)

    def _renames(self, data_type: Type) -> bool:
        if isinstance(data_type, str):
            return False
        match data_type["type"]:
            case "struct":
                return any(self._name(f) != f["name"] or self._renames(f["type"]) for f in data_type["fields"])
            case "array":
                return self._renames(data_type["elementType"])
            case "map":
                return self._renames(data_type["keyType"]) or self._renames(data_type["valueType"])
        return False
