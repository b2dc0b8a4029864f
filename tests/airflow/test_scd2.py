"""Every version of a row: rules of ``DeltaScd2MergeOperator`` by hand, and against a model over random sources."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaConcurrentModificationException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    SchemaMismatchException,
)
from airflow_delta.operators.scd2 import DeltaScd2MergeOperator
from support import readers
from support.running_tasks import context
from support.table import Table
from support.watching import commit, start

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.usefixtures("outside_of_the_task_runner")]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "id LONG, v STRING, n INT, valid_from TIMESTAMP, valid_to TIMESTAMP, is_current BOOLEAN, seen ARRAY<TIMESTAMP>"


def hour(number: int | None) -> datetime | None:
    return None if number is None else EPOCH + timedelta(hours=number)


@dataclass(frozen=True, order=True)
class Row:
    """A source row: since an hour, a key has a value (null is one), or is gone."""

    at: int
    key: int | None
    v: str | None = None
    n: int = 0
    gone: bool = False


ARROW = pa.schema(
    [("id", pa.int64()), ("v", pa.string()), ("n", pa.int32()), ("gone", pa.bool_()), ("at", pa.timestamp("us", "UTC"))]
)


def rows_of(data: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in data], schema)


class Dimension:
    """A table with versions, and what the tests do with it."""

    def __init__(self, path: Any, spark: Any, engine: str = "spark", **properties: str) -> None:
        self.table = Table(path, spark)
        self.spark, self.engine = spark, engine
        begin = {"configuration": properties} if properties else {}
        self.table.write(spark.createDataFrame([], COLUMNS), begin=begin)
        self.runs = 0

    def copied(self, path: Any) -> Dimension:
        shutil.copytree(self.table.path, path)
        other = object.__new__(Dimension)
        other.table, other.spark, other.runs, other.engine = Table(path, self.spark), self.spark, self.runs, self.engine
        return other

    def source(self, rows: list[Row]) -> Any:
        data = [(row.key, row.v, row.n, row.gone, hour(row.at)) for row in rows]
        if self.engine == "arrow":
            return lambda: rows_of(data, ARROW)
        return lambda spark: spark.createDataFrame(data, "id LONG, v STRING, n INT, gone BOOLEAN, at TIMESTAMP")

    def operator(self, rows: list[Row], **options: Any) -> DeltaScd2MergeOperator:
        given = {"source": self.source(rows), "keys": "id", "effective_at": "at", "deleted": "gone", "confirmed": "seen"}
        return DeltaScd2MergeOperator(task_id="merged", engine=self.engine, **{**given, **options})

    def merge(self, rows: list[Row], **options: Any) -> dict[str, Any]:
        self.runs += 1
        operator = self.operator(rows, table=self.table.uri, transaction_key=f"run-{self.runs}", **options)
        operator.render_template_fields({})
        return operator.execute(context(operator, run_id=f"run-{self.runs}"))

    def versions(self) -> dict[Any, list[tuple[Any, ...]]]:
        """For each key its versions: from, to, value, other value, hours at which it was seen again."""

        def number(time: datetime | None) -> int | None:
            return None if time is None else round((time - EPOCH).total_seconds() / 3600)

        found: dict[Any, list[tuple[Any, ...]]] = {}
        for row in readers.rows(self.table.path):
            assert row["is_current"] is (row["valid_to"] is None)
            seen = None if row["seen"] is None else tuple(number(time) for time in row["seen"])
            version = (number(row["valid_from"]), number(row["valid_to"]), row["v"], row["n"], seen)
            found.setdefault(row["id"], []).append(version)
        return {key: sorted(each) for key, each in found.items()}

    def shown(self, key: Any = 1) -> list[tuple[Any, ...]]:
        return [version[:3] for version in self.versions().get(key, [])]


@pytest.fixture(params=["spark", "arrow"])
def dimension(request, tmp_path, spark) -> Dimension:
    return Dimension(tmp_path / "t", spark, request.param)


# source after source for key 1, and the versions in the end
STORIES = {
    "changes in order": ([[Row(1, 1, "a")], [Row(3, 1, "b")]], [(1, 3, "a"), (3, None, "b")]),
    "several in one source, in any order": (
        [[Row(5, 1, "c"), Row(1, 1, "a"), Row(3, 1, "b")]],
        [(1, 3, "a"), (3, 5, "b"), (5, None, "c")],
    ),
    "late, between two versions": (
        [[Row(1, 1, "a"), Row(5, 1, "c")], [Row(3, 1, "b")]],
        [(1, 3, "a"), (3, 5, "b"), (5, None, "c")],
    ),
    "late, before the first": ([[Row(5, 1, "b")], [Row(1, 1, "a")]], [(1, 5, "a"), (5, None, "b")]),
    "late, and equal to the next: it began earlier": (
        [[Row(1, 1, "a"), Row(5, 1, "b")], [Row(3, 1, "b")]],
        [(1, 3, "a"), (3, None, "b")],
    ),
    "nothing changed": ([[Row(1, 1, "a")], [Row(3, 1, "a")]], [(1, None, "a")]),
    "late, between two rows of equal values": (
        [[Row(1, 1, "a")], [Row(5, 1, "a")], [Row(3, 1, "b")]],
        [(1, 3, "a"), (3, 5, "b"), (5, None, "a")],
    ),
    "null is a value": (
        [[Row(1, 1, None)], [Row(2, 1, None), Row(3, 1, "a")], [Row(5, 1, None)]],
        [(1, 3, None), (3, 5, "a"), (5, None, None)],
    ),
    "gone, and back": (
        [[Row(1, 1, "a")], [Row(3, 1, gone=True)], [Row(5, 1, "a")]],
        [(1, 3, "a"), (5, None, "a")],
    ),
    "gone, late": ([[Row(1, 1, "a"), Row(5, 1, "b")], [Row(3, 1, "x", gone=True)]], [(1, 3, "a"), (5, None, "b")]),
    "gone twice": ([[Row(1, 1, "a"), Row(3, 1, gone=True)], [Row(4, 1, gone=True)]], [(1, 3, "a")]),
    "gone before it was there": ([[Row(1, 1, gone=True)], [Row(3, 1, "a")]], [(3, None, "a")]),
    "late, before it was gone": (
        [[Row(1, 1, "a")], [Row(5, 1, gone=True)], [Row(3, 1, "b")]],
        [(1, 3, "a"), (3, 5, "b")],
    ),
    "corrected at its own time": ([[Row(1, 1, "a"), Row(3, 1, "b")], [Row(3, 1, "c")]], [(1, 3, "a"), (3, None, "c")]),
    "corrected to what was there before": ([[Row(1, 1, "a"), Row(3, 1, "b")], [Row(3, 1, "a")]], [(1, None, "a")]),
    "twice in one source": ([[Row(1, 1, "a"), Row(1, 1, "a")]], [(1, None, "a")]),
}


@pytest.mark.slow
def test_stories(dimension):
    """All stories at once, each of a key of its own; its last source once more changes nothing."""
    numbers = dict(enumerate(STORIES))
    for turn in range(max(len(sources) for sources, _ in STORIES.values())):
        batch = []
        for number, name in numbers.items():
            sources = STORIES[name][0]
            batch += [Row(r.at, number, r.v, r.n, r.gone) for r in (sources[turn] if turn < len(sources) else ())]
        if batch:
            dimension.merge(batch)
    found = {name: dimension.shown(number) for number, name in numbers.items()}
    assert found == {name: versions for name, (_, versions) in STORIES.items()}
    files = len(readers.files(dimension.table.path))
    again = [Row(r.at, n, r.v, r.n, r.gone) for n, name in numbers.items() for r in STORIES[name][0][-1]]
    assert dimension.merge(again)["numFiles"] == 0
    assert len(readers.files(dimension.table.path)) == files


def model(rows: list[Row]) -> list[tuple[Any, ...]]:
    """The versions of a key: what its rows say, in the order of their times."""
    versions: list[list[Any]] = []
    for row in sorted(rows):
        if versions and versions[-1][1] is None and versions[-1][2] == row.v:
            versions[-1][4].append(row.at)
            continue
        if versions:
            versions[-1][1] = row.at
        versions.append([row.at, None, row.v, row.n, []])
    return [(*version[:4], tuple(version[4])) for version in versions]


def folded(versions: list[tuple[Any, ...]], batch: list[Row], *, confirmed: bool) -> list[tuple[Any, ...]]:
    """The versions of a key after a source, from the versions before it: with deletes, and without the times seen again."""
    line: dict[int, tuple[Any, ...] | None] = {}
    for begin, end, v, n, seen in versions:
        line |= dict.fromkeys((begin, *(seen or ())), (v, n))
        if end is not None:
            line.setdefault(end, None)
    for begin, *_, v, n, _ in versions:
        line[begin] = (v, n)
    line |= {row.at: None if row.gone else (row.v, row.n) for row in batch}
    found: list[list[Any]] = []
    for time in sorted(line):
        says, open_one = line[time], bool(found) and found[-1][1] is None
        if says is not None and open_one and found[-1][2] == says[0]:
            found[-1][4].append(time)
            continue
        if open_one:
            found[-1][1] = time
        if says is not None:
            found.append([time, None, *says, []])
    return [(*version[:4], tuple(version[4]) if confirmed else None) for version in found]


KEYS = [None, *range(40)]


def some_rows(rng: random.Random, *, deletes: bool) -> list[Row]:
    """Rows of every key, of different times."""
    rows = []
    for key in KEYS:
        for at in rng.sample(range(12), rng.randint(1, 8)):
            gone = deletes and rng.random() < 0.25
            rows.append(Row(at, key, None if gone else rng.choice(["a", "b", None]), at, gone))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("engine", ["spark", "arrow"])
def test_the_order_of_arrival_does_not_matter(tmp_path, spark, engine, seed):
    rng = random.Random(seed)
    rows = some_rows(rng, deletes=False)
    wanted = {key: [v[:3] + v[4:] for v in model([row for row in rows if row.key == key])] for key in KEYS}
    rng.shuffle(rows)
    dimension = Dimension(tmp_path / "t", spark, engine)
    for part in range(3):
        dimension.merge(rows[part::3], tracked="v")
    assert {key: [v[:3] + v[4:] for v in each] for key, each in dimension.versions().items()} == wanted


@pytest.mark.slow
@pytest.mark.parametrize("confirmed", ["seen", None])
@pytest.mark.parametrize("engine", ["spark", "arrow"])
def test_source_after_source_is_what_the_model_says(tmp_path, spark, engine, confirmed):
    rng = random.Random(3)
    rows = some_rows(rng, deletes=True)
    rng.shuffle(rows)
    dimension = Dimension(tmp_path / "t", spark, engine, **{"delta.enableDeletionVectors": "true"} if confirmed else {})
    wanted: dict[Any, list[tuple[Any, ...]]] = {}
    for part in range(3):
        batch = rows[part::3]
        options = {} if confirmed else {"confirmed": None, "source": without_seen(batch, engine)}
        dimension.merge(batch, tracked="v", **options)
        for key in KEYS:
            mine = [row for row in batch if row.key == key]
            wanted[key] = folded(wanted.get(key, []), mine, confirmed=bool(confirmed))
    assert dimension.versions() == {key: versions for key, versions in wanted.items() if versions}


def without_seen(rows: list[Row], engine: str) -> Any:
    """A source for a table whose ``seen`` is a column like any other."""
    data = [(row.key, row.v, row.n, row.gone, hour(row.at), None) for row in rows]
    if engine == "arrow":
        return lambda: rows_of(data, ARROW.append(pa.field("seen", pa.list_(pa.timestamp("us", "UTC")))))
    kinds = "id LONG, v STRING, n INT, gone BOOLEAN, at TIMESTAMP, seen ARRAY<TIMESTAMP>"
    return lambda spark: spark.createDataFrame(data, kinds)


@pytest.mark.slow
def test_a_full_snapshot_ends_what_it_does_not_have(dimension):
    snapshot = {"full_snapshot": True, "deleted": None}
    dimension.merge([Row(1, 1, "a"), Row(1, 2, "b")], **snapshot)
    dimension.merge([Row(3, 1, "a"), Row(3, 3, "c")], **snapshot)
    dimension.merge([Row(5, 2, "b"), Row(5, 3, "c")], **snapshot)
    dimension.merge([Row(2, 1, "z"), Row(2, 2, "b")], **snapshot)  # late
    assert [dimension.shown(key) for key in (1, 2, 3)] == [
        [(1, 2, "a"), (2, 3, "z"), (3, 5, "a")],
        [(1, 3, "b"), (5, None, "b")],
        [(3, None, "c")],
    ]
    for rows, says in (([], "without rows"), ([Row(7, 1, "a"), Row(8, 2, "b")], "of one time")):
        with pytest.raises(DeltaIllegalArgumentException, match=says):
            dimension.merge(rows, **snapshot)


def staged(dimension: Dimension, rows: list[Row], key: str, **options: Any) -> tuple[Any, Any]:
    """A stage of a transaction that began now, and its handle."""
    handle = start(dimension.table.uri, transaction_key=key)
    operator = dimension.operator(rows, transaction=handle, **options)
    return handle, operator.execute(context(operator))


def publish(handle: Any, report: Any) -> Any:
    operator = commit(handle, report)
    return operator.execute(context(operator))


@pytest.fixture(scope="module", params=["spark", "arrow"])
def two_keys(request, tmp_path_factory, spark) -> Dimension:
    """Keys 1 and 2, in one file."""
    with pytest.MonkeyPatch.context() as patch:
        from airflow.sdk.bases.operator import ExecutorSafeguard
        from airflow.sdk.execution_time import task_runner

        from support.state_store import Supervisor

        patch.setattr(ExecutorSafeguard, "test_mode", True)
        patch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(), raising=False)
        path = tmp_path_factory.mktemp("keys") / "t"
        dimension = Dimension(path, spark, request.param, **{"delta.enableDeletionVectors": "true"})
        dimension.merge([Row(1, 1, "a"), Row(1, 2, "a")])
    return dimension


RACES = [
    # rows of the one that commits first, of the other, its options, whether it conflicts
    ([Row(5, 1, "b")], [Row(5, 2, "c")], {}, False),
    ([Row(5, 8, "b")], [Row(5, 9, "c")], {}, False),
    ([Row(5, 1, "b")], [Row(7, 1, "c")], {}, True),
    ([Row(9, 1, "b")], [Row(5, 1, "c")], {}, True),
    ([Row(5, 8, "b")], [Row(7, 8, "c")], {}, True),  # both begin the history of a new key
    ([Row(5, 1, "b")], [Row(7, 1, "a")], {}, True),  # which would not be "nothing changed" any more
    ([Row(5, 1, "b")], [Row(7, 8, gone=True), Row(7, 1, gone=True)], {}, True),
    ([Row(5, 8, "b")], [Row(7, 1, "a")], {"full_snapshot": True, "deleted": None}, True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second", "options", "conflicts"), RACES)
def test_runs_conflict_where_keys_do(tmp_path, two_keys, first, second, options, conflicts):
    dimension = two_keys.copied(tmp_path / "t")
    handle, report = staged(dimension, second, "second", **options)
    publish(*staged(dimension, first, "first"))
    if conflicts:
        with pytest.raises(DeltaConcurrentModificationException):
            publish(handle, report)
        return
    publish(handle, report)
    for row in (*first, *second):
        assert (row.at, None, row.v) in dimension.shown(row.key)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"keys": []}, DeltaIllegalArgumentException, "needs keys"),
    ({"keys": "nope"}, DeltaAnalysisException, "no column 'nope'"),
    ({"keys": ["id", "v"], "tracked": "v"}, DeltaIllegalArgumentException, "name v twice"),
    ({"valid_from": "n"}, DeltaAnalysisException, "n is int, expected date or timestamp"),
    ({"current": "v"}, DeltaAnalysisException, "v is string, expected boolean"),
    ({"confirmed": "v"}, DeltaAnalysisException, "v is string, expected array<timestamp>"),
    ({"effective_at": "CAST(NULL AS TIMESTAMP)"}, DeltaIllegalArgumentException, "effective_at is null"),
    ({"confirmed": None}, SchemaMismatchException, "lacks seen"),
    ({"source": "SELECT 1L AS id, 'x' AS v, 1.5D AS n, false AS gone, now() AS at"}, SchemaMismatchException, "n: expected int"),
]


@pytest.mark.parametrize(("options", "error", "says"), REFUSED)
def test_what_is_refused(dimension, options, error, says):
    if dimension.engine == "arrow" and "source" in options:
        rows = pa.table({"id": [1], "v": ["x"], "n": [1.5], "gone": [False], "at": [EPOCH]})
        options = {**options, "source": lambda: rows}
    with pytest.raises(error, match=says):
        dimension.merge([Row(1, 1, "a")], **options)


def test_rows_of_one_time_that_differ(dimension):
    with pytest.raises(DeltaIllegalArgumentException, match="1 keys have different rows of one time"):
        dimension.merge([Row(1, 1, "a"), Row(1, 1, "b"), Row(1, 2, "a")])


def test_a_missing_table(tmp_path):
    operator = DeltaScd2MergeOperator(
        task_id="m", table=str(tmp_path / "none"), transaction_key="k", source="SELECT 1 AS id", keys="id", effective_at="now()"
    )
    with pytest.raises(DeltaTableNotFoundException):
        operator.execute(context(operator))


@pytest.mark.slow
def test_versions_that_overlap_are_not_continued(dimension):
    """As a plain append leaves them."""
    for at in (1, 3):
        rows = f"SELECT 1L AS id, 'a' AS v, 0 AS n, TIMESTAMP'2026-01-01 0{at}:00:00Z' AS valid_from, true AS is_current"
        dimension.table.write(rows)
    dimension.merge([Row(2, 2, "a")])
    with pytest.raises(DeltaIllegalStateException, match=r"overlap.*: 1 "):
        dimension.merge([Row(2, 1, "b")])


def test_it_needs_a_source_unless_an_application_has_it():
    given = {"task_id": "m", "table": "/t", "keys": "id", "effective_at": "now()"}
    with pytest.raises(DeltaIllegalArgumentException, match="has no source"):
        DeltaScd2MergeOperator(**given)
    DeltaScd2MergeOperator(application="job.py", **given)


def test_a_function_is_not_submitted(tmp_path, spark):
    dimension = Dimension(tmp_path / "t", spark)
    with pytest.raises(DeltaIllegalArgumentException, match="cannot be a Python function"):
        dimension.merge([Row(1, 1)], spark_submit={})


@pytest.mark.slow
def test_dates_names_with_dots_and_computed_columns(tmp_path, spark):
    from airflow_delta.table.definition.columns_sql import schema_of_columns

    columns = """
        `a.key` STRING NOT NULL, surrogate BIGINT GENERATED ALWAYS AS IDENTITY, tag STRING, note STRING,
        since DATE, until DATE, year INT GENERATED ALWAYS AS (year(since))
    """
    table = Table(tmp_path / "t", spark)
    operator_of = {"keys": ["A.KEY"], "tracked": ["TAG"], "valid_from": "since", "valid_to": "until", "current": None}
    handle = start(table.uri, transaction_key="new", schema=schema_of_columns(columns))
    first = "SELECT 'x' AS `a.key`, 'p' AS tag, 'n1' AS note, DATE'2026-01-01' AS since"
    new = TransactionHandle.from_dict(handle)
    table.publish(new, table.stage(new, first))
    for number, (tag, note, day) in enumerate([("p", "n2", "2026-02-01"), ("q", "n3", "2026-03-01"), ("r", "n4", "2025-06-01")]):
        operator = DeltaScd2MergeOperator(
            task_id="m",
            table=table.uri,
            transaction_key=f"k{number}",
            source=f"SELECT 'x' AS `a.key`, '{tag}' AS tag, '{note}' AS note, '{day}' AS day",
            effective_at="day",
            **operator_of,
        )
        operator.execute(context(operator, run_id=f"run-{number}"))
    rows = sorted(readers.rows(table.path), key=lambda row: row["since"])
    assert [(r["tag"], r["note"], str(r["since"]), str(r["until"]), r["year"]) for r in rows] == [
        ("r", "n4", "2025-06-01", "2026-01-01", 2025),
        ("p", "n1", "2026-01-01", "2026-03-01", 2026),
        ("q", "n3", "2026-03-01", "None", 2026),
    ]
    assert len({row["surrogate"] for row in rows}) == 3
    assert rows[1]["surrogate"] == min(row["surrogate"] for row in rows), "a version keeps its number"


@pytest.mark.slow
def test_the_dag_of_the_page(run_dag, tables, spark):
    """Three days, the last with a change that comes late."""
    days = {
        1: [(1, "Ann", "Paris", 1, "I"), (2, "Bob", "Oslo", 1, "I")],
        5: [(1, "Ann", "Paris", 5, "U"), (2, None, None, 5, "D")],
        6: [(1, "Ann", "Rome", 3, "U")],
    }
    for day, rows in days.items():
        data = [(key, name, city, hour(at), op) for key, name, city, at, op in rows]
        kinds = "id BIGINT, name STRING, city STRING, changed_at TIMESTAMP, op STRING"
        spark.createDataFrame(data, kinds).write.parquet(f"{tables}/raw/customers/2026-01-0{day}")
        assert run_dag("customer_versions", EPOCH + timedelta(days=day - 1)).state == "success"
    found = readers.rows(f"{tables}/lake/customer_versions")
    shown = [(row["name"], row["city"], row["valid_from"], row["valid_to"], row["is_current"]) for row in found]
    assert sorted(shown, key=repr) == sorted(
        [
            ("Ann", "Paris", hour(1), hour(3), False),
            ("Ann", "Rome", hour(3), hour(5), False),
            ("Ann", "Paris", hour(5), None, True),
            ("Bob", "Oslo", hour(1), hour(5), False),
        ],
        key=repr,
    )
