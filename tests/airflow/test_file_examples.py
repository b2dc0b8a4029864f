"""The example Dags whose jobs are programs without Spark, in an environment of their own, as in a container."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from airflow_delta.hooks.delta import DeltaHook
from support import readers
from support.documents import ROOT, blocks_of
from support.environments import installed_environment
from support.programs import python_program
from support.table import Table

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

JOBS = ROOT / "dags_examples" / "jobs"
# Those on which the examples were tried; dbt-core 1.12 needs a parser that no registry has as a wheel.
PACKAGES = [
    "pandas==2.3.3",
    "pyarrow==26.0.1",
    "polars==2.1.0",
    "duckdb==1.5.5",
    "s3fs==2026.9.0",
    "dbt-duckdb==1.11.1",
    "dbt-core==1.11.16",
]

STAND_IN = "from support.containers import ProcessPodOperator as KubernetesPodOperator"

DAYS = itertools.count(1)
"""A run of an example is another run of its Dag."""

ORDERS = {
    1: (Decimal("9.50"), "2026-01-01T23:30:00Z"),
    2: (Decimal("12345678.25"), "2026-01-01T00:00:00.123456Z"),
    3: (Decimal("-0.01"), "2026-01-02T00:00:00Z"),
}


@pytest.fixture(scope="module")
def programs() -> Path:
    """The programs of the environment."""
    return installed_environment(ROOT / ".cache" / "files", PACKAGES)


@pytest.fixture
def root(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the tables; ``python`` and ``dbt`` of the worker's path are those of the environment."""
    monkeypatch.setenv("DELTA_EXAMPLES", str(tmp_path))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "source").mkdir()
    return tmp_path


@pytest.fixture
def run(run_dag: Callable, root: Path) -> Callable:
    """Run an example on the orders of some shops, whose numbers begin with the shop's; its tasks are tried twice."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    def run(name: str, *shops: str, ids: tuple[int, ...] = tuple(ORDERS), file: Path | None = None):
        for number, shop in enumerate(shops, 1):
            lines = [f"{number}{order},{ORDERS[order][0]},{ORDERS[order][1]}\n" for order in ids]
            (root / "source" / f"{shop}.csv").write_text("".join(["id,amount,ordered_at\n", *lines]))
        bag = DagBag(dag_folder=str(file or ROOT / "dags_examples" / f"{name}.py"))
        assert bag.import_errors == {}
        DagBundlesManager().sync_bundles_to_db()
        sync_bag_to_db(bag, "tests", None)
        for task in bag.dags[name].tasks:
            if task.task_type in ("BashOperator", "ProcessPodOperator"):
                task.retries, task.retry_delay = 1, timedelta(0)
        return run_dag(name, datetime(2026, 1, next(DAYS), tzinfo=UTC), bag=bag)

    return run


def rows(path: Path) -> dict[int, tuple]:
    """Return the table's orders as the independent readers see them, by number; none is there twice."""
    found = [(row["id"], (row["amount"], row["ordered_at"], row["day"])) for row in readers.rows(path)]
    assert len(dict(found)) == len(found)
    return dict(found)


def expected(*shops: int) -> dict[int, tuple]:
    times = {order: datetime.fromisoformat(time) for order, (_, time) in ORDERS.items()}
    return {
        int(f"{shop}{order}"): (amount, times[order], times[order].date())
        for shop in shops
        for order, (amount, _) in ORDERS.items()
    }


def test_programs_of_three_engines(run, root, spark):
    done = run("delta_files", "north", "west", "south")
    assert done.state == "success", done.tasks
    table = Table(root / "shop_orders", spark)
    assert rows(table.path) == expected(1, 2, 3)
    assert len(table.versions()) == 1
    read = spark.read.parquet(*[str(table.path / action["path"]) for action in table.actions(0)["add"]])
    assert dict(read.drop("day").dtypes) == {"id": "bigint", "amount": "decimal(10,2)", "ordered_at": "timestamp"}
    assert [int(done.xcom(f"orders.{shop}")) for shop in ("north", "west", "south")] == [3, 3, 3]


@pytest.mark.parametrize("engine", ["pandas", "polars", "duckdb"])
def test_a_try_that_has_written_and_failed_is_not_published(run, root, tmp_path, programs, monkeypatch, engine):
    """Each try has a directory of its own: the rows of the first are in the way of nobody."""
    killed = tmp_path / "killed"
    code = f"""
import os, pathlib, subprocess, sys
ended = subprocess.run([{str(programs / "python")!r}, *sys.argv[1:]])
if "orders_{engine}" in sys.argv[1] and not os.path.exists({str(killed)!r}):
    pathlib.Path({str(killed)!r}).write_text(sys.argv[-1])
    sys.exit(137)
sys.exit(ended.returncode)
"""
    python_program(tmp_path / "path" / "python", code)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}{os.pathsep}{os.environ['PATH']}")
    done = run("delta_files", "north", "west", "south")
    assert done.state == "success", done.tasks
    first = Path(killed.read_text().removeprefix("file://"))
    assert first.name == "try-1"
    assert rows(root / "shop_orders") == expected(1, 2, 3)
    assert sorted(path.name for path in first.parent.iterdir()) == ["try-1", "try-2"]
    assert any(first.rglob("*.parquet"))


def test_fewer_files_than_the_program_says(run, root, tmp_path, programs, monkeypatch):
    """The audit compares with the answers: a file that is lost on the way is noticed."""
    code = f"""
import glob, os, subprocess, sys
ended = subprocess.run([{str(programs / "python")!r}, *sys.argv[1:]])
os.remove(sorted(glob.glob(sys.argv[-1].removeprefix("file://") + "/*/*.parquet"))[-1])
"""
    python_program(tmp_path / "path" / "python", code)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}{os.pathsep}{os.environ['PATH']}")
    done = run("delta_files", "north", "west", "south")
    assert (done.state, done.state_of("orders.all_rows")) == ("failed", "failed")
    assert not (root / "shop_orders" / "_delta_log").exists()


def test_a_model_of_dbt(run, root):
    done = run("delta_dbt", "dbt")
    assert done.state == "success", done.tasks
    assert rows(root / "dbt_orders") == expected(1)


def test_what_dbt_refuses_is_not_published(run, root):
    done = run("delta_dbt", "dbt", ids=(1, 1))
    assert (done.state, done.state_of("orders.model")) == ("failed", "failed")
    assert not (root / "dbt_orders" / "_delta_log").exists()


def page(root: Path, engine: str, table: str) -> Path:
    """Write the page's Dag as printed, apart from its image and places: what its container would run is a process."""
    [text] = [block.text for block in blocks_of(ROOT / "docs" / "how-to" / "files.md") if block.kind == "python"]
    for printed, there in {
        "from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator": STAND_IN,
        'table="orders", delta_conn_id="lake"': table,
        "/opt/jobs/orders_polars.py": f"{JOBS}/orders_{engine}.py",
        "/mnt/raw": f"{root}/source",
    }.items():
        assert text.count(printed) == 1, printed
        text = text.replace(printed, there)
    file = root / "orders_in_a_pod.py"
    file.write_text(text)
    return file


@pytest.mark.parametrize("engine", ["pandas", "polars", "duckdb"])
def test_the_page(run, root, engine):
    done = run("orders_in_a_pod", "west", file=page(root, engine, f'table="{root}/page"'))
    assert done.state == "success", done.tasks
    assert rows(root / "page") == expected(1)


@pytest.mark.parametrize("engine", ["pandas", "polars"])
def test_the_page_on_s3(run, root, s3_lake, monkeypatch, engine):
    """The container has the store's address and credentials in its environment."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "the-key",
        "AWS_SECRET_ACCESS_KEY": "very-secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_lake.endpoint,
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    done = run("orders_in_a_pod", "west", file=page(root, engine, 'table="page", delta_conn_id="lake"'))
    assert done.state == "success", done.tasks
    read = DeltaHook("lake").get_df("page").sort_by("id").to_pylist()
    assert {row["id"]: (row["amount"], row["ordered_at"], row["day"]) for row in read} == expected(1)
