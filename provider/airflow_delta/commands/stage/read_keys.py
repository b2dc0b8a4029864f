"""The key values that a stage says it looked for, as the commit compares them with the files of others."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.stage.load import StageActions, load_key_rows, not_staged
from airflow_delta.log.expressions.arrow_rows import is_compared_exactly
from airflow_delta.log.schema.types import INTEGRAL, DataType, DecimalType

if TYPE_CHECKING:
    from airflow_delta.commands.stage.view import TransactionView
    from airflow_delta.staging.contract import KeyRead
    from airflow_delta.transaction.reads.key_set import KeySet


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
    from airflow_delta.log.expressions.ast import quote_name
    from airflow_delta.transaction.reads.key_set import KeySet

    rows = load_key_rows(view.log, view.handle, stage.write, key)
    columns = [view.predicate_of(stage, f"{quote_name(name)} IS NULL").columns[0] for name in key.columns]
    if not all(is_compared_exactly(column.data_type) for column in columns):
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
