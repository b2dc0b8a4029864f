"""Partitions by the values of their columns: a condition that names its partitions finds them without a look at each."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.schema.partition_values import parse_partition_value
from airflow_delta.log.schema.types import INTEGRAL, DataType

Column = tuple[str, DataType]
"""Physical name and type of a partition column."""

NamedValues = Mapping[Column, frozenset[Any]]
"""Values of which a partition must have one, ``None`` for null, in each of some columns."""

_EXACT = frozenset(("string", "date", "boolean", *INTEGRAL))


def is_named_exactly(data_type: DataType) -> bool:
    """Tell whether values of a type are equal for Spark if they are for Python, whatever the time zone."""
    return data_type.name in _EXACT


class PartitionIndex:
    """Some partitions.

    :param partitions: serialised values by physical name, as in an ``add`` action; a missing one is null.
    """

    def __init__(self, partitions: Iterable[Mapping[str, str | None]]) -> None:
        self.partitions = list(partitions)
        self._known: dict[tuple[Column, ...], tuple[list[int], dict[tuple[Any, ...], list[int]]]] = {}

    def having(self, named: NamedValues) -> Sequence[int]:
        """Return the positions of the partitions that may have these values: too many rather than too few.

        A value that does not parse as its column's type may be any.
        """
        columns = tuple(sorted(named, key=lambda column: column[0]))
        if not columns or math.prod(len(named[column]) for column in columns) > len(self.partitions):
            return range(len(self.partitions))
        odd, found = self._by(columns)
        return [*odd, *(at for values in product(*(named[column] for column in columns)) for at in found.get(values, ()))]

    def _by(self, columns: tuple[Column, ...]) -> tuple[list[int], dict[tuple[Any, ...], list[int]]]:
        if columns not in self._known:
            odd: list[int] = []
            found: dict[tuple[Any, ...], list[int]] = {}
            for at, partition in enumerate(self.partitions):
                try:
                    key = tuple(parse_partition_value(partition.get(name), data_type) for name, data_type in columns)
                except DeltaAnalysisException:
                    odd.append(at)
                    continue
                found.setdefault(key, []).append(at)
            self._known[columns] = odd, found
        return self._known[columns]


def parsed_values(texts: Collection[str | None], data_type: DataType) -> frozenset[Any] | None:
    """Return the values of a column's texts; ``None`` if one does not parse, or they are not compared exactly."""
    if not is_named_exactly(data_type):
        return None
    try:
        return frozenset(parse_partition_value(text, data_type) for text in texts)
    except DeltaAnalysisException:
        return None
