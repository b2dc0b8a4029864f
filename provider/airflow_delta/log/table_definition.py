"""What a table is: schema, partitioning, properties and features, each parsed once.

The definition of an existing table comes from its log. A stage works on it as earlier stages of its transaction leave it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_delta.contract.schema_string import parse_struct
from airflow_delta.exceptions import Subject
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Metadata, Protocol
from airflow_delta.log.features import protocol as protocols
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.types import StructType, parse_schema, to_json

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import Json


@dataclass(frozen=True, kw_only=True)
class TableDefinition(Subject):
    """The definition of a table at a version, or of a table that a transaction creates.

    :param table: URI of the table; for messages, as ``version``.
    :param version: the version, -1 if the table does not exist.
    :param table_id: the table's id, ``None`` if it has none yet.
    :param schema_string: Spark's JSON form of the schema, ``None`` while the columns are unknown.
    :param partition_columns: logical names.
    :param configuration: table properties, as stored.
    :param features: table features that the protocol supports.
    """

    table: str = ""
    version: int = -1
    table_id: str | None = None
    schema_string: str | None = None
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    name: str | None = None
    description: str | None = None

    def _about(self) -> tuple[str, int | None]:
        return self.table, self.version

    @classmethod
    def of(cls, metadata: Metadata, protocol: Protocol | None = None, *, table: str = "", version: int = -1) -> TableDefinition:
        """Return the definition that the log gives a table."""
        return cls(
            table=table,
            version=version,
            table_id=metadata.id,
            schema_string=metadata.schema_string,
            partition_columns=tuple(metadata.partition_columns),
            configuration=metadata.properties,
            features=frozenset() if protocol is None else protocols.features(protocol),
            name=metadata.name,
            description=metadata.description,
        )

    @classmethod
    def of_rows(cls, schema_string: str, partition_columns: Sequence[str] = ()) -> TableDefinition:
        """Return the definition that rows have by themselves: those of a staged write, of files, of a DataFrame."""
        return cls(schema_string=schema_string, partition_columns=tuple(partition_columns))

    @cached_property
    def schema(self) -> StructType:
        """The schema; empty while the columns are unknown."""
        return StructType(()) if self.schema_string is None else parse_schema(self.schema_string)

    @cached_property
    def struct(self) -> Json:
        """The schema as decoded JSON, which :mod:`airflow_delta.contract.schema` works on; not to be changed."""
        return {"type": "struct", "fields": []} if self.schema_string is None else parse_struct(self.schema_string)

    @cached_property
    def properties(self) -> TableProperties:
        """The properties with Delta's types and defaults."""
        return TableProperties(self.configuration)

    @property
    def is_known(self) -> bool:
        """Whether the columns are known: of a new table, the first rows may decide them."""
        return self.schema_string is not None

    @property
    def column_mapping(self) -> str:
        """Column mapping mode: ``none``, ``name`` or ``id``."""
        return self.properties.column_mapping_mode

    @property
    def widens_types(self) -> bool:
        """Whether ``merge_schema`` may widen types; a new table just gets the wider ones."""
        return self.version >= 0 and bool(self.properties.get("enableTypeWidening"))

    @property
    def metadata(self) -> Metadata:
        """The definition as the log's action."""
        return Metadata(
            id=self.table_id or "",
            name=self.name,
            description=self.description,
            schema_string=self.schema_string or "",
            partition_columns=list(self.partition_columns),
            configuration=dict(self.configuration),
        )

    def named_partition(self, values: Mapping[str, str | None] | None) -> dict[str, str | None]:
        """Return a partition by the names of its columns, for people.

        :param values: by physical name, as in actions; names that are of no column stay.
        """
        return {self._logical_names.get(name, name): value for name, value in (values or {}).items()}

    @cached_property
    def _logical_names(self) -> dict[str, str]:
        return {field.physical_name: field.name for field in self.schema}

    def with_schema(self, schema: StructType | None, partition_columns: Sequence[str]) -> TableDefinition:
        """Return the definition with other columns."""
        schema_string = None if schema is None else to_json(schema)
        return replace(self, schema_string=schema_string, partition_columns=tuple(partition_columns))
