"""Row checks of a write: ``replaceWhere``, CHECK constraints and invariants, lengths of strings.

As on Spark, a condition that is null is violated. What only Spark can evaluate is refused before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from airflow_delta.contract.schema import broken_rule, refused_rows
from airflow_delta.contract.sql_types import length_problems
from airflow_delta.exceptions import (
    DeltaError,
    DeltaUnsupportedOperationException,
    PredicateException,
)
from airflow_delta.log.arrow.arrays import readable
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.schema.types import StructType
from airflow_delta.table.read.row_filter import check_decidable, selected

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.contract.payloads import Json
    from airflow_delta.contract.request import StageRequest

Check = Callable[["pa.RecordBatch"], None]

_LIMITED = re.compile(r"char_length\(.*\) > (\d+)", re.DOTALL)
_VALUE_LENGTH = 2000


def row_checks(request: StageRequest, target: Json, schema: StructType) -> list[Check]:
    """Return the checks of the rows of a write; each raises for a batch with a row that breaks its rule.

    :param target: schema of the rows in JSON form.
    :param schema: the same, parsed.
    :raises DeltaUnsupportedOperationException: if the table has a rule that only Spark can check; names it.
    """
    rules, partitions = request.rules, request.partition_columns
    checks: list[Check] = []
    if request.replace_where is not None:
        text = request.predicate or request.replace_where
        predicate = _predicate(request, text, schema, partitions, f"is overwritten by replace_where ({request.replace_where})")
        checks.append(_true(predicate, _outside(request, predicate)))
    for name, text in rules.checks.items():
        predicate = _predicate(request, text, schema, partitions, f"has the CHECK constraint {name} ({text})")
        checks.append(_true(predicate, _violation(request, name, text, predicate)))
    for field in target["fields"]:
        for path, expression, limit in length_problems(field):
            match = _LIMITED.fullmatch(expression)
            if match is None or path != field["name"]:
                raise needs_spark(request, f"limits the length of strings inside column {field['name']} ({path}: {limit})")
            checks.append(_short(request, path, int(match[1]), limit))
    return checks


def needs_spark(request: StageRequest, why: str) -> DeltaUnsupportedOperationException:
    """Return the error of a write that only Spark can do."""
    return request.error(
        DeltaUnsupportedOperationException,
        f"Stage {request.stage} cannot write without Spark: table {request.table} version {request.read_version} {why}. Use "
        'engine="spark".',
    )


def _predicate(request: StageRequest, text: str, schema: StructType, partitions: Collection[str], why: str) -> Predicate:
    try:
        predicate = Predicate.parse(text, schema, tuple(partitions))
        check_decidable(predicate, request.table, request.read_version)
    except PredicateException as error:
        raise needs_spark(request, f"{why}, which is not evaluated here ({error.message})") from error
    return predicate


def _true(predicate: Predicate, error: Callable[[pa.RecordBatch], DeltaError]) -> Check:
    def check(batch: pa.RecordBatch) -> None:
        wrong = pc.indices_nonzero(pc.invert(selected(predicate, batch)))
        if len(wrong):
            raise error(batch.slice(wrong[0].as_py(), 1))

    return check


def _outside(request: StageRequest, predicate: Predicate) -> Callable[[pa.RecordBatch], DeltaError]:
    return _broken(request, *broken_rule("replace_where", str(request.replace_where)), predicate)


def _violation(request: StageRequest, name: str, text: str, predicate: Predicate) -> Callable[[pa.RecordBatch], DeltaError]:
    return _broken(request, *broken_rule("check", name, text), predicate)


def _broken(
    request: StageRequest, kind: type[DeltaError], what: str, predicate: Predicate
) -> Callable[[pa.RecordBatch], DeltaError]:
    """Return a function that makes the error of a row, with its values of the columns of a predicate."""
    columns: Sequence[str] = list(dict.fromkeys(column.path[0] for column in predicate.columns))

    def error(row: pa.RecordBatch) -> DeltaError:
        values = {column: readable(row.column(column))[0] for column in columns}
        return kind(
            f"{what}: {str(values)[:_VALUE_LENGTH]}{refused_rows(request.table, request.read_version)}",
            table=request.table,
            version=request.read_version,
        )

    return error


def _short(request: StageRequest, name: str, most: int, limit: str) -> Check:
    def check(batch: pa.RecordBatch) -> None:
        longest = pc.max(pc.utf8_length(batch.column(name))).as_py()
        if longest is not None and longest > most:
            error, what = broken_rule("length", name, limit)
            tail = refused_rows(request.table, request.read_version)
            raise error(f"{what}{tail}", table=request.table, version=request.read_version)

    return check
