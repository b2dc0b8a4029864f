"""Rows that are copied, since other rows of their files change: they too must obey the rules of their table, as on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.table_rules import broken_rule, refused_rows
from airflow_delta.log.arrow.values import readable
from airflow_delta.log.schema.types import struct_of
from airflow_delta.table.arrow.rewrite.new_values import Values, stored_values
from airflow_delta.table.arrow.row_checks import Check, check_not_null, has_not_null, row_checks
from airflow_delta.table.expressions.equality import are_equal
from airflow_delta.table.expressions.row_expression import columns_of

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import Json
    from airflow_delta.contract.request import StageRequest
    from airflow_delta.log.schema.types import StructType

Checked = Callable[["pa.RecordBatch"], "pa.RecordBatch"]
"""Returns rows, none of which breaks a rule."""


def copied_rows(request: StageRequest, target: Json, checks: Sequence[Check] | None = None) -> Checked:
    """Return the function that checks rows that are copied. Another writer may have left some that break a rule.

    :param target: schema of the table in JSON form.
    :param checks: of the rules of the table, where they are known.
    :raises DeltaUnsupportedOperationException: if the table has a rule that only Spark can check.
    """
    schema: StructType = struct_of(target)
    known = [*(row_checks(request, target, schema) if checks is None else checks), *_of_generated(request, schema)]
    never_null = [field for field in schema if not field.nullable or has_not_null(field.data_type)]

    def checked(rows: pa.RecordBatch) -> pa.RecordBatch:
        for field in never_null:
            check_not_null(field, rows.column(field.name), table=request.table, version=request.read_version)
        for check in known:
            check(rows)
        return rows

    return checked


def _of_generated(request: StageRequest, schema: StructType) -> Iterator[Check]:
    for name, text in request.rules.generated.items():
        field = schema.find(name)
        if field is not None:
            why = f"has the generated column {field.name} ({text})"
            values = stored_values(text, field.name, field.data_type, columns_of(schema), request, why)
            yield _as_generated(request, field.name, text, values)


def _as_generated(request: StageRequest, name: str, text: str, values: Values) -> Check:
    def check(rows: pa.RecordBatch) -> None:
        found = rows.column(name)
        wrong = pc.indices_nonzero(pc.invert(are_equal(found, values(rows))))
        if len(wrong):
            error, what = broken_rule("generated", name, text)
            shown = {name: readable(found.take(wrong.slice(0, 1)))[0]}
            raise request.error(error, f"{what}: {shown}{refused_rows(request.table, request.read_version)}")

    return check
