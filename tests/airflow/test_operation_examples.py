"""The example Dags of table operations, each run as it stands on a small table."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from airflow_delta.table.operations.rewrite.delete import plan_delete
from support import readers
from support.table import Table

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

EXAMPLES = Path(__file__).parents[2] / "dags_examples" / "operations"
DAY = datetime(2026, 1, 1, tzinfo=UTC)
NEXT_DAY = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Directory of the examples' tables: not that of the other Dags, which have tables of the same names."""
    return tmp_path_factory.mktemp("operations")


@pytest.fixture(scope="module")
def bag(airflow_database, root):
    from airflow.dag_processing.dagbag import DagBag

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTA_EXAMPLES", str(root))
        found = DagBag(dag_folder=str(EXAMPLES))
    assert found.import_errors == {}
    return found


@pytest.fixture
def run(run_dag, bag, spark):
    """Run an example; its tasks find the session of the tests."""

    def run(dag_id: str, date: datetime = DAY, **conf):
        done = run_dag(dag_id, date, bag=bag, **conf)
        assert done.state == "success", done.tasks
        return done

    return run


@pytest.fixture
def made(root, spark):
    """Make a table of the examples anew, with a commit for each query."""

    def made(name: str, *queries: str, **options) -> Table:
        import shutil

        shutil.rmtree(root / name, ignore_errors=True)
        table = Table(root / name, spark)
        for number, query in enumerate(queries):
            table.write(query, begin={"transaction_key": f"seed-{number}", **options})
        return table

    return made


USERS = """
    SELECT * FROM VALUES (1L, 'a@b.c', DATE'2024-01-01', 'new'), (2L, 'b@b.c', DATE'2025-12-31', 'new'),
        (11L, 'c@b.c', DATE'2025-11-01', 'new') AS t(user_id, email, last_seen, state)
"""
EVENTS = "SELECT id, DATE'2026-01-01' AS day FROM range({0}, {0} + 3)"


def values(table: Table, *columns: str) -> list:
    rows = readers.rows(table.path)
    return sorted(tuple(row[name] for name in columns) if len(columns) > 1 else row[columns[0]] for row in rows)


def test_every_example_is_run_here(bag):
    source = Path(__file__).read_text()
    assert [dag_id for dag_id in bag.dags if f'"{dag_id}"' not in source] == []


@pytest.mark.slow
def test_alter(run, made):
    table = made("events", EVENTS.format(0))
    run("delta_alter")
    assert len(table.versions()) == 2, "the column, the constraint and the rows are one version"
    assert values(table, "id") == [0, 1, 2, 1000]
    assert deltalake.DeltaTable(table.path).metadata().configuration["delta.constraints.id_known"] == "id IS NOT NULL"


@pytest.mark.slow
def test_changes(run, root, spark):
    archive = Table(root / "recorded_archive", spark)
    run("delta_changes")
    assert values(archive, "id") == []
    run("delta_changes", NEXT_DAY)
    assert values(archive, "id") == [1, 2, 3, 4, 5]
    assert values(Table(root / "recorded"), "id") == [2, 3, 4, 5, 6]


def test_clone(run, made, root, spark):
    users = made("users", USERS)
    run("delta_clone")
    (path,) = (root / "sandboxes").iterdir()
    sandbox = Table(path, spark)
    assert values(users, "user_id") == [1, 2, 11]
    assert [row[0] for row in sandbox.read(sandbox.begin())] == [1, 2]


def test_convert(run, root):
    rows = pa.table({"id": [1, 2], "country": ["nz", "de"], "day": ["2026-01-01", "2026-01-02"]})
    parts = ds.partitioning(pa.schema([("country", pa.string()), ("day", pa.string())]), flavor="hive")
    ds.write_dataset(rows, root / "parquet_events", format="parquet", partitioning=parts)
    run("delta_convert")
    assert values(Table(root / "parquet_events"), "id", "country") == [(1, "nz"), (2, "de")]
    run("delta_convert", NEXT_DAY)
    assert len(Table(root / "parquet_events").versions()) == 1


def test_copy_into(run, root):
    sales, refunds = root / "source" / "sales", root / "source" / "refunds"
    for directory in (sales, refunds):
        directory.mkdir(exist_ok=True, parents=True)
    pq.write_table(pa.table({"id": [1, 2], "amount": [2.5, 3.5]}), sales / "1.parquet")
    (refunds / "1.csv").write_text("id,amount\n1,-2.5\n")
    run("delta_copy_into")
    pq.write_table(pa.table({"id": [3], "amount": [4.5]}), sales / "2.parquet")
    second = run("delta_copy_into", NEXT_DAY)
    table = Table(root / "sales")
    assert values(table, "id") == [1, 1, 2, 3]
    assert second.tasks["refunds.read", -1][0] == "skipped"
    assert run("delta_copy_into", NEXT_DAY.replace(day=3)).tasks["load", -1][0] == "skipped"
    assert len(table.versions()) == 4, "the table and three loads"


@pytest.mark.slow
def test_create(run, root):
    run("delta_create")
    orders = Table(root / "orders")
    assert len(orders.versions()) == 1, "the table and its first rows are one version"
    assert {state for state, _ in values(orders, "state", "id")} == {"new"}
    assert len(set(values(orders, "id"))) == 10
    assert values(orders, "day") == [datetime(2026, 1, 1).date()] * 10
    run("delta_create", NEXT_DAY)
    assert len(values(orders, "id")) == 10
    assert [action["operation"] for action in Table(root / "orders_report").actions(1)["commitInfo"]] == [
        "CREATE OR REPLACE TABLE AS SELECT"
    ]


def test_delete(run, made):
    table = made("users", USERS)
    run("delta_delete", user_id=2)
    assert values(table, "user_id") == [1, 11]
    assert run("delta_delete", user_id=2).xcom("forget")["committedBefore"]


@pytest.mark.slow
def test_merge(run, made, root):
    table = made(
        "customers",
        "SELECT * FROM VALUES (1L, 'a', DATE'2025-01-01'), (2L, ' b ', DATE'2025-01-01'), (3L, 'c', DATE'2025-01-01') "
        "AS t(id, name, changed)",
    )
    lines = [
        {"id": 1, "name": "A", "deleted": False},
        {"id": 3, "name": "c", "deleted": True},
        {"id": 4, "name": "d", "deleted": False},
    ]
    (root / "source").mkdir()
    (root / "source" / "customers-2026-01-01.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run("delta_merge")
    new, old = DAY.date(), datetime(2025, 1, 1).date()
    assert values(table, "id", "name", "changed") == [(1, "A", new), (2, "b", old), (4, "d", new)]


@pytest.mark.slow
def test_new_rows(run, made, spark):
    clicks = "SELECT page FROM VALUES {} AS t(page)"
    made("clicks", clicks.format("('a'), ('a'), ('b')"))
    counted = made("clicks_by_page", "SELECT 'none' AS page, 0L AS clicks")
    run("delta_new_rows")
    Table(counted.path.parent / "clicks", spark).write(clicks.format("('a'), ('c')"), begin={"transaction_key": "later"})
    run("delta_new_rows", NEXT_DAY)
    assert values(counted, "page", "clicks") == [("a", 3), ("b", 1), ("c", 1), ("none", 0)]


def test_optimize(run, made):
    query = "SELECT id, DATE'2026-01-01' AS day, id % 7 AS pickup_zone, 'v' AS vendor FROM range({0}, {0} + 10, 1, 1)"
    table = made("trips", *(query.format(start) for start in (0, 10, 20)), partition_by=["day"])
    done = run("delta_optimize")
    assert (done.xcom("compact")["metrics"]["numRemovedFiles"], done.xcom("compact")["metrics"]["numAddedFiles"]) == (3, 1)
    assert done.xcom("purge")["version"] is None
    assert values(table, "id") == list(range(30))


@pytest.mark.slow
def test_features(run, made):
    table = made("events", EVENTS.format(0), EVENTS.format(10), configuration={"delta.enableDeletionVectors": "true"})
    table.run(plan_delete, predicate="id IN (0, 11)")
    run("delta_features")
    features = deltalake.DeltaTable(table.path).protocol().writer_features or []
    assert ("rowTracking" in features, "deletionVectors" in features) == (True, False)
    assert values(table, "id") == [1, 2, 10, 12]


def test_repair(run, made):
    table = made("events", EVENTS.format(0), EVENTS.format(10))
    lost = table.path / table.actions(1)["add"][0]["path"]
    rows = pq.read_table(lost)["id"].to_pylist()
    lost.unlink()
    run("delta_repair")
    assert len(table.versions()) == 3, "the first task only reports"
    assert values(table, "id") == sorted({0, 1, 2, 10, 11, 12} - set(rows))
    assert (table.path / "_symlink_format_manifest" / "manifest").exists()


def test_restore(run, made):
    table = made("events", EVENTS.format(0), EVENTS.format(10))
    run("delta_restore", version=0)
    assert (values(table, "id"), len(table.versions())) == ([0, 1, 2], 3)


@pytest.mark.slow
def test_scd2(run, root):
    (root / "source").mkdir(exist_ok=True)
    days = {"2026-01-01": {1: "a", 2: "a"}, "2026-01-02": {1: "a", 2: "b"}, "2026-01-03": {2: "b", 3: "c"}}
    for number, (day, rows) in enumerate(days.items()):
        lines = [json.dumps({"id": key, "department": value}) + "\n" for key, value in rows.items()]
        (root / "source" / f"employees-{day}.json").write_text("".join(lines))
        run("delta_scd2", DAY.replace(day=number + 1))
    rows = readers.rows(root / "employees")
    found = [tuple(row[name] for name in ("id", "department", "valid_from", "valid_to", "is_current")) for row in rows]
    day = [DAY.replace(day=number + 1).date() for number in range(3)]
    assert sorted(found, key=repr) == [
        (1, "a", day[0], day[2], False),
        (2, "a", day[0], day[1], False),
        (2, "b", day[1], None, True),
        (3, "c", day[2], None, True),
    ]


def test_compute_statistics(run, made):
    table = made("events", EVENTS.format(0))
    run("delta_compute_statistics")
    assert len(table.versions()) == 1, "nothing was missing"


@pytest.mark.slow
def test_streaming(run, root):
    run("delta_streaming")
    run("delta_streaming", NEXT_DAY)
    table = Table(root / "landed")
    assert values(table, "id") == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert len(table.versions()) == 2


@pytest.mark.slow
def test_update(run, made):
    table = made("users", USERS)
    run("delta_update")
    assert len(table.versions()) == 2
    found = {user: (email, state) for user, email, state in values(table, "user_id", "email", "state")}
    assert (len(found[1][0]), found[1][1]) == (64, "old")
    assert (found[2], found[11]) == (("b@b.c", "new"), ("c@b.c", "old"))


def test_vacuum(run, made):
    table = made("events", EVENTS.format(0))
    old = table.path / "left.parquet"
    old.write_bytes(b"")
    os.utime(old, (0, 0))
    run("delta_vacuum")
    assert not old.exists()
    assert values(table, "id") == [0, 1, 2]


@pytest.mark.slow
def test_write(run, root):
    run("delta_write")
    run("delta_write", NEXT_DAY)
    table = Table(root / "prices")
    assert values(table, "id") == list(range(10))
    assert not any(action["dataChange"] for action in table.actions(3)["add"] + table.actions(3)["remove"])
