"""Sets of partitions, as replaced by a dynamic partition overwrite.

Values are compared by meaning, not by spelling (``1`` and ``01`` are the same integer); a value that does not parse as its
column's type is compared as text. The instant of a timestamp without a zone depends on the reader's time zone: it matches every
possible instant when looking for conflicts, where too many matches are harmless, and is refused when files would be replaced.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log import heavy
from airflow_delta.log.schema.partition_index import NamedValues, parsed_values
from airflow_delta.log.schema.partition_values import Instants, is_zoneless, normalise, parse_partition_value, possible_instants

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log.schema.types import DataType, StructType

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """Some partitions of a table, usable in place of a predicate on partitions.

    :param schema: the partition columns, in partition order.
    :param zoneless: the members with a timestamp without a zone.
    :param spelled: partitions that are members as they are spelled: most are, and need not be parsed to be found.
    """

    schema: StructType
    members: frozenset[tuple[str | None, ...]]
    text: str
    zoneless: frozenset[tuple[str | None, ...]] = frozenset()
    spelled: frozenset[tuple[str | None, ...]] = frozenset()

    @classmethod
    def of(cls, partitions: Iterable[Mapping[str, str | None]], schema: StructType) -> PartitionSet:
        """Return the set of the given partitions.

        :param partitions: serialised values by physical column name.
        """
        names = [field.name for field in schema.fields]
        physical = [field.physical_name for field in schema.fields]
        spelled = frozenset(tuple([values.get(name) for name in physical]) for values in partitions)
        members = frozenset(_normalised(row, schema) for row in spelled)
        texts = (", ".join([f"{n}={v}" for n, v in zip(names, row, strict=True)]) for row in spelled)
        more = f" and {len(spelled) - _SHOWN} more" if len(spelled) > _SHOWN else ""
        listed = "; ".join(f"[{partition}]" for partition in heapq.nsmallest(_SHOWN, texts))
        zoneless = frozenset(member for member in members if _has_zoneless(member, schema))
        return cls(schema, members, f"the partition is one of {listed}{more}" if names else "true", zoneless, spelled)

    def matches_partition(self, partition_values: Mapping[str, str | None]) -> bool:
        """Tell whether the partition is, or may be, in the set."""
        given = tuple(partition_values.get(f.physical_name) for f in self.schema.fields)
        if given in self.spelled:
            return True
        row = _normalised(given, self.schema)
        return row in self.members or self._may_be(row) is not None

    @property
    def named_values(self) -> NamedValues:
        """Values of partition columns of which each partition that matches has one."""
        found = {}
        for position, column in enumerate(self.schema.fields):
            values = parsed_values({member[position] for member in self.members}, column.data_type)
            if values is not None:
                found[column.physical_name, column.data_type] = values
        return found

    def union(self, others: Iterable[PartitionSet]) -> PartitionSet:
        """Return the partitions that are in this set or in others with the same columns."""
        sets = [self, *others]
        members, zoneless, spelled = (
            frozenset[tuple[str | None, ...]]().union(*(getattr(each, name) for each in sets))
            for name in ("members", "zoneless", "spelled")
        )
        return replace(self, members=members, zoneless=zoneless, spelled=spelled)

    def replaces(self, partition_values: Mapping[str, str | None]) -> bool:
        """Tell whether the files of a partition are replaced with this set."""
        return self._has([partition_values.get(column.physical_name) for column in self.schema.fields], replace=True)

    def _may_be(self, row: tuple[str | None, ...]) -> tuple[str | None, ...] | None:
        """Return a member that a partition equals in some time zone."""
        candidates = self.members if _has_zoneless(row, self.schema) else self.zoneless
        if not candidates:
            return None
        types = [f.data_type for f in self.schema.fields]

        def same(one: str | None, other: str | None, data_type: DataType) -> bool:
            if one == other:
                return True
            ranges = [_instants(text, data_type) for text in (one, other)]
            if ranges[0] is None or ranges[1] is None or all(low == high for low, high in ranges):  # type: ignore[misc]
                return False
            return max(r.earliest for r in ranges if r) <= min(r.latest for r in ranges if r)

        return next((member for member in candidates if all(map(same, row, member, types))), None)

    def select(self, files: pa.Table, *, replace: bool = False) -> pa.Table:
        """Return the files in the partitions; each distinct partition is checked once.

        :param replace: the files will be replaced.
        """
        if not self.schema.fields or not files.num_rows:
            return files if self.members else files.slice(0, 0)
        import pyarrow as pa

        column = files.column("partition_values")
        return files.filter(pa.chunked_array([self._mask(chunk, replace) for chunk in column.chunks], pa.bool_()))

    def _mask(self, values: pa.MapArray, replace: bool) -> pa.BooleanArray:
        """Return which of some files are in the set; each distinct partition among them is checked once."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from airflow_delta.log.arrow.arrays import array, repeated, scalar

        columns = [heavy.partition_texts(values, field.physical_name).dictionary_encode("encode") for field in self.schema.fields]
        codes = repeated(0, len(values))
        for column in columns:
            codes = pc.add(pc.multiply(codes, scalar(len(column.dictionary))), column.indices.cast(pa.int64()))
        texts = [column.dictionary.to_pylist() for column in columns]
        wanted = [code for code in pc.unique(codes).to_pylist() if self._has(_texts_of(code, texts), replace=replace)]
        return pc.is_in(codes, value_set=array(wanted, pa.int64()))

    def _has(self, row: Sequence[str | None], *, replace: bool) -> bool:
        if (given := tuple(row)) in self.spelled:
            return True
        known = _normalised(given, self.schema)
        if known in self.members:
            return True
        if replace and (other := self._may_be(known)) is not None:
            raise DeltaAnalysisException(
                f"Whether the partition {list(known)} is replaced by {list(other)} depends on the time zone of the reader: one "
                "of the two timestamps has none. Replace it with replace_where, which lets Spark compare the rows, or rewrite it "
                "first (UPDATE its timestamp) so that the log has a zone."
            )
        return False


def _texts_of(code: int, columns: Sequence[Sequence[str | None]]) -> list[str | None]:
    row: list[str | None] = []
    for column in reversed(columns):
        code, position = divmod(code, len(column))
        row.append(column[position])
    return row[::-1]


def _normalised(row: tuple[str | None, ...], schema: StructType) -> tuple[str | None, ...]:
    return tuple(
        text if field.data_type.name == "timestamp" and text and is_zoneless(text) else normalise(text, field.data_type)
        for text, field in zip(row, schema.fields, strict=True)
    )


def _has_zoneless(row: tuple[str | None, ...], schema: StructType) -> bool:
    return any(
        field.data_type.name == "timestamp" and is_zoneless(text) for text, field in zip(row, schema.fields, strict=True) if text
    )


def _instants(text: str | None, data_type: DataType) -> Instants | None:
    """Return the instants that a text may mean; ``None`` for nulls and for texts that are not timestamps."""
    if data_type.name != "timestamp" or text is None:
        return None
    try:
        known = possible_instants(text, data_type)
        moment = parse_partition_value(text, data_type)
    except DeltaAnalysisException:
        return None
    return known or Instants(moment, moment)
