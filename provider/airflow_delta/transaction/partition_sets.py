"""Sets of partitions, as a dynamic partition overwrite replaces them.

Values are compared by what they mean, not by how they are spelled (``1`` and ``01`` are one integer); a value that does not parse
as its column's type is compared as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_delta.log.partition_values import normalise

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log.schema import StructType

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """Some partitions of a table, usable where a predicate on partitions is.

    :param schema: the partition columns, in partition order.
    """

    schema: StructType
    members: frozenset[tuple[str | None, ...]]
    text: str

    @classmethod
    def of(cls, partitions: Iterable[Mapping[str, str | None]], schema: StructType) -> PartitionSet:
        """Return the set of the given partitions.

        :param partitions: serialised values by physical column name.
        """
        names = [field.name for field in schema.fields]
        physical = [field.physical_name for field in schema.fields]
        spelled = {tuple(values.get(name) for name in physical) for values in partitions}
        members = frozenset(_normalised(row, schema) for row in spelled)
        shown = sorted(", ".join(f"{n}={v}" for n, v in zip(names, row, strict=True)) for row in spelled)
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        listed = "; ".join(f"[{partition}]" for partition in (shown if len(shown) <= _SHOWN else shown[:_SHOWN]))
        return cls(schema, members, f"the partition is one of {listed}{more}" if names else "true")

    def matches_partition(self, partition_values: Mapping[str, str | None]) -> bool:
        """Tell whether the partition is in the set."""
        return _normalised(tuple(partition_values.get(f.physical_name) for f in self.schema.fields), self.schema) in self.members

    def select(self, files: pa.Table) -> pa.Table:
        """Return the files that are in one of the partitions; each different partition is looked at once."""
        if not self.schema.fields or not files.num_rows:
            return files if self.members else files.slice(0, 0)
        import pyarrow as pa

        column = files.column("partition_values")
        return files.filter(pa.chunked_array([self._mask(chunk) for chunk in column.chunks], pa.bool_()))

    def _mask(self, values: pa.MapArray) -> pa.BooleanArray:
        """Return which of some files are in the set; each different partition among them is looked at once."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from airflow_delta.log.predicates import partition_texts

        columns = [partition_texts(values, field.physical_name).dictionary_encode("encode") for field in self.schema.fields]
        codes = pa.array([0] * len(values), pa.int64())
        for column in columns:
            codes = pc.add(pc.multiply(codes, len(column.dictionary)), column.indices.cast(pa.int64()))
        wanted = [code for code in pc.unique(codes).to_pylist() if self._has(code, columns)]
        return pc.is_in(codes, value_set=pa.array(wanted, pa.int64()))

    def _has(self, code: int, columns: list[pa.DictionaryArray]) -> bool:
        row: list[str | None] = []
        for column in reversed(columns):
            code, position = divmod(code, len(column.dictionary))
            row.append(column.dictionary[position].as_py())
        return _normalised(tuple(reversed(row)), self.schema) in self.members


def _normalised(row: tuple[str | None, ...], schema: StructType) -> tuple[str | None, ...]:
    return tuple(normalise(text, field.data_type) for text, field in zip(row, schema.fields, strict=True))
