"""What a commit would do to rows, judged by independent readers of the table before and after the real commit."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from airflow_delta.contract.audit import SqlCheck
from airflow_delta.contract.merge import when_matched_update, when_not_matched_by_source_delete, when_not_matched_insert
from airflow_delta.exceptions import DeltaIllegalArgumentException, VersionNotFoundException
from airflow_delta.log import DeltaLog
from airflow_delta.spark.audit import query_answer
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.changes.read import read_changes
from airflow_delta.table.effects.diff import TableDiff, published_diff, staged_diff
from airflow_delta.table.effects.read_limits import ReadLimits
from airflow_delta.table.effects.report import diff_to_dict, diff_to_text, summary
from airflow_delta.table.effects.schema_changes import schema_changes
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete, plan_truncate
from airflow_delta.table.operations.rewrite.update import plan_update
from support import readers
from support.actions import column, metadata, struct
from support.table import Table
from support.tables import commit_path

pytestmark = pytest.mark.spark

ROWS = "SELECT id, concat('p', id % 2) AS p, CAST(id AS DOUBLE) / 2 AS v FROM range(6) UNION ALL SELECT 5, 'p1', 2.5"
PROPERTIES = {
    "plain": {},
    "vectors": {"delta.enableDeletionVectors": "true"},
    "mapping": {"delta.columnMapping.mode": "name"},
    "changes": {"delta.enableChangeDataFeed": "true"},
    "both": {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"},
}
WIDE = ReadLimits(files=100, num_bytes=1 << 20, values=1_000)
SOURCE = "SELECT * FROM VALUES (1L, 'p1', 9.5D), (2L, 'p0', 1.0D), (8L, 'p0', 4.0D) AS t(id, p, v)"
UPSERT = [when_matched_update(), when_not_matched_insert()]
SYNC = [*UPSERT, when_not_matched_by_source_delete()]


def stage(source: str, **options: Any):
    return lambda table, handle: [table.stage(handle, source, **options)]


def operate(plan: Any, **arguments: Any):
    return lambda table, handle: [table.operate(handle, plan, **arguments)]


def merge_after_append(table: Table, handle: Any) -> list[Any]:
    first = table.stage(handle, "SELECT 20L AS id, 'p0' AS p, 1.0D AS v", task_id="first")
    merged = table.operate(
        handle, plan_merge, task_id="merged", source=SOURCE.replace("8L", "20L"), condition="target.id = source.id",
        clauses=UPSERT, after=[first],
    )  # fmt: skip
    return [first, merged]


STAGES = {
    "append": stage("SELECT 7L AS id, 'p1' AS p, 1.0D AS v"),
    "append a duplicate": stage("SELECT 5L AS id, 'p1' AS p, 2.5D AS v"),
    "overwrite with some of the same rows": stage(f"SELECT * FROM ({ROWS}) WHERE id > 2", mode="overwrite"),
    "replace a partition": stage("SELECT 0L AS id, 'p0' AS p, 0.0D AS v", mode="overwrite", replace_where="p = 'p0'"),
    "replace by a data column": stage("SELECT 4L AS id, 'p0' AS p, 7.0D AS v", mode="overwrite", replace_where="id >= 4"),
    "dynamic": stage("SELECT 3L AS id, 'p1' AS p, 1.5D AS v", mode="dynamic"),
    "delete": operate(plan_delete, predicate="id IN (1, 5)"),
    "delete nothing": operate(plan_delete, predicate="id = 77"),
    "truncate": operate(plan_truncate),
    "update": operate(plan_update, set={"v": "v + 1"}, predicate="id >= 4"),
    "update of a key": operate(plan_update, set={"id": "id + 100"}, predicate="id = 0"),
    "merge": operate(plan_merge, source=SOURCE, condition="target.id = source.id", clauses=UPSERT),
    "merge that deletes": operate(plan_merge, source=SOURCE, condition="target.id = source.id", clauses=SYNC),
    "merge after append": merge_after_append,
    "new column": stage("SELECT 7L AS id, 'p1' AS p, 1.0D AS v, 'x' AS extra", merge_schema=True),
}


@pytest.fixture(scope="module")
def originals(spark, tmp_path_factory) -> Callable[[str], Table]:
    """Return tables by their properties; each is made once, to be copied."""

    @functools.cache
    def original(name: str) -> Table:
        found = Table(tmp_path_factory.mktemp("original") / "table", spark)
        found.write(ROWS, begin={"partition_by": ["p"], "configuration": PROPERTIES[name]})
        found.write("SELECT 30L AS id, 'p0' AS p, CAST('NaN' AS DOUBLE) AS v")
        return found

    return original


@pytest.fixture(params=PROPERTIES)
def filled(request, table, originals) -> Table:
    table.copy_from(originals(request.param))
    return table


def frozen(row: dict[str, Any], names: list[str]) -> tuple:
    return tuple("nan" if row.get(name) != row.get(name) else row.get(name) for name in names)


def rows_of(table: Table, version: int) -> list[dict[str, Any]]:
    mapped = "delta.columnMapping.mode" in table.log().snapshot_at(version).metadata.configuration
    # delta-rs reads some mapped tables, and others wrongly.
    return readers.READERS["Polars"](table.uri, version).to_pylist() if mapped else readers.rows(table.path, version)


def judged(table: Table, diff: TableDiff, read_version: int, version: int) -> None:
    """Compare a diff by key ``id`` with the rows that other readers find in both versions."""
    before = rows_of(table, read_version) if read_version >= 0 else []
    after = rows_of(table, version)
    names = list(dict.fromkeys(name for row in [*after, *before] for name in row))
    old, new = (Counter(frozen(row, names) for row in rows) for rows in (before, after))
    removed, added = old - new, new - old
    place = names.index("id")
    by_key = [Counter() for _ in range(2)]
    for rows, keys in ((removed, by_key[0]), (added, by_key[1])):
        for row, count in rows.items():
            keys[row[place]] += count
    changed = (by_key[0] & by_key[1]).total()
    assert diff.exact
    assert (diff.added, diff.removed, diff.changed) == (added.total() - changed, removed.total() - changed, changed)
    assert Counter(frozen(row, names) for row in diff.added_rows) <= added
    assert Counter(frozen(row, names) for row in diff.removed_rows) <= removed
    assert (len(diff.added_rows), len(diff.removed_rows), len(diff.changed_rows)) == (diff.added, diff.removed, diff.changed)
    for row, state in diff.changed_rows:
        assert frozen(row, names) in removed
        assert frozen(state, names) in added
        assert row["id"] == state["id"]


@pytest.mark.slow
@pytest.mark.parametrize("stages", STAGES)
def test_a_diff_is_what_the_commit_makes(filled, stages):
    handle = filled.begin()
    if stages == "merge after append" and "delta.enableChangeDataFeed" in handle.configuration:
        return  # refused: its change data would hide the appended rows
    staged = STAGES[stages](filled, handle)
    audited = AuditedTable(filled.log(), handle, staged)
    diff = staged_diff(audited, keys=["id"])
    plain = staged_diff(audited)
    version = filled.publish(handle, *staged).version
    judged(filled, diff, handle.read_version, version)
    assert plain.changed is None
    assert (plain.added, plain.removed) == (diff.added + diff.changed, diff.removed + diff.changed)
    if version > handle.read_version:
        published = published_diff(filled.log(), version, keys=["id"])
        judged(filled, published, version - 1, version)
        assert (published.version, published.read_version) == (version, version - 1)
        by_condition = published_diff(filled.log(), version, keys=None).keys
        assert by_condition == (("id",) if stages.startswith("merge") and stages != "merge after append" else ())
        judged(filled, published_diff(filled.log(), version, keys=["id"], bounds=WIDE), version - 1, version)


def test_optimize_does_nothing_to_rows(filled):
    handle = filled.begin()
    staged = filled.operate(handle, plan_optimize)
    diff = staged_diff(AuditedTable(filled.log(), handle, [staged]), keys=["id"])
    assert (diff.exact, diff.added, diff.removed, diff.changed) == (True, 0, 0, 0)


def test_a_table_that_does_not_exist_yet(table):
    handle = table.begin(partition_by=["p"])
    staged = table.stage(handle, ROWS)
    diff = staged_diff(AuditedTable(table.log(), handle, [staged]), keys=["id"], sample=2)
    assert (diff.read_version, diff.added, diff.removed, diff.changed, len(diff.added_rows)) == (-1, 7, 0, 0, 2)
    assert summary(diff) == "Compared with a new table: 7 rows added, 0 rows removed, 0 rows changed (by id)."
    table.publish(handle, staged)
    assert published_diff(table.log()).added == 7


def test_another_schema(table):
    """A dropped column, and a type that is another one: values that stay equal do not make a row another."""
    table.write("SELECT CAST(id AS INT) AS id, CAST(id AS DECIMAL(5, 2)) AS d, 'x' AS gone FROM range(3)")
    handle = table.begin()
    staged = table.stage(
        handle, "SELECT id, CAST(id AS DECIMAL(9, 4)) AS d FROM range(3)", mode="overwrite", overwrite_schema=True
    )
    diff = staged_diff(AuditedTable(table.log(), handle, [staged]), keys=["id"])
    assert (diff.added, diff.removed, diff.changed) == (0, 0, 3)
    table.publish(handle, staged)
    version = table.stage(handle := table.begin(), "SELECT * FROM range(3)", mode="overwrite", overwrite_schema=True)
    table.publish(handle, version)
    same = table.begin()
    staged = table.stage(same, "SELECT CAST(id AS INT) AS id FROM range(3)", mode="overwrite", overwrite_schema=True)
    diff = staged_diff(AuditedTable(table.log(), same, [staged]), keys=["id"])
    assert (diff.added, diff.removed, diff.changed) == (0, 0, 0)


def test_new_fields_in_structs(table):
    """As with a new column: a row whose new field is null stays the row that it was."""
    struct = "named_struct('x', {0}{1})"
    table.write(f"SELECT id, {struct.format('id', '')} AS s, array({struct.format('id', '')}) AS l FROM range(4)")
    handle = table.begin()
    new = struct.format("id", ", 'z', IF(id = 2, id, NULL)")
    staged = table.stage(
        handle, f"SELECT id, {new} AS s, array({new}) AS l FROM range(4)", mode="overwrite", overwrite_schema=True
    )
    diff = staged_diff(AuditedTable(table.log(), handle, [staged]), keys=["ID"])  # names of columns have no case
    assert (diff.added, diff.removed, diff.changed, diff.keys) == (0, 0, 1, ("id",))
    assert [(old["id"], new["s"]) for old, new in diff.changed_rows] == [(2, {"x": 2, "z": 2})]


def test_beyond_the_limit_counts_are_bounds(table):
    table.write(ROWS)
    handle = table.begin()
    staged = table.operate(handle, plan_update, set={"v": "0.0"}, predicate="id = 1")
    found = AuditedTable(table.log(), handle, [staged])
    exact = staged_diff(found, keys=["id"])
    assert (exact.exact, exact.added, exact.removed, exact.changed) == (True, 0, 0, 1)
    bound = staged_diff(found, keys=["id"], limit=2)
    assert not bound.exact
    assert bound.changed is None
    assert bound.added >= 1
    assert bound.removed >= 1
    assert (bound.added_rows, bound.removed_rows, bound.changed_rows) == ([], [], [])
    assert "at most" in summary(bound)
    # Rows that only come need no comparison, whatever the limit.
    append = table.stage(other := table.begin(), "SELECT * FROM range(100)", mode="overwrite", overwrite_schema=True)
    del append, other
    more = table.stage(handle := table.begin(), "SELECT 7L AS id, 'p1' AS p, 1.0D AS v FROM range(50)")
    diff = staged_diff(AuditedTable(table.log(), handle, [more]), limit=1)
    assert (diff.exact, diff.added, len(diff.added_rows)) == (True, 50, 10)


def test_wrong_arguments_and_versions(table):
    table.write(ROWS)
    handle = table.begin()
    found = AuditedTable(table.log(), handle, [table.stage(handle, ROWS)])
    with pytest.raises(DeltaIllegalArgumentException, match=r"'idd' is not a column of table .* The columns are id, p, v"):
        staged_diff(found, keys=["idd"])
    with pytest.raises(DeltaIllegalArgumentException, match=r"sample of a diff .* must be a whole number, 0 or more, got -1"):
        staged_diff(found, sample=-1)
    table.write(ROWS)
    log = table.log()
    log.checkpoint(log.update())
    commit_path(table.path, 0).unlink()
    with pytest.raises(VersionNotFoundException):
        published_diff(table.log(), 0)
    assert published_diff(table.log(), 1).added == 7


# -- what people read -----------------------------------------------------------------------------------------------------------


def test_the_text_shows_counts_and_rows_and_no_markup_of_the_data():
    before = {"id": 1, "name": "a|b <script>", "price": Decimal("1.50"), "day": date(2026, 1, 1)}
    diff = TableDiff(
        table="t", version=None, read_version=4, keys=("id",), exact=True, added=1_200, removed=0, changed=1,
        added_rows=[{"id": 2, "name": "x\n# title", "price": None, "day": date(2026, 1, 2)}],
        changed_rows=[(before, {**before, "price": Decimal("2.00")})],
    )  # fmt: skip
    assert diff_to_text(diff).splitlines() == [
        "Compared with version 4: 1,200 rows added, 0 rows removed, 1 row changed (by id).",
        "",
        "Changed rows, each before and after:",
        "",
        "| id | price |",
        "| --- | --- |",
        "| 1 | 1.50 → 2.00 |",
        "",
        "Added rows:",
        "",
        "| id | name | price | day |",
        "| --- | --- | --- | --- |",
        "| 2 | x \\# title | null | 2026-01-02 |",
    ]
    assert diff_to_dict(diff)["sample"]["changed"][0]["before"] == {
        "id": 1, "name": "a|b <script>", "price": "1.50", "day": "2026-01-01",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("https://evil.example/?a=1", "`https://evil.example/?a=1`"),
        ("www.evil.example", "`www.evil.example`"),
        ("ask me@evil.example", "`ask me@evil.example`"),
        ("@everybody", "`@everybody`"),
        ("see #12", "`see #12`"),
        ("`https://evil.example`|x", "`` `https://evil.example`\\|x ``"),
        ("``a`` https://e", "``` ``a`` https://e ```"),
        ("ab\u202ecd\u2066", "ab\\<U+202E\\>cd\\<U+2066\\>"),
        ("a\u200bb\x1b[31m", "a\\<U+200B\\>b\\<U+001B\\>\\[31m"),
        ("\u05d0 \u00e9 \U0001f600", "\u05d0 \u00e9 \U0001f600"),
    ],
)
def test_values_are_no_links_and_hide_nothing(value, cell):
    """Judged by GitHub's own rules for tables, as markdown-it has them, with links of bare addresses."""
    from markdown_it import MarkdownIt

    diff = TableDiff(
        table="t", version=None, read_version=1, keys=("www.key.example",), exact=True, added=1, removed=0, changed=0,
        added_rows=[{"www.key.example": value}],
    )  # fmt: skip
    text = diff_to_text(diff)
    assert text.splitlines()[-1] == f"| {cell} |"
    html = MarkdownIt("gfm-like", {"html": True}).render(text)
    assert "<a " not in html
    assert "<td>" in html


def test_the_text_says_what_changes_in_the_schema():
    mapped = {"delta.columnMapping.physicalName": "c1"}
    old, new = column("old_name", "string", **mapped), column("new_name", "string", **mapped)
    by_name = {"delta.columnMapping.mode": "name"}
    before = metadata(column("id"), column("gone", "date"), old, column("a", struct(zip="string")), configuration=by_name)
    added = column("a", struct(zip="string", city="string")), column("coupon", "string")
    after = metadata(column("id", "long"), new, *added, configuration=by_name)
    changes = schema_changes(before, after)
    diff = TableDiff(table="t", version=None, read_version=4, keys=(), exact=True, added=100, removed=0, schema_changes=changes)
    assert diff_to_text(diff).splitlines() == [
        "Compared with version 4: 100 rows added, 0 rows removed.",
        "",
        "New columns: a.city (string), coupon (string)",
        "",
        "Dropped columns: gone (date)",
        "",
        "Renamed columns: old\\_name to new\\_name",
        "",
        "Changed types: id (int to bigint)",
    ]
    assert diff_to_dict(diff)["schemaChanges"][:2] == [
        {"kind": "renamed", "column": "old_name", "before": "old_name", "after": "new_name"},
        {"kind": "type", "column": "id", "before": "int", "after": "bigint"},
    ]
    assert schema_changes(before, before) == schema_changes(None, after) == []


def test_the_schema_of_published_versions(tmp_path):
    """Also of a version whose commit has no rows, and where the one before it has left the log."""
    path = tmp_path / "table"
    deltalake.write_deltalake(path, pa.table({"id": [1]}))
    deltalake.write_deltalake(path, pa.table({"id": [2], "coupon": ["x"]}), mode="append", schema_mode="merge")
    deltalake.DeltaTable(path).alter.add_columns(deltalake.Field("note", deltalake.schema.PrimitiveType("string")))
    found = [list(map(str, published_diff(DeltaLog.for_table(str(path)), version).schema_changes)) for version in range(3)]
    assert found == [[], ["coupon (string)"], ["note (string)"]]
    deltalake.DeltaTable(path).create_checkpoint()
    commit_path(path, 0).unlink()
    commit_path(path, 1).unlink()
    assert published_diff(DeltaLog.for_table(str(path)), 2).schema_changes == []


def test_values_of_all_kinds_are_json():
    row = {"f": float("nan"), "b": b"x", "t": datetime(2026, 1, 1), "s": {"l": [Decimal(1)]}, "m": [("k", 1)], "x": None}
    diff = TableDiff(table="t", version=1, read_version=0, keys=(), exact=True, added=1, removed=0, added_rows=[row])
    assert json.loads(json.dumps(diff_to_dict(diff), allow_nan=False))["sample"]["added"] == [
        {"f": "nan", "b": "eA==", "t": "2026-01-01T00:00:00", "s": {"l": ["1"]}, "m": [["k", 1]], "x": None}
    ]


FAR = (
    "SELECT id, date_add(DATE'9999-12-31', CAST(id AS INT)) AS d, timestamp_micros(253402300799999999 + id) AS t, "
    "array(struct(date_add(DATE'0001-01-01', CAST(-id AS INT)) AS d)) AS a FROM range({first}, {end})"
)


@pytest.mark.parametrize("properties", [{}, {"delta.enableChangeDataFeed": "true"}], ids=["files", "change data"])
def test_dates_and_times_that_python_cannot_hold(tmp_path, spark, properties):
    table = Table(tmp_path / "t", spark)
    table.write(FAR.format(first=0, end=3), begin={"configuration": properties})
    added = published_diff(table.log())
    assert [row["d"] for row in sorted(added.added_rows, key=lambda row: row["id"])] == [
        date(9999, 12, 31),
        "+10000-01-01",
        "+10000-01-02",
    ]
    table.run(plan_update, set={"d": "date_add(d, 1)"}, predicate="id = 1")
    found = published_diff(table.log(), keys=["id"])
    assert (found.added, found.removed, found.changed) == (0, 0, 1)
    [(old, new)] = found.changed_rows
    assert (old["d"], new["d"], new["t"]) == ("+10000-01-01", "+10000-01-02", "+10000-01-01T00:00:00+00:00")
    assert new["a"] == [{"d": "0000-12-31"}]
    sample = json.loads(json.dumps(diff_to_dict(found)))["sample"]["changed"]
    assert sample[0]["after"]["d"] == "+10000-01-02"
    assert "10000-01-02" in diff_to_text(found)
    if properties:
        changes = read_changes(table.log(), starting_version=0, where="d <=> DATE'2024-01-01' OR id = 1").to_table()
        assert sorted(changes.column("_change_type").to_pylist()) == ["insert", "update_postimage", "update_preimage"]


def test_times_that_python_cannot_hold_in_the_figures_of_an_audit(spark):
    sql = "SELECT true, date_add(DATE'9999-12-31', 1) AS d, timestamp_micros(253402387200000000) AS t, 1 AS d"
    found = query_answer(spark, SqlCheck(name="far", sql=sql, on_failure="fail"))
    assert found.passed is True
    assert found.figures["t"].startswith("+10000-01-0")
