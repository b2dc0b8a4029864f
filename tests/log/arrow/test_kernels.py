"""Arrow's kernels without ``pyarrow.compute``: the same functions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_delta.log.arrow import kernels
from support.places import files

PROVIDER = Path(kernels.__file__).parents[2]
USED = sorted({name for path in files(PROVIDER, "**/*.py") for name in re.findall(r"\bkernels\.([a-z]\w*)\(", path.read_text())})
NUMBERS, TEXTS = pa.array([3, None, 1, 3]), pa.array(["a/b", None, "c", "a/b"])
TRUTHS, FLOATS = pa.array([True, None, False, True]), pa.array([1.5, None, float("nan"), 1.0])

CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("add", (NUMBERS, NUMBERS), {}),
    ("and_kleene", (TRUTHS, TRUTHS), {}),
    ("or_", (TRUTHS, TRUTHS), {}),
    ("any", (TRUTHS,), {}),
    ("all", (TRUTHS,), {"skip_nulls": False}),
    ("binary_join_element_wise", (TEXTS, TEXTS, pa.scalar("-")), {}),
    ("cast", (NUMBERS, pa.string()), {}),
    ("cast", (NUMBERS, pa.float64()), {}),
    ("coalesce", (NUMBERS, pa.scalar(7)), {}),
    ("dictionary_encode", (TEXTS,), {"null_encoding": "encode"}),
    ("drop_null", (TEXTS,), {}),
    ("ends_with", (TEXTS,), {"pattern": "b"}),
    ("fill_null", (NUMBERS, pa.scalar(7)), {}),
    ("fill_null", (NUMBERS, pa.scalar(7, pa.int8())), {}),
    ("filter", (pa.record_batch({"n": NUMBERS}), TRUTHS), {}),
    ("filter", (pa.table({"n": NUMBERS}), TRUTHS), {}),
    ("filter", (pa.chunked_array([TEXTS]), TRUTHS), {}),
    ("is_in", (TEXTS,), {"value_set": pa.array(["c", None])}),
    ("is_nan", (FLOATS,), {}),
    ("list_element", (pa.array([[1, 2], [3]]), pa.scalar(0)), {}),
    ("map_lookup", (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), pa.scalar("k"), "first"), {}),
    ("match_substring_regex", (TEXTS, "^a"), {}),
    ("max_element_wise", (NUMBERS, pa.scalar(2)), {"skip_nulls": False}),
    ("min_max", (NUMBERS,), {}),
    ("replace_with_mask", (TRUTHS, pa.array([True, False, True, False]), pa.array([False, False])), {}),
    ("sort_indices", (NUMBERS,), {}),
    ("sort_indices", (pa.table({"n": NUMBERS}),), {"sort_keys": [("n", "descending")]}),
    ("split_pattern", (TEXTS,), {"pattern": "/", "max_splits": 1, "reverse": True}),
    ("struct_field", (pa.array([{"x": 1}]), [0]), {}),
    ("take", (TEXTS, pa.array([2, 0])), {}),
    ("utf8_slice_codeunits", (TEXTS, 0, 1), {}),
    ("value_counts", (TEXTS,), {}),
]


@pytest.mark.parametrize(("name", "arguments", "options"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_kernel_gives_what_pyarrow_compute_gives(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    found, expected = getattr(kernels, name)(*arguments, **options), getattr(pc, name)(*arguments, **options)
    assert found.equals(expected)
    assert type(found) is type(expected)


@pytest.mark.parametrize("name", USED)
def test_what_is_called_here_is_the_kernel_of_that_name(name: str) -> None:
    assert name in kernels._WRITTEN or kernels._function(name) is not None
    known = getattr(getattr(pc, name), "__arrow_compute_function__", {"name": name})  # some are written by hand
    assert name in kernels._WRITTEN or kernels._compute().get_function(name.rstrip("_")).name == known["name"]


def test_what_does_not_fit_is_an_error_too() -> None:
    with pytest.raises(pa.ArrowInvalid):
        kernels.cast(TEXTS, pa.int64())
    with pytest.raises(pa.ArrowInvalid):
        kernels.equal(NUMBERS)
    with pytest.raises(AttributeError):
        _ = kernels.no_kernel


def test_a_release_of_arrow_that_has_moved_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(kernels), "greater", raising=False)

    def moved() -> Any:
        raise ImportError("No module named 'pyarrow._compute'")

    monkeypatch.setattr(kernels, "_compute", moved)
    assert kernels.greater is pc.greater
    monkeypatch.delitem(vars(kernels), "greater")


def test_pyarrow_compute_is_not_imported() -> None:
    code = (
        "import sys, pyarrow as pa; from airflow_delta.log.arrow import kernels; x = pa.nulls(2, pa.int64());"
        "kernels.filter(x, kernels.is_null(kernels.cast(x, pa.string()))); assert 'pyarrow.compute' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
