"""DELETE and UPDATE on a Spark without Delta: what is written, what stays where it is, and what rows have to fulfil."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import (
    CharVarcharLimitException,
    ConcurrentAppendException,
    ConstraintViolationException,
    IdentityInsertException,
    InvariantViolationException,
    MetadataChangedException,
    SchemaMismatchException,
    StageConflictException,
    TransactionAlreadyCommittedException,
)
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.table.operations.rewrite.delete import plan_delete, plan_truncate
from airflow_delta.table.operations.rewrite.update import plan_update
from support.actions import column
from support.feature_tables import create, field, identity
from support.slow import slow_except
from support.table import Table

pytestmark = pytest.mark.spark

DV = {"delta.enableDeletionVectors": "true"}
CDF = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def table(tmp_path: Path, spark: Any) -> Table:
    return Table(tmp_path / "ta ble%20[x]ü", spark)


def rows(table: Table) -> list[tuple[Any, ...]]:
    return table.read(table.begin())


def files(table: Table) -> list[AddFile]:
    return sorted(table.log().update().add_files(), key=lambda f: f.path)


def row_id_columns(table: Table) -> list[str]:
    """Names of the columns of row ids and row commit versions in files."""
    configuration = table.log().update().metadata.configuration
    return [name for key, name in configuration.items() if key.startswith("delta.rowTracking.materialized")]


@pytest.fixture(scope="module")
def originals(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Table]:
    """Return tables of two files; each is made once, to be copied."""

    @functools.cache
    def original(**configuration: str) -> Table:
        table = Table(tmp_path_factory.mktemp("original") / "ta ble%20[x]ü", spark)
        create(table, column("id", "long"), column("v", "integer"), **configuration)
        for first in (0, 200):
            table.write(f"SELECT {2 * first + 199} - id AS id, CAST(id AS INT) v FROM range({first}, {first + 200}, 1, 1)")
        return table

    return original


@pytest.fixture
def two_files(originals: Callable[..., Table], table: Table) -> Callable[..., None]:
    """Make a table of two files: ids below and from 200 on, in descending order."""

    def make(**configuration: str) -> None:
        table.copy_from(originals(**configuration))

    return make


@pytest.mark.parametrize("configuration", [{}, DV], ids=["copy on write", "deletion vectors"])
def test_delete_leaves_the_rest_where_it_is(table, two_files, configuration):
    two_files(**configuration)
    before = {f.path for f in files(table)}
    result = table.run(plan_delete, predicate="id IN (1, 3, 64, 199, 128) OR id >= 200")
    assert sorted(r[0] for r in rows(table)) == sorted(set(range(200)) - {1, 3, 64, 199, 128})
    [left] = files(table)  # the other file lost all of its rows
    actions = table.actions(result.version)
    assert len(actions["remove"]) == 2
    metrics = actions["commitInfo"][0]["operationMetrics"]
    assert metrics["numDeletedRows"] == "205"
    assert (metrics["numRemovedFiles"], metrics["numAddedFiles"]) == (("1", "0") if configuration else ("2", "1"))
    if configuration:
        assert left.path in before
        assert left.deletion_vector.cardinality == 5
        assert json.loads(left.stats)["tightBounds"] is False
        table.run(plan_delete, predicate="id < 10")  # a file that has a vector gets another
        assert sorted(r[0] for r in rows(table)) == [i for i in range(10, 199) if i not in (64, 128)]
        assert files(table)[0].deletion_vector.cardinality == 13
        table.run(plan_delete, predicate="id < 500 AND v IS NOT NULL")
        assert files(table) == []
    else:
        ids = pq.read_table(table.path / left.path, columns=["id"]).column(0).to_pylist()
        assert ids == sorted(ids, reverse=True)  # no shuffle
        assert len(ids) == 195


@pytest.mark.slow
@pytest.mark.parametrize("configuration", [{}, DV], ids=["copy on write", "deletion vectors"])
def test_update_of_a_mapped_partitioned_table(table, configuration):
    create(
        table,
        column("i d", "long"),
        column("a.b", "timestamp"),
        column("s", {"type": "struct", "fields": [column("x y", "integer"), column("z", "string")]}),
        column("p", "string"),
        column("t", "timestamp"),
        partition_by=("p", "t"),
        **{"delta.columnMapping.mode": "name", **configuration},
    )
    table.write(
        "SELECT id `i d`, timestamp_seconds(id) `a.b`, named_struct('x y', CAST(id AS INT), 'z', 'z') s, "
        "CASE WHEN id % 2 = 0 THEN 'a/b %25=ü' END p, timestamp_seconds(1711846800) t FROM range(0, 8, 1, 1)"
    )
    assert len(files(table)) == 2
    values = {"`a.b`": "TIMESTAMP'2024-03-31 01:00:00'", "s.`x y`": "s.`x y` * 10", "p": "concat(p, '?')"}
    table.run(plan_update, set=values, predicate="`i d` IN (0, 1, 2) AND t = '2024-03-31 01:00:00'")
    found = {r[0]: r for r in rows(table)}
    assert len(found) == 8
    assert [tuple(found[i][2]) for i in range(4)] == [(0, "z"), (10, "z"), (20, "z"), (3, "z")]
    assert [found[i][3] for i in range(5)] == ["a/b %25=ü?", None, "a/b %25=ü?", None, "a/b %25=ü"]
    assert {found[i][1].timestamp() for i in (0, 1, 2)} == {1711843200.0}  # in the session's time zone, the predicate in UTC
    assert found[3][1].timestamp() == 3
    # Partitions that are decided by their values go without Spark.
    table.run(plan_delete, predicate="p = 'a/b %25=ü?'")
    assert sorted(r[0] for r in rows(table)) == [1, 3, 4, 5, 6, 7]


@pytest.mark.slow
def test_rules_of_the_table_hold_for_updated_rows(table):
    create(
        table,
        identity("no", 1, 1),
        column("id", "long", False),
        column("v", "integer"),
        field("twice", "integer", delta__generationExpression="v * 2"),
        {**column("name", "string"), "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}},
        field("d", "integer", CURRENT_DEFAULT="42"),
        **{"delta.constraints.positive": "v >= 0", "delta.feature.allowColumnDefaults": "supported"},
    )
    table.write("SELECT id, CAST(id AS INT) v, 'abc' name, 0 d FROM range(4)")
    table.run(plan_update, set={"V": "v + 10", "d": "DEFAULT"}, predicate="id > 1")
    assert [r[1:] for r in sorted(rows(table), key=lambda r: r[1])] == [
        (0, 0, 0, "abc", 0),
        (1, 1, 2, "abc", 0),
        (2, 12, 24, "abc", 42),
        (3, 13, 26, "abc", 42),
    ]
    version = table.log().update().version
    for values, error in (
        ({"v": "-1"}, ConstraintViolationException),
        ({"v": "null"}, ConstraintViolationException),
        ({"id": "null"}, InvariantViolationException),
        ({"twice": "7"}, ConstraintViolationException),
        ({"name": "'abcd'"}, CharVarcharLimitException),
        ({"v": "id + 3000000000"}, SchemaMismatchException),
        ({"v": "'x'"}, SchemaMismatchException),
        ({"v": "array(1)"}, SchemaMismatchException),
        ({"no": "7"}, IdentityInsertException),
    ):
        with pytest.raises(error):
            table.run(plan_update, set=values, predicate="id = 1")
    assert table.log().update().version == version


def test_a_doubled_quote_is_a_quote_in_every_expression(table):
    """To Spark 4.0, ``'it''s'`` is two strings side by side, without the quote."""
    create(
        table,
        column("id", "long"),
        field("name", "string", CURRENT_DEFAULT="'it''s'"),
        field("length", "integer", delta__generationExpression="length(concat(name, 'a''b'))"),
        **{"delta.constraints.names": "name <> 'its' AND name <> 'x''y'", "delta.feature.allowColumnDefaults": "supported"},
    )
    table.write("SELECT id, 'a' AS name FROM range(3)")
    table.run(plan_update, set={"name": "'it''s'"}, predicate="id = 1")
    table.run(plan_update, set={"name": "DEFAULT"}, predicate="id = 2")
    assert sorted(rows(table)) == [(0, "a", 4), (1, "it's", 7), (2, "it's", 7)]
    with pytest.raises(ConstraintViolationException):
        table.run(plan_update, set={"name": "concat('x', \"'\", 'y')"}, predicate="id = 0")
    table.run(plan_delete, predicate="concat(name, '') = 'it''s' AND id = 1")
    assert sorted(rows(table)) == [(0, "a", 4), (2, "it's", 7)]


@pytest.mark.parametrize("configuration", [{}, DV], ids=["copy on write", "deletion vectors"])
def test_change_data_say_what_was_written(table, two_files, configuration):
    two_files(**configuration, **CDF)
    result = table.run(plan_update, set={"v": "CAST(rand() * 1000000 AS INT)"}, predicate="id % 2 = 0 AND id < 10")
    written = {r[0]: r[1] for r in rows(table) if r[0] % 2 == 0 and r[0] < 10}
    told: dict[str, dict[int, int]] = {}
    for change in table.actions(result.version)["cdc"]:
        for row in pq.read_table(table.path / change["path"]).to_pylist():
            told.setdefault(row["_change_type"], {})[row["id"]] = row["v"]
    assert told["update_postimage"] == written
    assert told["update_preimage"] == {i: 199 - i for i in range(0, 10, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("configuration", [{}, DV], ids=["copy on write", "deletion vectors"])
def test_stages_on_top_of_each_other(table, two_files, configuration):
    two_files(**configuration)
    start = {f.path for f in files(table)}
    handle = table.begin()
    added = table.stage(handle, "SELECT id, 0 v FROM range(1000, 1010, 1, 1)", task_id="add")
    deleted = table.operate(handle, plan_delete, task_id="delete", predicate="id % 10 = 5 AND id > 150", after=[added])
    updated = table.operate(
        handle, plan_update, task_id="update", predicate="id >= 395 AND v < 398", set={"v": "v + 1"}, after=[added, deleted]
    )
    again = table.operate(handle, plan_delete, task_id="again", predicate="id IN (396, 1001, 7)", after=[added, deleted, updated])
    with pytest.raises(StageConflictException):
        table.operate(handle, plan_delete, predicate="id = 1", after=[deleted])
    result = table.publish(handle, again, updated, deleted, added)
    expected = {i: i for i in [*range(400), *range(1000, 1010)] if not (i % 10 == 5 and i > 150) and i not in (396, 1001, 7)}
    found = {r[0]: r[1] for r in rows(table)}
    assert found.keys() == expected.keys()
    assert {found[i] for i in range(1000, 1010) if i in found} == {1}
    removed = {r["path"] for r in table.actions(result.version)["remove"]}
    assert removed == start  # nothing that was only staged
    table.run(plan_truncate)
    assert rows(table) == []


def test_exists_of_an_array_is_no_subquery(table, two_files):
    two_files()
    table.run(plan_update, set={"v": "CAST(exists(array(id, 2L), x -> x = 3) AS INT)"}, predicate="id IN (3, 4)")
    assert {r[0]: r[1] for r in rows(table) if r[0] in (3, 4)} == {3: 1, 4: 0}


def test_rows_of_a_new_table_change_before_anybody_sees_them(table):
    handle = table.begin(configuration=DV)
    added = table.stage(handle, "SELECT id, CAST(id AS INT) v FROM range(0, 10, 1, 1)", task_id="add")
    deleted = table.operate(handle, plan_delete, task_id="delete", predicate="id IN (1, 2)", after=[added])
    updated = table.operate(handle, plan_update, task_id="update", predicate="id = 4", set={"v": "77"}, after=[added, deleted])
    result = table.publish(handle, added, deleted, updated)
    assert (result.version, "remove" in table.actions(0)) == (0, False)
    assert rows(table) == sorted([(i, 77 if i == 4 else i) for i in range(10) if i not in (1, 2)])


@pytest.mark.slow
def test_conditions_on_columns_that_an_earlier_stage_brings(table, two_files):
    two_files(**DV)
    columns = "100L + id AS id, 1 AS v, 'x' AS c"
    handle = table.begin()
    added = table.stage(handle, f"SELECT {columns} FROM range(0, 3, 1, 1)", task_id="add", merge_schema=True)
    deleted = table.operate(handle, plan_delete, task_id="delete", predicate="c = 'x' AND id = 100 OR id = 3", after=[added])
    updated = table.operate(
        handle, plan_update, task_id="update", predicate="c IS NULL AND id = 4", set={"c": "'new'"}, after=[added, deleted]
    )
    where = {"mode": "overwrite", "replace_where": "c = 'x'"}
    replaced = table.stage(handle, f"SELECT {columns} FROM range(7, 8)", task_id="w", after=[added, deleted, updated], **where)
    other = table.begin()
    table.publish(handle, added, deleted, updated, replaced)
    found = rows(table)
    assert len(found) == 400
    assert (4, 195, "new") in found
    assert [r for r in found if r[2] == "x"] == [(107, 1, "x")]
    staged = table.operate(other, plan_update, predicate="id = 5", set={"v": "v + 1"})
    with pytest.raises(MetadataChangedException):
        table.publish(other, staged)


def test_stages_that_read_what_others_change_need_an_order(table, two_files):
    """Each leaves a row that the other would have changed."""
    two_files()
    handle = table.begin()
    one = table.operate(handle, plan_update, task_id="one", predicate="id = 1", set={"v": "-1"})
    two = table.operate(handle, plan_update, task_id="two", predicate="id = 399 OR v = -1", set={"id": "1"})
    with pytest.raises(StageConflictException, match="after="):
        table.publish(handle, one, two)


@pytest.mark.parametrize("configuration", [{}, DV], ids=["copy on write", "deletion vectors"])
def test_stages_that_change_other_rows_in_other_files_need_none(table, two_files, configuration):
    two_files(**configuration)
    handle = table.begin()
    one = table.operate(handle, plan_delete, task_id="one", predicate="id = 1")
    two = table.operate(handle, plan_update, task_id="two", predicate="id = 399", set={"v": "0"})
    three = table.stage(handle, "SELECT 1L AS id, 5 AS v", task_id="three")
    table.publish(handle, one, two, three)
    found = {row[0]: row[1] for row in rows(table)}
    assert (len(found), found[1], found[399]) == (400, 5, 0)


def test_change_data_of_a_row_that_changed_twice_are_refused(table, two_files):
    two_files(**CDF)
    handle = table.begin()
    one = table.operate(handle, plan_update, task_id="one", predicate="id = 1", set={"v": "0"})
    with pytest.raises(StageConflictException, match="the change data feed is on"):  # when it is planned
        table.operate(handle, plan_update, task_id="two", predicate="id = 1", set={"v": "1"}, after=[one])


@pytest.mark.parametrize("configuration", [{}, DV], ids=["copy on write", "deletion vectors"])
def test_row_tracking(table, two_files, configuration, tmp_path):
    two_files(**configuration, **{"delta.enableRowTracking": "true"})
    ids = {f.path: (f.base_row_id, f.default_row_commit_version) for f in files(table)}
    result = table.run(plan_delete, predicate="id = 1")
    tags = table.info(result.version)["tags"]
    assert tags["delta.rowTracking.preserved"] == "true"
    if configuration:
        assert {f.path: (f.base_row_id, f.default_row_commit_version) for f in files(table)} == ids
    result = table.run(plan_update, predicate="id = 2", set={"v": "0"})
    assert table.info(result.version)["tags"]["delta.rowTracking.preserved"] == "true"
    found = files(table)
    assert len({f.base_row_id for f in found}) == len(found)
    stored = {name for f in found for name in pq.read_schema(table.path / f.path).names}
    assert stored - {"id", "v"} == set(row_id_columns(table))
    plain = Table(tmp_path / "plain")  # the readers do not open odd names
    plain.copy_from(table)
    assert {len(row) for row in plain.rows()} == {2}, "no reader sees the columns of row ids"
    assert not [f for f in found if "_row-" in f.stats]
    table.log().checkpoint()
    assert files(table) == found
    handle = table.begin()
    one = table.operate(handle, plan_update, task_id="one", predicate="id = 3", set={"v": "0"})
    two = table.operate(handle, plan_update, task_id="two", predicate="id = 3", set={"v": "1"}, after=[one])
    assert (one.keeps_row_ids, two.keeps_row_ids) == (True, False)  # staged files have no ids yet
    result = table.publish(handle, one, two)
    assert table.info(result.version)["tags"]["delta.rowTracking.preserved"] == "false"


def test_nothing_found_is_committed_with_its_key(table, two_files):
    two_files()
    before = files(table)
    result = table.run(plan_delete, predicate="v = 17 AND id = 17", begin={"transaction_key": "once"})
    assert set(table.actions(result.version)) == {"commitInfo", "txn"}
    assert files(table) == before
    handle = table.begin(transaction_key="once")
    assert handle.committed is not None


def test_what_others_add_where_the_predicate_matches_is_a_conflict(table, two_files):
    two_files()
    handle = table.begin()
    staged = table.operate(handle, plan_delete, predicate="id = 1")
    table.write("SELECT CAST(1 AS BIGINT) id, 1 v")
    with pytest.raises(ConcurrentAppendException):
        table.publish(handle, staged)


@pytest.mark.parametrize("configuration", slow_except([{}, DV], DV), ids=["copy on write", "deletion vectors"])
def test_a_rerun_never_takes_back_rows_that_were_there_before(table, two_files, configuration):
    two_files(**configuration)
    key = {"transaction_key": "again"}
    table.run(plan_delete, predicate="id = 1", begin=key)
    found = rows(table)
    for predicate in ("id = 1", "id = 2"):
        with pytest.raises(TransactionAlreadyCommittedException):
            table.run(plan_delete, predicate=predicate, begin={**key, "rerun_policy": "replace"})
    assert rows(table) == found
    table.run(plan_delete, predicate="id = 2", begin={**key, "rerun_policy": "append"})
    assert len(rows(table)) == 398


@pytest.mark.parametrize(
    "configuration", slow_except([{}, DV, {**DV, **CDF}], DV), ids=["copy on write", "deletion vectors", "change data"]
)
def test_the_rows_that_a_predicate_selects_are_all_marked(table, two_files, configuration):
    """Among them all rows of a file, and rows whose new values are the old ones."""
    two_files(**configuration)
    dead = {f.path for f in files(table)}
    for plan, options in ((plan_delete, {}), (plan_update, {"set": {"v": "v"}})):
        handle = table.begin()
        staged = table.operate(handle, plan, predicate="id % 5 = 0 OR id >= 200", **options)
        assert staged.reads.marked == (staged.reads.predicates if "delta.enableDeletionVectors" in configuration else ())
        assert set(staged.reads.files) == dead
        if staged.reads.marked:
            kept = [action["add"] for action in staged.actions if "add" in action and action["add"]["path"] in dead]
            assert [add["deletionVector"]["cardinality"] for add in kept] == [40]  # the other file goes
    for options in ({}, {"predicate": "true"}):
        assert table.operate(table.begin(), plan_update, set={"v": "1"}, **options).reads.marked == ()
        assert table.operate(table.begin(), plan_delete, **options).reads.marked == ()
