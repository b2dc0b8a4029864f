"""The versions that are tried: which cells a change can touch, and what benchmarks/RESULTS.md says of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlglot

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def versions():
    spec = importlib.util.spec_from_file_location("versions_run", ROOT / "tests" / "versions" / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclass
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["provider/airflow_delta/log/expressions"], {"sqlglot-30_15", "sqlglot-30_18", "sqlglot-30_19", "sqlglot-30_23"}),
        (["provider/airflow_delta/testing/worker.py"], {"floor", "current", "prerelease"}),
        (["provider/airflow_delta/hooks/frames.py"], {"frames-old", "frames-new"}),
        (["provider/airflow_delta/hooks/frames.py.txt", "docs/faq.md"], set()),
        (["pyproject.toml"], {"install", "python-3_13", "python-3_14"}),
    ],
)
def test_cells_that_a_change_can_touch(versions, paths, expected):
    assert set(versions.touched(paths)) - {"newest"} == expected


def test_one_cell_more_by_turn(versions):
    every = ["install", *versions.cells()]
    assert [versions.chosen([], turn) for turn in range(len(every))] == [[name] for name in every]
    assert versions.chosen(["pyproject.toml"], 0)[-1] not in versions.touched(["pyproject.toml"])


def test_every_cell_says_what_it_depends_on(versions):
    from conftest import DEPENDS

    for name, cell in versions.cells().items():
        assert cell.tests, name
        assert set(cell.tests) <= DEPENDS.keys(), name
    assert versions.known()["rooms"].keys() == versions.NAMED.keys() | {versions.INSTALL}


def test_files_with_a_marker_are_read_for_its_cells_only(monkeypatch):
    from conftest import pytest_ignore_collect

    marked = ROOT / "tests" / "transaction" / "conflicts" / "test_by_rows.py"
    monkeypatch.setenv("TEST_DEPENDS", "sqlglot")
    assert pytest_ignore_collect(marked) is None
    monkeypatch.setenv("TEST_DEPENDS", "frames")
    assert pytest_ignore_collect(marked) is True


@pytest.mark.parametrize(
    ("file", "refused"),
    [("table/test_new.py", True), ("log/expressions/test_new.py", False), ("airflow/test_new.py", False)],
)
def test_a_test_of_the_engine_that_reads_sql_is_among_those_of_the_parser(file, refused, request, monkeypatch):
    monkeypatch.setenv("CHECK_DEPENDS", "1")
    guard = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    item = SimpleNamespace(path=ROOT / "tests" / file, iter_markers=lambda _: iter(()), get_closest_marker=lambda _: None)
    call = guard.pytest_runtest_call(item)
    next(call)
    sqlglot.parse_one("a > 1", dialect="spark")
    with pytest.raises(pytest.fail.Exception if refused else StopIteration):
        next(call)


def test_the_table_of_versions_has_every_cell(versions):
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")]
    assert [name for name in rows if name in {versions.INSTALL, *versions.cells()}] == [versions.INSTALL, *versions.cells()]


def test_parts_of_a_cell_are_the_whole_once_all_of_them_ran(versions, tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "RESULTS", tmp_path / "results.json")

    def ran(verdict: str, counts: str) -> dict[str, str]:
        return {"verdict": verdict, "counts": counts, "what": "Airflow 3.3.1", "seconds": "60", "date": "2026-01-01"}

    versions.keep("floor", ran("FAILED", "1 failed, 10 passed, 1 skipped"), "1/2")
    row = "| floor | Airflow 3.3.1 | {} | 2026-01-01 |"
    assert row.format("1 failed, 10 passed, 1 skipped (1 of 2 parts)") in versions.table()
    versions.keep("floor", ran("passed", "11 passed, 1 skipped"), "1/2")
    versions.keep("floor", ran("passed", "5 passed"), "2/2")
    assert row.format("16 passed, 1 skipped") in versions.table()
    assert versions.results()["floor"]["verdict"] == "passed"
    versions.keep("floor", ran("passed", "4 passed"), "1/4")
    assert row.format("4 passed (1 of 4 parts)") in versions.table()
    versions.keep("floor", ran("passed", "16 passed, 1 skipped"), None)
    assert row.format("16 passed, 1 skipped") in versions.table()
