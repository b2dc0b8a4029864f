"""ZORDER on plain Spark, expression by expression, and OPTIMIZE through the whole flow; the session is in Berlin time."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import partial
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from airflow_delta.contract.changes import ClusterBy, RenameColumn, SetProperties
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.log.actions.moved_rows import read_moved_rows
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.spark.run_operation import run_operation
from airflow_delta.spark.zorder import _boundaries, _hilbert_index, _interleaved, _range_of, along_curve
from airflow_delta.table.operations.optimize.plan import plan_optimize, select_for_optimize
from airflow_delta.table.operations.optimize.run import run_rewrite
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.plan_create import plan_create
from support import readers
from support.slow import slow_except
from support.table import Table

pytestmark = pytest.mark.spark


def test_bits_are_interleaved_the_first_column_highest(spark):
    from pyspark.sql import functions as sf

    df = spark.sql("SELECT * FROM VALUES (0L, 0L), (0L, 1L), (1L, 0L), (1L, 1L), (2L, 0L), (0L, 2L), (3L, 3L) AS t(a, b)")
    rows = df.select("a", "b", _interleaved([sf.col("a"), sf.col("b")], 2).alias("z")).collect()
    assert {(row.a, row.b): row.z for row in rows} == {
        (0, 0): 0, (0, 1): 1, (1, 0): 2, (1, 1): 3, (0, 2): 4, (2, 0): 8, (3, 3): 15,
    }  # fmt: skip


@pytest.mark.parametrize(("columns", "bits"), [(2, 3), (3, 2), (4, 2)])
def test_the_hilbert_curve_visits_every_cell_and_goes_from_neighbour_to_neighbour(spark, columns, bits):
    from pyspark.sql import functions as sf

    names = [f"c{number}" for number in range(columns)]
    cells = spark.range(1 << columns * bits).select(
        *[sf.shiftright("id", bits * n).bitwiseAND(sf.lit((1 << bits) - 1)).alias(name) for n, name in enumerate(names)]
    )
    found = cells.select(*names, _hilbert_index([sf.col(name) for name in names], bits).alias("place")).collect()
    path = [tuple(row[name] for name in names) for row in sorted(found, key=lambda row: row.place)]
    assert sorted(row.place for row in found) == [*range(1 << columns * bits)]
    assert all(sum(abs(a - b) for a, b in zip(*step, strict=True)) == 1 for step in itertools.pairwise(path))


VALUES = ["é", "日 本", "100%", "a:b/c", "_x", "a+b", "q\"u'o", "{[^]}", None]


def directory(path):
    """Return the directories below that of one job."""
    return path.split("/", 5)[5].rpartition("/")[0]


@pytest.mark.parametrize("mapping", ["none", "name"])
def test_files_lie_in_the_directory_of_their_partition(spark, tmp_path, mapping):
    table = Table(tmp_path / "table", spark)
    configuration = {} if mapping == "none" else {"delta.columnMapping.mode": mapping}
    df = spark.createDataFrame([(number, value, number % 2) for number, value in enumerate(VALUES)], "id INT, p STRING, q INT")
    for _ in range(2):
        table.write(df, begin={"partition_by": ["p", "q"], "configuration": configuration})
    before = {directory(add.path) for add in table.log().update().add_files()}
    table.run(plan_optimize)
    after = [directory(add["path"]) for add in table.actions(2)["add"]]
    assert (len(after), set(after)) == (len(VALUES), before)
    assert sorted(row["id"] for row in read_table(table.log()).to_table().to_pylist()) == sorted(2 * [*range(len(VALUES))])
    if mapping == "none":
        assert len(table.rows()) == 2 * len(VALUES)


def test_polars_reads_what_was_compacted(spark, plain_path):
    """It takes the values of partitions from the paths of files."""
    table = Table(plain_path / "table", spark)
    for number in (1, 2):
        table.write(f"SELECT {number} AS id, 'a' AS p UNION ALL SELECT 3, NULL", begin={"partition_by": ["p"]})
    table.run(plan_optimize)
    assert {"p": "a", "id": 2} in readers.READERS[readers.PATHS](table.uri, None).to_pylist()
    assert len(table.rows()) == 4


def test_values_too_long_for_a_directory_are_compacted_all_the_same(spark, tmp_path):
    table = Table(tmp_path / "table", spark)
    for number in (1, 2):
        table.write(f"SELECT {number} AS id, 'a' AS p", begin={"partition_by": ["p"]})
    log = tmp_path / "table" / "_delta_log"
    for commit in sorted(log.glob("*.json")):  # as a writer with directories of other names
        commit.write_text(commit.read_text().replace('"partitionValues":{"p":"a"}', '"partitionValues":{"p":"%s"}' % ("x" * 300)))
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    table.run(plan_optimize)
    assert [add["partitionValues"]["p"] for add in table.actions(2)["add"]] == ["x" * 300]
    assert table.rows() == [(1, "x" * 300), (2, "x" * 300)]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_ranges_by_binary_search(spark, ansi):
    from pyspark.sql import functions as sf

    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        longs = spark.sql("SELECT explode(array(-5L, 0L, 9L, 10L, 11L, 25L, 99L, NULL)) AS k")
        found = longs.select("k", _range_of(sf.col("k"), "bigint", [0, 10, 20], 2).alias("r")).collect()
        assert {row.k: row.r for row in found} == {-5: 0, 0: 1, 9: 1, 10: 2, 11: 2, 25: 3, 99: 3, None: 0}
        texts = spark.sql("SELECT explode(array('', 'it\\'s', 'm\"', 'z', NULL)) AS k")
        found = texts.select("k", _range_of(sf.col("k"), "string", ["a\\", 'm"', "y"], 2).alias("r")).collect()
        assert {row.k: row.r for row in found} == {"": 0, "it's": 1, 'm"': 2, "z": 3, None: 0}
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


def test_boundaries_cut_into_equal_parts(spark):
    df = spark.range(4000).selectExpr("id AS a", "IF(id < 10, NULL, 'same') AS b", "IF(id = 0, double('NaN'), id / 2) AS c")
    found = _boundaries(df, ["a", "b", "c"], 4, 4000)
    assert found["b"] == ["same"]
    for name, exact in (("a", [1000, 2000, 3000]), ("c", [500, 1000, 1500])):
        assert all(abs(cut - wanted) < wanted * 0.5 for cut, wanted in zip(found[name], exact, strict=True))
    assert _boundaries(df.where("b IS NULL"), ["b"], 4, None)["b"] == []


def test_a_frequent_value_does_not_make_one_file_large(spark):
    df = spark.range(8000).selectExpr("1 AS x", "id AS y")
    parts = along_curve(df, [("x",)], 4, 8000).selectExpr("spark_partition_id() AS p").groupBy("p").count().collect()
    assert len(parts) == 4
    assert max(row["count"] for row in parts) < 4000


def test_optimize_and_zorder_end_to_end(spark, tmp_path):
    table = Table(tmp_path / "a table [1]", spark)
    for n in range(3):
        rows = (
            f"SELECT id AS x, 1000 - id AS y, timestamp_seconds(1.6e9 + id) AS at, TIMESTAMP'2020-10-25 0{n}:30:00' AS part "
            "FROM range(1000)"
        )
        table.write(rows, begin={"partition_by": ["part"]} if n == 0 else None)
        table.write(f"SELECT {n} AS x, {n} AS y, NULL AS at, TIMESTAMP'2020-10-25 0{n}:30:00' AS part")
    before = table.read(table.begin())
    identity = {"task_id": "optimize", "map_index": -1, "attempt": "1-a"}

    def run(**options):
        def select(view):
            return select_for_optimize(view, **options)

        return run_rewrite(table.log(), select, partial(run_operation, spark), identity=identity)

    result = run()
    assert (result.num_bins, result.num_partitions, result.metrics["numAddedFiles"]) == (3, 3, 3)
    assert table.read(table.begin()) == before
    size = max(file.size for file in table.log().snapshot.add_files())
    result = run(z_order_by=["x", "at"], max_file_size=size // 4)
    assert result.metrics["numAddedFiles"] > 9
    assert table.read(table.begin()) == before
    snapshot = table.log().snapshot
    found = snapshot.add_files(Predicate.parse("x < 100", snapshot.schema, ["part"]))
    assert len(found) < result.metrics["numAddedFiles"]
    assert run().metrics["numAddedFiles"] == 3
    assert len(table.versions()) == 9


IDENTITY = {"task_id": "optimize", "map_index": -1, "attempt": "1-a"}


def test_clustering_end_to_end(spark, tmp_path):
    """Nulls, long common prefixes, fields of structs, renamed columns, deletion vectors, files without statistics."""
    table = Table(tmp_path / "table", spark)
    configuration = {
        "delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true", "delta.dataSkippingNumIndexedCols": "4",
    }  # fmt: skip
    rows = (
        "SELECT id, IF(id % 5 = 0, NULL, named_struct('x 1', concat(repeat('p', 200), lpad(id % 97, 3, '0')))) AS s, "
        "CAST(IF(id % 3 = 0, NULL, id * 37 % 1000) AS DECIMAL(20, 2)) AS d, IF(id % 7 = 0, NULL, date_add(DATE'2026-01-01', "
        "int(id * 11 % 500))) AS day, md5(string(id)) AS pad FROM range({}, {}, 1, 2)"
    )
    table.write(rows.format(0, 2000), begin={"configuration": configuration})
    handle = table.begin()
    table.publish(handle, StagedWrite.from_dict(plan_alter(
        table.view(handle, task_id="alter"), [RenameColumn("d", "d 2"), ClusterBy(["id", "s.`x 1`", "`d 2`", "day"])]
    ).to_dict()))  # fmt: skip
    table.run(plan_delete, predicate="id % 10 = 1")
    handle = table.begin()
    unknown = plan_alter(table.view(handle, task_id="alter"), [SetProperties({"delta.dataSkippingNumIndexedCols": "0"})])
    table.publish(handle, StagedWrite.from_dict(unknown.to_dict()))
    table.write(rows.replace("AS d,", "AS `d 2`,").format(2000, 3000))
    before = table.read(table.begin())
    size = sum(file.size for file in table.log().update().add_files())

    def optimize(**options):
        def select(view):
            return select_for_optimize(view, max_file_size=size // 8, **options)

        return run_rewrite(table.log(), select, partial(run_operation, spark), identity=IDENTITY)

    result = optimize()
    assert (result.num_bins, result.metrics["numAddedFiles"]) == (1, 8)
    files = table.log().update().add_files()
    assert {file.clustering_provider for file in files} == {"liquid"}
    assert len({file.tags["ZCUBE_ID"] for file in files}) == 1
    assert {file.tags["ZCUBE_ZORDER_BY"] for file in files} == {'["id","s.`x 1`","`d 2`","day"]'}
    assert table.read(table.begin()) == before
    assert optimize().version is None
    table.run(plan_delete, predicate="id = 100")
    marked = [file for file in table.log().update().add_files() if file.deletion_vector is not None]
    assert [(file.clustering_provider, file.tags) for file in marked] == [("liquid", files[0].tags)], "still of its cube"
    assert optimize().version is None
    assert len(table.read(table.begin())) == len(before) - 1


TYPES = (
    "id LONG, d DOUBLE, f FLOAT, big DECIMAL(38, 10), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "s STRUCT<`x y`: STRING, n: STRUCT<k: INT>>, t STRING, same INT"
)
EVERY_TYPE = """SELECT id,
  CASE WHEN id % 11 = 0 THEN NULL WHEN id % 7 = 0 THEN double('NaN') WHEN id % 13 = 0 THEN double('Infinity')
    WHEN id % 17 = 0 THEN double('-Infinity') WHEN id % 5 = 0 THEN -0.0D ELSE id * 1.5D END AS d,
  CAST(element_at(array('NaN', '-0.0', '0.0'), int(id % 3 + 1)) AS FLOAT) AS f,
  CAST(concat(IF(id % 2 = 0, '', '-'), repeat('9', 23), lpad(id, 5, '0'), '.0123456789') AS DECIMAL(38, 10)) AS big,
  date_add(DATE'0001-01-05', int(id * 3700 % 3000000)) AS day,
  IF(id % 9 = 0, NULL, timestampadd(SECOND, id * 9999, TIMESTAMP'1899-12-31 23:59:59.123456')) AS at,
  IF(id % 8 = 0, NULL, CAST(timestampadd(HOUR, int(id), TIMESTAMP'2024-03-30 23:30:00') AS TIMESTAMP_NTZ)) AS local,
  IF(id % 4 = 0, NULL, named_struct('x y', IF(id % 5 = 0, NULL, concat(repeat('é', 130), id % 19)),
    'n', IF(id % 6 = 0, NULL, named_struct('k', int(id % 23))))) AS s,
  element_at(array('', concat('\\u0000', id), concat('"\\\\', id)), int(id % 3 + 1)) AS t, 1 AS same FROM range({}, {}, 1, 2)"""


def row_ids(table):
    """Return the row id and the row commit version of each row, by its column ``id``."""
    snapshot, found = table.log().update(), {}
    names = [
        snapshot.metadata.configuration[f"delta.rowTracking.materialized{name}ColumnName"]
        for name in ("RowId", "RowCommitVersion")
    ]
    (physical,) = [field.physical_name for field in snapshot.schema.fields if field.name == "id"]
    for file in snapshot.add_files():
        for at, row in enumerate(stored(table, file.path)):
            row_id, version = map(row.get, names)
            default = file.default_row_commit_version
            found[row[physical]] = (file.base_row_id + at if row_id is None else row_id, default if version is None else version)
    return found


@pytest.mark.parametrize(
    "columns",
    slow_except(
        [["d"], ["f", "big"], ["at", "local", "s.`x y`", "day"], ["s.n.k", "t", "same"], ["same"]], ["s.n.k", "t", "same"]
    ),
    ids=str,
)
def test_clustering_columns_of_every_type(spark, tmp_path, columns):
    """NaN and infinities, times before 1970, fields of null structs, rows that are all alike: no row and no row id is lost."""
    table = Table(tmp_path / "table", spark)
    handle = table.begin()
    created = plan_create(
        table.view(handle, task_id="create"), schema=TYPES, cluster_by=columns,
        properties={"delta.columnMapping.mode": "name", "delta.enableRowTracking": "true"},
    )  # fmt: skip
    table.publish(handle, StagedWrite.from_dict(created.to_dict()))

    def optimize():
        size = sum(file.size for file in table.log().update().add_files())
        select = partial(select_for_optimize, max_file_size=max(1, size // 4))
        return run_rewrite(table.log(), select, partial(run_operation, spark), identity=IDENTITY)

    assert optimize().version is None, "an empty table"
    for first in (0, 400):
        table.write(EVERY_TYPE.format(first, first + 400))
    before, ids = list(map(repr, table.rows())), row_ids(table)  # NaN does not equal itself
    assert len(ids) == len(before) == 800
    assert optimize().metrics["numAddedFiles"] == 4
    assert list(map(repr, table.rows())) == before
    assert row_ids(table) == ids
    counts = [num_records(file.stats) for file in table.log().update().add_files()]
    assert max(counts) < 400, "rows of equal values are spread, too"
    assert optimize().version is None


# -- where rows go ---------------------------------------------------------------------------------------------------------------


def moved(table):
    """Return, by path of an old file, where its rows are now: path of the new file, and new position by old."""
    store, found = table.log().store, {}
    for file in table.log().update().add_files():
        record = read_moved_rows(store, file)
        for source in () if record is None else record.sources:
            live = BitMap64(range(source.num_records)) - source.deleted
            found[source.path] = (file.path, dict(zip(live, source.moved(live), strict=True)))
    return found


def stored(table, path):
    return pq.ParquetFile(table.path / unquote(path)).read().to_pylist()


@pytest.mark.parametrize(
    "kind", slow_except(["plain", "vectors", "row ids", "mapped", "partitioned", "one file of ZORDER"], "vectors")
)
def test_the_record_of_a_compaction_says_where_each_row_is(spark, tmp_path, kind):
    table = Table(tmp_path / "a table [1]+%", spark)
    configuration = {"delta.enableDeletionVectors": "true"}
    if kind == "row ids":
        configuration["delta.enableRowTracking"] = "true"
    if kind == "mapped":
        configuration["delta.columnMapping.mode"] = "name"
    begin = {"configuration": configuration, "partition_by": ["p"] if kind == "partitioned" else []}
    for first in (0, 3):  # sizes differ, and some are the same
        parts = [
            f"SELECT id + {1000 * number} AS id, id % 2 AS p, repeat('x', CAST(id % 50 AS INT)) AS t "
            f"FROM range(0, {200 * (number % 3) + 5}, 1, 2)"
            for number in range(first, first + 3)
        ]
        table.write(" UNION ALL ".join(parts), begin=begin if first == 0 else None)
    if kind != "plain":
        table.run(plan_delete, predicate="id % 7 = 3")
        table.run(plan_delete, predicate="id IN (0, 1, 2, 1000, 1001, 2004)")
    before = {file.path: stored(table, file.path) for file in table.log().update().add_files()}
    rows = table.rows()
    table.run(plan_optimize, **({"z_order_by": ["id"]} if kind == "one file of ZORDER" else {}))
    assert table.rows() == rows
    found = moved(table)
    assert found.keys() == before.keys()
    seen = 0
    for path, (new, places) in found.items():
        after = stored(table, new)
        for old, at in places.items():
            assert {**after[at], **before[path][old]} == after[at]
            seen += 1
    assert seen == len(rows)
    [attempt] = {path.parent for path in table.path.rglob("moved-rows-*.json")}
    assert attempt.parent.parent.parent.name == "staged"


def test_statistics_are_those_that_an_earlier_stage_asks_for(spark, tmp_path):
    """The property names columns, so a rename changes it too."""
    table = Table(tmp_path / "table", spark)
    properties = {"delta.columnMapping.mode": "name", "delta.dataSkippingStatsColumns": "id, old"}
    for _ in range(2):
        table.write("SELECT 1 AS id, 2 AS old, 3 AS other", begin={"configuration": properties})
    handle = table.begin()
    renamed = table.operate(handle, plan_alter, changes=[RenameColumn("old", "new")])
    table.publish(handle, renamed, table.operate(handle, plan_optimize, task_id="optimize", after=[renamed.to_dict()]))
    [file] = table.actions(2)["add"]
    names = {field.physical_name: field.name for field in table.log().snapshot.schema}
    assert {names[name]: value for name, value in json.loads(file["stats"])["minValues"].items()} == {"id": 1, "new": 2}


def test_nothing_is_recorded_where_it_is_of_no_use_or_not_known(spark, tmp_path):
    plain = Table(tmp_path / "plain", spark)
    for number in range(2):
        plain.write(f"SELECT {number} AS id")
    plain.run(plan_optimize)
    table = Table(tmp_path / "vectors", spark)
    for number in range(2):
        rows = f"SELECT id + {number} AS id FROM range(2000)"
        table.write(rows, begin={"configuration": {"delta.enableDeletionVectors": "true"}} if number == 0 else None)
    size = max(file.size for file in table.log().update().add_files())
    table.run(plan_optimize, z_order_by=["id"], max_file_size=size // 2)
    assert len(table.log().update().add_files()) > 1
    for one in (plain, table):
        assert not list(one.path.rglob("moved-rows-*"))
        assert not any(file.tags for file in one.log().update().add_files())


@pytest.mark.parametrize("break_it", [
    lambda found: [[at, first + 1] for at, first in found],
    lambda found: [[at, first] for (at, _), (_, first) in zip(found, reversed(found), strict=True)],
    lambda found: found[1:],
    lambda found: [[at + 9, first] for at, first in found],
    lambda _found: None,
])  # fmt: skip
def test_a_report_that_does_not_account_for_every_row_is_not_recorded(spark, tmp_path, break_it):
    table = Table(tmp_path / "table", spark)
    for number in range(2):
        rows = f"SELECT id FROM range(0, {10 + number}, 1, 1)"
        table.write(rows, begin={"configuration": {"delta.enableDeletionVectors": "true"}} if number == 0 else None)

    def wrong(request):
        report = run_operation(spark, request)
        assert [len(found) for found in report.first_rows.values()] == [2]
        return replace(report, first_rows={name: break_it(found) for name, found in report.first_rows.items()})

    run_rewrite(table.log(), select_for_optimize, wrong, identity=IDENTITY)
    assert not any(file.tags for file in table.log().update().add_files())


@pytest.mark.parametrize("staged", slow_except([False, True], True))
def test_optimize_and_a_delete_do_not_fail_each_other(spark, tmp_path, staged):
    """In both orders; the OPTIMIZE on its own or as a stage."""
    table = Table(tmp_path / "table", spark)
    for number in range(3):
        rows = f"SELECT id, 0 AS n FROM range({number * 1000}, {number * 1000 + 1000})"
        table.write(rows, begin={"configuration": {"delta.enableDeletionVectors": "true"}} if number == 0 else None)
    deletes = [table.begin() for _ in range(2)]
    first = table.operate(deletes[0], plan_delete, predicate="id % 10 = 1 AND id < 2000")
    second = table.operate(deletes[1], plan_delete, predicate="id % 10 = 2 OR id >= 2000")

    def first_delete(*_):
        table.publish(deletes[0], first)

    if staged:
        handle = table.begin()
        stage = table.operate(handle, plan_optimize)
        first_delete()
        table.publish(handle, stage)
    else:

        def rewrite(request):
            report = run_operation(spark, request)
            first_delete()
            return report

        run_rewrite(
            table.log(), select_for_optimize, rewrite, identity={"task_id": "optimize", "map_index": -1, "attempt": "1-a"}
        )
    assert len(table.rows()) == 2800
    [file] = table.log().update().add_files()
    assert file.deletion_vector.cardinality == 200
    result = table.publish(deletes[1], second)
    assert result.resolved == {"moved": str(result.version - 1), "rows": f"{result.version - 2}-{result.version - 1}"}
    assert sorted(row[0] for row in table.rows()) == [number for number in range(2000) if number % 10 not in (1, 2)]


@pytest.mark.slow
def test_zorder_into_several_files_and_deletes(spark, tmp_path):
    """It records nothing: one that loses drops the partition that has changed, and a DELETE that loses finds its rows again."""
    table = Table(tmp_path / "table", spark)
    begin = {"configuration": {"delta.enableDeletionVectors": "true"}, "partition_by": ["p"]}
    for number in range(2):
        rows = f"SELECT id, 1000 - id AS n, id % 2 AS p FROM range({number * 1000}, {number * 1000 + 1000})"
        table.write(rows, begin=begin if number == 0 else None)
    deletes = [table.begin() for _ in range(2)]
    first = table.operate(deletes[0], plan_delete, predicate="p = 0 AND id % 10 = 4")
    second = table.operate(deletes[1], plan_delete, predicate="id % 10 IN (6, 7)")
    size = max(file.size for file in table.log().update().add_files())

    def beside(request):
        report = run_operation(spark, request)
        table.publish(deletes[0], first)
        return report

    def select(view):
        return select_for_optimize(view, z_order_by=["id", "n"], max_file_size=size // 2)

    result = run_rewrite(table.log(), select, beside, identity=IDENTITY)
    assert (result.num_bins, result.num_dropped_bins) == (2, 1)
    files = table.log().update().add_files("p = 1")
    assert len(files) == result.metrics["numAddedFiles"] > 1
    found = table.publish(deletes[1], second)
    assert found.resolved == {"moved": str(result.version), "rows": f"{result.version - 1}-{result.version}"}
    assert sorted(row[0] for row in table.rows()) == [number for number in range(2000) if number % 10 not in (4, 6, 7)]
