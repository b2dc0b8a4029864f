from __future__ import annotations

import functools
import gc
import logging
import os
import re
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.parts import keep_part
from support.programs import pyspark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from support.state_store import Supervisor
    from support.table import Table

HERE = Path(__file__).parent
DEPENDS = {
    "airflow": ("airflow", "ui", "testing"),
    "frames": (
        "airflow/test_arrow_stages.py",
        "airflow/test_get_df.py",
        "table/arrow",
        "table/files/test_finished.py",
        "log/arrow",
    ),
    "jobs": ("airflow/test_job_runs.py",),
    "judged_jobs": ("delta_spark/test_jobs.py",),
    "older_spark": ("spark",),
    "pyarrow": ("log", "transaction", "table", "publication"),
    "python": ("log", "transaction", "contract", "table", "publication", "conformance", "streaming"),
    "spark": ("spark",),
    "sqlglot": (
        "contract/test_drift.py",
        "log/expressions",
        "log/features/test_column_mapping.py",
        "log/features/test_generated_columns.py",
        "table/arrow/test_same_as_spark.py",
        "table/arrow/test_stage_rows.py",
        "table/definition/test_create.py",
        "table/effects/test_merge_keys.py",
        "table/operations/merge",
        "table/operations/rewrite",
        "table/stage/test_data_change.py",
        "table/stage/test_forged_handles.py",
        "table/stage/test_key_reads.py",
    ),
}
"""What other packages' versions can change, by folder or file; beside it, the markers ``depends`` and ``spark``."""


def _by_place(file: Path) -> set[str]:
    path = file.relative_to(HERE).as_posix()
    return {name for name, places in DEPENDS.items() if any(path == place or path.startswith(f"{place}/") for place in places)}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave files out that have nothing of ``TEST_DEPENDS``: to import all would take longer than many of its tests."""
    wanted = set(os.environ.get("TEST_DEPENDS", "").split())
    if (
        not wanted
        or collection_path.suffix != ".py"
        or HERE not in collection_path.parents
        or wanted & _by_place(collection_path)
    ):
        return None
    text = collection_path.read_text()
    marked = {name for names in re.findall(r"mark\.depends\((.*?)\)", text) for name in re.findall(r'"(\w+)"', names)}
    return None if wanted & marked or ("spark" in wanted and "mark.spark" in text) else True


def _depends(item: pytest.Item) -> set[str]:
    found = _by_place(item.path)
    for marker in item.iter_markers("depends"):
        found.update(marker.args)
    if item.get_closest_marker("spark"):
        found.add("spark")
    return found


@functools.cache
def _read_sql() -> list[str]:
    """Return a list that has, from now on, the SQL that sqlglot reads."""
    from sqlglot.tokens import Tokenizer

    read: list[str] = []
    tokenize = Tokenizer.tokenize

    def noted(self: Tokenizer, sql: str) -> object:
        read.append(sql)
        return tokenize(self, sql)

    Tokenizer.tokenize = noted
    return read


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Refuse a test of the engine that reads SQL with sqlglot, and is not among those that run with other versions of it.

    Only with ``CHECK_DEPENDS=1``: SQL is read once in a process, so the order of tests decides who reads it. Tests of Spark and
    Airflow and slow ones are left out: others read the same SQL.
    """
    if os.environ.get("CHECK_DEPENDS") != "1":
        return (yield)
    left_out = {"spark", "sqlglot"} & _depends(item) or any(item.get_closest_marker(name) for name in ("airflow", "slow"))
    if left_out or item.path.relative_to(HERE).parts[0] not in DEPENDS["python"]:
        return (yield)
    read = _read_sql()
    read.clear()
    result = yield
    if read:
        pytest.fail('it reads SQL with sqlglot: it belongs into DEPENDS, or has the marker depends("sqlglot")', pytrace=False)
    return result


@pytest.hookimpl(trylast=True)  # after -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what depends on ``TEST_DEPENDS`` (``airflow sqlglot``), and ``TEST_PART`` of that: ``2/3`` is the second of three.

    Parts are of files; of slow tests, scenarios, pages, clusters and services one by one. ``TEST_ONLY`` are lines of pytest's
    summary, without the word at their beginning: of what is left, the tests that they name.
    """

    def name(item: pytest.Item) -> str:
        path = item.path.relative_to(HERE)
        alone = any(item.get_closest_marker(kind) for kind in ("slow", "live", "browser", "clusters", "kubernetes", "services"))
        return item.nodeid if alone else path.as_posix()

    if wanted := set(os.environ.get("TEST_DEPENDS", "").split()):
        others = [item for item in items if not wanted & _depends(item)]
        left = set(others)
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=others)
    keep_part(config, items, "TEST_PART", name)
    keep_part(config, items, "DELTA_SPARK_PART", lambda item: item.nodeid if item.get_closest_marker("delta_spark") else None)
    if only := os.environ.get("TEST_ONLY", "").splitlines():
        named = [item for item in items if any(f"{line} - ".startswith(f"{item.nodeid} - ") for line in only)]
        if len(named) != len(only):
            raise pytest.UsageError(f"TEST_ONLY names {len(only)} tests, of which {len(named)} are here.")
        items[:] = named


def pytest_collection_finish() -> None:
    """Take tests and modules out of the garbage collector's sight: they stay to the end."""
    gc.freeze()


def _counts(item: pytest.Item) -> bool:
    return item.path.name != "test_time_limits.py" and not any(item.get_closest_marker(name) for name in ("airflow", "spark"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure what the engine's own tests reach (``--cov``), not what Spark and Airflow reach on the way."""
    controller = getattr(item.config.pluginmanager.get_plugin("_cov"), "cov_controller", None)
    if controller is None or _counts(item):
        return (yield)
    controller.pause()
    try:
        return (yield)
    finally:
        controller.resume()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small local Spark for all tests. Its time zone has daylight saving, so that what depends on it shows."""
    from pyspark.sql import SparkSession

    directory = tmp_path_factory.mktemp("spark")
    os.environ.update(pyspark_environment())
    session = (
        SparkSession.builder.master("local[2]")
        .appName("airflow-delta-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        # Code that runs a few times is not worth a second compiler, nor classes made for a query. The first compiler alone would
        # have 48 MB for its code: too few for hundreds of tests, whose code is then thrown away and compiled again.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.session.timeZone", "Europe/Berlin")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it speaks when the interpreter ends, to streams that are closed
    yield session
    session.stop()


@pytest.fixture
def plain_path(tmp_path: Path) -> Iterator[Path]:
    """``tmp_path``, or a folder in /tmp if its path has a space: for judges that take the paths of files as they are written."""
    if " " not in str(tmp_path):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """A table that is not there yet; the stages of tests with the marker ``spark`` have a session."""
    from support.table import Table

    return Table(tmp_path / "table", request.getfixturevalue("spark") if request.node.get_closest_marker("spark") else None)


@pytest.fixture
def outside_of_the_task_runner(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """Operators are executed by the test itself; what their task instances ask of a supervisor is answered from memory."""
    from airflow.sdk.bases.operator import ExecutorSafeguard
    from airflow.sdk.execution_time import task_runner

    from support.state_store import Supervisor

    supervisor = Supervisor()
    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    return supervisor
