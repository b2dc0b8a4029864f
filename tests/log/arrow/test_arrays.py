"""Python values to Arrow and back: what pyarrow's own conversions give, without pandas."""

from __future__ import annotations

import ast
import datetime as dt
import decimal
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.log.arrow.arrays import array, repeated, scalar
from airflow_delta.log.arrow.values import to_pylist
from support.places import files

PROVIDER = Path(__file__).parents[3] / "provider/airflow_delta"
MAP = pa.map_(pa.string(), pa.string())
NESTED = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string()), ("at", pa.timestamp("us", "UTC"))]))])
MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC)

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [127, None, -128]),
    (pa.int16(), [1]),
    (pa.int32(), []),
    (pa.int64(), [2**63 - 1, None, -(2**63)]),
    (pa.uint64(), [2**64 - 1]),
    (pa.float32(), [1.5, None]),
    (pa.float64(), [1, 2.5, math.inf, None]),
    (pa.bool_(), [True, None, False] * 5),
    (pa.string(), ["a", None, "é😀", ""]),
    (pa.string(), ["ascii", "only"]),
    (pa.string(), [None, None]),
    (pa.binary(), [b"x\x00", None, b""]),
    (pa.date32(), [dt.date(2024, 2, 29), None, dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.timestamp("us", "UTC"), [MOMENT, None, dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)]),
    (pa.timestamp("us", "UTC"), [MOMENT.astimezone(dt.timezone(dt.timedelta(hours=5)))]),
    (pa.timestamp("us"), [dt.datetime(1960, 1, 1, 1, 2, 3, 4)]),
    (pa.decimal128(10, 2), [decimal.Decimal("1.50"), None, decimal.Decimal("-99999999.99"), 3, decimal.Decimal("1E+3")]),
    (pa.decimal128(38, 38), [decimal.Decimal("0." + "9" * 38), decimal.Decimal("1.5000e-3")]),
    (pa.list_(pa.string()), [["a", None], [], None]),
    (MAP, [{"a": "b", "c": None}, {}, None]),
    (NESTED, [{"a": 1, "b": {"c": "x", "at": MOMENT}}, None, {"a": None}, {"a": 2, "b": None}]),
]


def as_pairs(value: Any, data_type: pa.DataType) -> Any:
    return list(value.items()) if pa.types.is_map(data_type) and value is not None else value


@pytest.mark.parametrize(("data_type", "values"), VALUES, ids=lambda case: str(case)[:20])
def test_the_array_is_that_of_pyarrow(data_type: pa.DataType, values: list[Any]) -> None:
    found = array(values, data_type)
    found.validate(full=True)
    assert found.equals(pa.array([as_pairs(value, data_type) for value in values], data_type))
    assert to_pylist(found) == found.to_pylist()
    assert to_pylist(found[1:]) == found[1:].to_pylist()
    if values:
        assert scalar(values[0], data_type) == found[0]
        assert repeated(values[0], 3, data_type) == pa.concat_arrays([found[:1]] * 3)


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        (True, pa.bool_()),
        (5, pa.int64()),
        (0.5, pa.float64()),
        ("x", pa.string()),
        (b"x", pa.binary()),
        (dt.date(2024, 1, 1), pa.date32()),
    ],
)
def test_the_type_of_a_scalar_is_that_of_its_value(value: Any, data_type: pa.DataType) -> None:
    assert scalar(value).type == data_type
    assert scalar(value).as_py() == value


def test_scalars_that_python_calls_equal_are_told_apart() -> None:
    assert [scalar(value).type for value in (1, True, 1.0, 0, False, 0.0)] == [pa.int64(), pa.bool_(), pa.float64()] * 2
    assert [math.copysign(1, scalar(value, pa.float64()).as_py()) for value in (0, 0.0, -0.0, 0.0)] == [1, 1, -1, 1]
    assert [scalar(None, data_type).type for data_type in (pa.int32(), pa.string())] == [pa.int32(), pa.string()]
    assert [scalar(0, data_type).type for data_type in (pa.int32(), pa.float64(), pa.int32())] == [
        pa.int32(), pa.float64(), pa.int32()
    ]  # fmt: skip
    for _ in range(2):
        with pytest.raises(TypeError):
            scalar(True, pa.int64())


@pytest.mark.parametrize(
    ("values", "data_type", "error"),
    [
        ([1.5], pa.int64(), TypeError),
        ([True], pa.int64(), TypeError),
        ([1], pa.bool_(), TypeError),
        ([1], pa.string(), TypeError),
        (["x"], pa.float64(), TypeError),
        (["2024-01-01"], pa.date32(), TypeError),
        ([300], pa.int8(), OverflowError),
        ([2**63], pa.int64(), OverflowError),
        ([10**400], pa.float64(), OverflowError),
        ([decimal.Decimal("1.555")], pa.decimal128(10, 2), ValueError),
        ([decimal.Decimal("1e9")], pa.decimal128(10, 2), ValueError),
        ([decimal.Decimal("1e-999999999")], pa.decimal128(10, 2), ValueError),
        ([decimal.Decimal("NaN")], pa.decimal128(10, 2), ValueError),
        ([dt.time(1)], pa.time64("us"), TypeError),
    ],
)
def test_values_that_do_not_fit(values: list[Any], data_type: pa.DataType, error: type[Exception]) -> None:
    with pytest.raises(error):
        array(values, data_type)


def test_no_conversion_loads_pandas() -> None:
    program = (
        "import sys; from log.arrow.test_arrays import *; assert 'pandas' not in sys.modules, 'the test itself'\n"
        "for data_type, values in VALUES: to_pylist(array(values, data_type))\n"
        "assert 'pandas' not in sys.modules"
    )
    tests = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r}); {program}"], check=True, timeout=240)


# -- what would import pandas ----------------------------------------------------------------------------------------------------

# The arguments after the first of these are options, which are not converted.
_WITH_OPTIONS = {"extract_regex", "map_lookup", "match_substring", "sort_indices", "struct_field", "utf8_slice_codeunits"}
_CONVERTING = {
    "pa": {"array", "scalar"},
    "pc": {"scalar", "field"},
    "pq": {"read_table", "read_pandas", "ParquetDataset"},
}
_METHODS = {"from_pylist", "from_pydict", "from_pandas", "group_by", "join_asof", "sort_by", "to_numpy", "to_pandas"}


def conversions(source: str) -> list[str]:
    """Return the calls by which pyarrow would convert a Python value, or import pyarrow.dataset."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        module = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
        plain = any(isinstance(value, ast.Constant | ast.JoinedStr) for value in node.args[1:])
        if (
            node.func.attr in _CONVERTING.get(module, ())
            or node.func.attr in _METHODS
            or (module in ("pc", "kernels") and plain and node.func.attr not in _WITH_OPTIONS)
            or (node.func.attr == "fill_null" and module not in ("pc", "kernels"))
        ):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_what_is_found_does_import_pandas() -> None:
    for line in ("pa.array([1])", "pc.equal(x, 1)", "pc.if_else(x, x, None)", "t.group_by('a').aggregate([])", "x.fill_null(0)"):
        assert conversions(f"y = {line}"), line
        program = "import pyarrow as pa, pyarrow.compute as pc; x = pa.nulls(1, pa.int64()); t = pa.table([x], names=['a'])\n"
        check = f"import sys\ntry: {line}\nexcept pa.ArrowException: pass\nassert 'pandas' in sys.modules"
        subprocess.run([sys.executable, "-c", program + check], check=True, timeout=240)


@pytest.mark.parametrize("room", ["log", "transaction", "table", "publication"])
def test_the_engine_converts_values_in_one_place(room: str) -> None:
    """Plain values that are variables do not show here; ``test_light_processes`` runs what tasks do."""
    sources = {path: path.read_text() for path in files(PROVIDER / room, "**/*.py") if "arrow" not in path.parent.name}
    found = {str(path.relative_to(PROVIDER)): conversions(text) for path, text in sources.items() if "pyarrow" in text}
    assert {path: lines for path, lines in found.items() if lines} == {}
