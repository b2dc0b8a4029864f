"""Rows with awkward values, and what an expression is for each of them: here and in Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.exceptions import DeltaAnalysisException, DeltaUnsupportedOperationException
from airflow_delta.log.arrow.values import readable
from airflow_delta.log.schema.types import parse_type
from airflow_delta.table.expressions.row_expression import RowExpression, columns_of, row_expression

NAN, INFINITE = float("nan"), float("inf")
ROWS = 46
FAILED, REFUSED = "failed", "refused"
_FAILING_ROWS = 2


def _day(*parts: int) -> dt.date:
    return dt.date(*parts)


_DAYS = [
    _day(2024, 2, 29),
    None,
    _day(1, 1, 1),
    _day(9999, 12, 31),
    _day(1582, 10, 4),
    _day(1582, 10, 15),
    _day(1969, 12, 31),
    _day(1970, 1, 1),
    _day(2023, 12, 31),
]
_TIMES = [
    dt.datetime(2024, 2, 29, 23, 59, 59, 999_999),
    dt.datetime(1969, 12, 31, 23, 59, 59, 1),
    None,
    dt.datetime(1, 1, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(1582, 10, 10, 12),
    dt.datetime(2024, 3, 31, 2, 30, 0, 100),
]
_VALUES: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "b": ("byte", pa.int8(), [1, None, -128, 127, 0]),
    "h": ("short", pa.int16(), [-32768, 7, 32767, None, 0, -1]),
    "i": ("integer", pa.int32(), [0, -(2**31), 2**31 - 1, None, 3, -7, 100]),
    "j": ("integer", pa.int32(), [1, 2, None, -3, 0, 40, 5, -1]),
    "l": ("long", pa.int64(), [5, None, -(2**63), 2**63 - 1, 0, -1, 10**12]),
    "f": ("float", pa.float32(), [1.5, NAN, -0.0, None, 0.0, INFINITE, -INFINITE, 3.4e38, 0.1]),
    "d": ("double", pa.float64(), [NAN, 0.1, -0.0, 0.0, None, 1e308, -1.5, INFINITE, 2.5, -INFINITE, 5e-324]),
    "c": ("decimal(10,2)", pa.decimal128(10, 2), [None, *map(Decimal, ["1.25", "-0.01", "99999999.99", "0", "-2.50"])]),
    "e": (
        "decimal(38,18)",
        pa.decimal128(38, 18),
        [Decimal("9" * 20 + "." + "9" * 18), None, Decimal("-1.5"), Decimal("0.000000000000000001"), Decimal(0)],
    ),
    "g": ("decimal(38,0)", pa.decimal128(38, 0), [Decimal("9" * 38), Decimal("-" + "9" * 38), None, Decimal(12), Decimal(0)]),
    "s": (
        "string",
        pa.string(),
        ["abc", "", " a b ", None, "\tx\n", "ÄÖü ß", "a%b_c\\", "😀é漢z", "ABC", "0", "x\u00a0", "zzzzzzzz", "İı", "é"],
    ),
    "q": ("string", pa.string(), ["a", None, "", "b", "%", "é", "😀", " "]),
    "n": (
        "string",
        pa.string(),
        ["1", " 2 ", "-3", "1.5", "abc", None, "", "2147483648", "1e3", "NaN", "9223372036854775808", "+7", "0.10", "true", ".5"],
    ),
    "w": (
        "string",
        pa.string(),
        ["2024-02-29", "2023-02-29", None, "2024-1-5", " 2024-01-05 10:11:12.5 ", "2024-01-05T10:11:12Z", "x", "2024", "10:11"],
    ),
    "o": ("boolean", pa.bool_(), [True, False, None]),
    "p": ("boolean", pa.bool_(), [None, True, True, False]),
    "y": ("binary", pa.binary(), [b"", b"\xff\x00", None, b"abc", b"ab"]),
    "t": ("date", pa.date32(), _DAYS),
    "r": ("date", pa.date32(), [*_DAYS[3:], _day(2024, 3, 31), *_DAYS[:3]]),
    "u": ("timestamp", pa.timestamp("us", "UTC"), [None if at is None else at.replace(tzinfo=dt.UTC) for at in _TIMES]),
    "v": ("timestamp_ntz", pa.timestamp("us"), _TIMES[::-1]),
}


def awkward_rows() -> pa.Table:
    """Return rows of which every column has awkward values, combined in many ways."""
    columns: dict[str, pa.Array] = {"id": pa.array(range(ROWS), pa.int32())}
    for name, (_, kind, values) in _VALUES.items():
        columns[name] = pa.array(list(islice(cycle(values), ROWS)), kind)
    structs = [{"x": 1, "Z": "a"}, None, {"x": None, "Z": "b"}]
    columns["st"] = pa.array(list(islice(cycle(structs), ROWS)), pa.struct([("x", pa.int32()), ("Z", pa.string())]))
    lists = [[1, 2], None, [], [None, 3], [0]]
    columns["ar"] = pa.array(list(islice(cycle(lists), ROWS)), pa.list_(pa.int32()))
    return pa.table(columns)


def schema() -> Any:
    """Return the schema of the rows, as a table has it."""
    fields = [{"name": "id", "type": "integer"}, *({"name": name, "type": kind} for name, (kind, _, _) in _VALUES.items())]
    inner = [{"name": "x", "type": "integer"}, {"name": "Z", "type": "string"}]
    fields.append({"name": "st", "type": {"type": "struct", "fields": inner}})
    fields.append({"name": "ar", "type": {"type": "array", "elementType": "integer", "containsNull": True}})
    return parse_type({"type": "struct", "fields": fields})


@contextmanager
def spark_view(spark: Any, rows: pa.Table, directory: Path) -> Iterator[str]:
    """Make the rows a view in Spark, in ANSI mode and UTC."""
    path = directory / "rows.parquet"
    pq.write_table(rows, path)
    before = {name: spark.conf.get(name) for name in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")}
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.ansi.enabled", "true")
    frame = spark.read.parquet(str(path)).coalesce(1).cache()
    frame.createOrReplaceTempView("awkward")
    try:
        yield "awkward"
    finally:
        spark.catalog.dropTempView("awkward")
        frame.unpersist()
        for name, value in before.items():
            spark.conf.set(name, value)


def here(expression: RowExpression, rows: pa.Table) -> list[str]:
    """Return the value for each row, :data:`FAILED` or :data:`REFUSED`; all rows at once must give the same values."""
    (batch,) = rows.combine_chunks().to_batches()
    found = []
    for number in range(len(rows)):
        try:
            found.append(shown(expression.values(batch.slice(number, 1)))[0])
        except DeltaAnalysisException:
            found.append(FAILED)
        except DeltaUnsupportedOperationException:
            found.append(REFUSED)
    good = [number for number, value in enumerate(found) if value not in (FAILED, REFUSED)]
    together = shown(expression.values(batch.take(pa.array(good, pa.int64()))))
    assert together == [found[number] for number in good], expression.text
    return found


def shown(values: Any) -> list[str]:
    """Return values in a form that is equal only if they are the same: NaN, and zeros with their signs."""
    return [repr(value) for value in readable(values)]


def differences(spark: Any, view: str, rows: pa.Table, texts: Sequence[str]) -> list[str]:
    """Return how expressions that are decided here differ from Spark's, for each that does."""
    resolve = columns_of(schema())
    expressions = [row_expression(text, resolve) for text in texts]
    ours = [here(expression, rows) for expression in expressions]
    problems: list[str] = []
    for start in range(0, len(texts), 40):
        part = range(start, min(start + 40, len(texts)))
        problems += _batch(spark, view, [(expressions[number], ours[number]) for number in part])
    for expression, found in zip(expressions, ours, strict=True):
        failed = [number for number, value in enumerate(found) if value == FAILED]
        for number in failed[:_FAILING_ROWS]:
            try:
                value = spark.sql(f"SELECT {expression.text} AS v FROM {view} WHERE id = {number}").toArrow()
            except Exception:
                continue
            problems.append(f"{expression.text}: row {number} fails here, in Spark it is {shown(value['v'])}")
    return problems


def _batch(spark: Any, view: str, decided: list[tuple[RowExpression, list[str]]]) -> list[str]:
    def select(chosen: list[tuple[RowExpression, list[str]]]) -> Any:
        columns = [
            f"CASE WHEN id IN (-1{''.join(f',{n}' for n, v in enumerate(found) if v not in (FAILED, REFUSED))}) "
            f"THEN ({expression.text}) END AS v{number}"
            for number, (expression, found) in enumerate(chosen)
        ]
        frame = spark.sql(f"SELECT id, {', '.join(columns)} FROM {view} ORDER BY id")
        return frame, frame.toArrow()

    try:
        frame, result = select(decided)
    except Exception as error:
        if len(decided) == 1:
            return [f"{decided[0][0].text}: fails in Spark: {str(error)[:300]}"]
        return [problem for one in decided for problem in _batch(spark, view, [one])]
    problems = []
    for number, (expression, found) in enumerate(decided):
        kind = str(frame.schema[f"v{number}"].dataType.simpleString())
        if kind.lower() != str(expression.data_type).lower():
            problems.append(f"{expression.text}: is a {expression.data_type} here, a {kind} in Spark")
            continue
        theirs = shown(result[f"v{number}"].combine_chunks())
        wrong = [
            f"row {n}: {ours} here, {other} in Spark"
            for n, (ours, other) in enumerate(zip(found, theirs, strict=True))
            if ours not in (FAILED, REFUSED, other)
        ]
        problems += [f"{expression.text}: {'; '.join(wrong[:3])}"] if wrong else []
    return problems
