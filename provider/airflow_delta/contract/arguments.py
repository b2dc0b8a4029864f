"""Arguments of operations in their requests: typed values with a JSON form.

An operation with arguments of its own has a class in :mod:`airflow_delta.contract.operations`. Its command makes it, its Spark
module reads it (``XArguments.of(request)``), and no other code knows its fields.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import Json, Payload
from airflow_delta.contract.request import StageRequest
from airflow_delta.light_dataclasses import dataclass

if TYPE_CHECKING:
    from typing import Self  # not in Python 3.10, which clusters may have


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments(Payload):
    """Arguments of every operation. The JSON form leaves out fields that are ``None``.

    :param after: ids of the stages that the request was planned on top of.
    :param earlier: those stages as their tasks returned them.
    """

    after: tuple[str, ...] = ()
    earlier: tuple[dict, ...] = ()  # type: ignore[type-arg]

    def to_dict(self) -> Json:
        """Return plain JSON."""
        return {name: value for name, value in Payload.to_dict(self).items() if value is not None}

    @classmethod
    def of(cls, request: StageRequest) -> Self:
        """Return the arguments of a request."""
        return cls.from_dict(request.arguments)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowIds(Payload):
    """Columns of row ids, and the first row id of each file of the plan (Delta protocol, "Row Tracking").

    :param columns: physical names of the columns with row ids and row commit versions.
    :param base: first row id of each file.
    :param version: row commit version of each file.
    """

    columns: tuple[str, ...]
    base: tuple[int, ...]
    version: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RewriteArguments(Arguments):
    """Arguments of operations that rewrite rows; DELETE has no others.

    :param operation_parameters: ``operationParameters`` of the commit.
    :param row_ids: ``None`` if the table has no row ids that could be kept.
    """

    operation_parameters: dict = field(default_factory=dict)  # type: ignore[type-arg]
    row_ids: RowIds | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceArguments(RewriteArguments):
    """Arguments of operations whose rows come from a source.

    :param source: where a submitted job reads the source: ``sql``, or ``path`` with ``format`` and ``options``.
    """

    source: dict | None = None  # type: ignore[type-arg]
