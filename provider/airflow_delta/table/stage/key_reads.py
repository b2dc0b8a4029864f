"""The key values of its source that a stage looked for in the table: narrower than the predicate of the read.

They travel from the report of the job in the staged write, to the commit that compares them with the files of others.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.key_values import KeyValues, problem_with
from airflow_delta.contract.manifest import encode_manifest, manifest_ref
from airflow_delta.contract.merge import ComparedColumns
from airflow_delta.contract.payloads import KeyRead, ManifestRef
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.staging_directory import KEYS_NAME
from airflow_delta.exceptions import StagingException
from airflow_delta.log import heavy
from airflow_delta.log.expressions.sql_text import quote_name
from airflow_delta.log.schema.types import INTEGRAL, DataType, DecimalType
from airflow_delta.table.stage.load import StageActions, load_key_rows, not_staged
from airflow_delta.table.stage.stage_view import StageView

if TYPE_CHECKING:
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.transaction.reads.key_set import KeySet


INLINE_ROWS = 4 * 1024
"""Bytes of JSON up to which the values travel inside the XCom."""


def key_reads(
    stage: StageView, request: StageRequest, report: StageReport, compared: Sequence[ComparedColumns]
) -> tuple[KeyRead, ...]:
    """Return what a report says about the key values that a stage looked for in the files of ``request.rewrite``.

    :param stage: the view of the attempt that the report is of.
    :param compared: columns that the rows of table and source are equal in.
    :return: nothing if the stage has read everything that the predicate of these files selects.
    :raises StagingException: if the key values are not those of such columns.
    """
    keys = report.keys
    predicate = read_predicate(request)
    if keys is None or (request.scan is not None and (request.scan.predicate or "true") == predicate):
        return ()
    problem = problem_with(keys, stage.target.struct) or _not_compared(keys, compared)
    if problem is not None:
        raise stage.handle.error(
            StagingException,
            f"The report of stage {request.stage} on table {request.table} has key values that the stage cannot have looked for: "
            f"{problem}. Nothing is committed. Clear the start task with everything downstream.",
        )
    rows, file = _stored(stage, keys)
    return (
        KeyRead(
            predicate=predicate,
            columns=keys.columns,
            null_safe=keys.null_safe,
            low=keys.low,
            high=keys.high,
            nulls=keys.nulls,
            rows=rows,
            file=file,
        ),
    )


def read_predicate(request: StageRequest) -> str:
    """Return the predicate of ``ReadSet.predicates`` for the files that a stage rewrites rows of."""
    return (None if request.rewrite is None else request.rewrite.predicate) or "true"


def _not_compared(keys: KeyValues, compared: Sequence[ComparedColumns]) -> str | None:
    known = {(key.column, key.null_safe) for key in compared}
    wrong = next((name for name, safe in zip(keys.columns, keys.null_safe, strict=True) if (name, safe) not in known), None)
    return None if wrong is None else f"{wrong} is not compared"


def _stored(stage: StageView, keys: KeyValues) -> tuple[tuple[tuple[object, ...], ...] | None, ManifestRef | None]:
    """Return the rows, or the file with them if they are many."""
    if keys.rows is None:
        return None, None
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() for row in keys.rows]
    data = encode_manifest(lines)
    if len(data) <= INLINE_ROWS:
        return tuple(map(tuple, keys.rows)), None
    path = f"{stage.directory}/{KEYS_NAME}"
    stage.log.store.put(path, data)
    return None, manifest_ref(path, data, len(lines))


def key_set(view: TransactionView, stage: StageActions, predicate: str) -> Callable[[], KeySet] | None:
    """Return what loads the values that a stage looked for among the rows of a predicate, ``None`` if it read all these rows.

    :param predicate: one of those that the stage has read by.
    """
    key = next((key for key in stage.write.reads.keys if key.predicate == predicate and key.columns), None)
    return None if key is None else partial(_load, view, stage, key)


def _load(view: TransactionView, stage: StageActions, key: KeyRead) -> KeySet:
    """Return the values.

    :raises ManifestException: if the file of the values is missing, truncated or altered.
    :raises StagingException: if the values are not those of the columns.
    """
    from airflow_delta.transaction.reads.key_set import KeySet

    rows = load_key_rows(view.log, view.handle, stage.write, key)
    columns = [view.predicate_of(stage, f"{quote_name(name)} IS NULL").columns[0] for name in key.columns]
    if not all(heavy.is_compared_exactly(column.data_type) for column in columns):
        raise not_staged(view.handle, stage.write, f"{', '.join(key.columns)} are not columns that can be compared exactly")
    readers = [_reader(column.data_type) for column in columns]

    def read(values: Any) -> tuple[Any, ...]:
        return tuple(None if value is None else reader(value) for reader, value in zip(readers, values, strict=True))

    try:
        return KeySet(
            columns=tuple(columns),
            null_safe=key.null_safe,
            low=read(key.low),
            high=read(key.high),
            nulls=key.nulls,
            rows=None if rows is None else frozenset(map(read, rows)),
        )
    except (ValueError, ArithmeticError, TypeError) as error:
        raise not_staged(view.handle, stage.write, f"a value of {', '.join(key.columns)} is not of its type ({error})") from error


def _reader(data_type: DataType) -> Callable[[Any], Any]:
    """Return the function from the JSON form of a value to the value."""
    if isinstance(data_type, DecimalType):
        return Decimal
    if data_type.name == "date":
        return dt.date.fromisoformat
    return _number if data_type.name in INTEGRAL else _text


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
