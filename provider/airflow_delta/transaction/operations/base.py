"""An operation as ``commitInfo`` records it, without the constructors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgspec

from airflow_delta.transaction.operations.kinds import (
    KINDS,
    OVERWRITE_REMOVES,
    WRITE,
    WRITE_REPLACE_WHERE,
    OperationKind,
    operation_kind,
)

Columns = Sequence[str]


def document(value: Any) -> str:
    """Return a structured parameter as JSON text (it is encoded once more inside ``commitInfo``)."""
    return msgspec.json.encode(value).decode()


def present(**parameters: Any) -> dict[str, Any]:
    """Return the parameters that are not ``None``."""
    return {name: value for name, value in parameters.items() if value is not None}


@dataclass(frozen=True, slots=True)
class OperationBase:
    """What a commit does, as ``commitInfo`` records it.

    :param name: Delta's name of the operation.
    :param parameters: by name; lists and mappings become JSON text.
    :param metrics: operation metrics; written as strings, if the operation has a metric of that name.
    :param user_metadata: text for ``commitInfo.userMetadata``.
    :param can_change_partition_columns: it may change an existing table's partitioning; default: Delta's rule for its name.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] | None = None
    user_metadata: str | None = None
    can_change_partition_columns: bool | None = None

    @property
    def kind(self) -> OperationKind:
        """Delta's rules for operations of this name."""
        return operation_kind(self.name)

    @property
    def changes_data(self) -> bool:
        """Whether the operation changes data, whatever its actions say."""
        return self.kind.changes_data

    @property
    def may_change_partition_columns(self) -> bool:
        """Whether the operation may change an existing table's partitioning."""
        if self.can_change_partition_columns is not None:
            return self.can_change_partition_columns
        return self.kind.changes_partitioning

    @property
    def checks_loose_bounds(self) -> bool:
        """Whether files with a deletion vector must say that their statistics are not tight bounds."""
        return self.kind.checks_loose_bounds

    @property
    def updates_in_place(self) -> bool:
        """Whether the operation only changes what the log says about existing files."""
        return self.kind.in_place

    @property
    def metric_names(self) -> frozenset[str] | None:
        """Names that ``operationMetrics`` may hold; ``None`` for an operation that Delta does not have."""
        if self.name not in KINDS:
            return None
        if self.name == "WRITE":
            if {"predicate", "replaceOnCond", "replaceUsingCols"} & self.parameters.keys():
                return WRITE_REPLACE_WHERE
            return WRITE | OVERWRITE_REMOVES if self.parameters.get("mode") == "Overwrite" else WRITE
        return self.kind.metrics

    def encoded_parameters(self) -> dict[str, Any]:
        """Return ``operationParameters``: lists and mappings as JSON text, other values as they are."""
        return {
            name: document(value) if isinstance(value, Mapping | list | tuple | set | frozenset) else value
            for name, value in self.parameters.items()
        }

    def encoded_metrics(self) -> dict[str, str]:
        """Return ``operationMetrics``: numbers as strings, in the given order, without metrics the operation does not have."""
        allowed = self.metric_names
        return {
            name: str(value)
            for name, value in (self.metrics or {}).items()
            if value is not None and (allowed is None or name in allowed)
        }

    def with_metrics(self, metrics: Mapping[str, Any]) -> Self:
        """Return the operation with further metrics."""
        return replace(self, metrics={**(self.metrics or {}), **metrics})
