"""Checks that must hold in the version that is published: what others commit between the audit and the put."""

from __future__ import annotations

import deltalake
import pyarrow as pa
import pytest

from airflow_delta import exceptions
from airflow_delta.contract.audit import AuditArguments, HeldCheck, SqlCheck
from airflow_delta.contract.payloads import ScanPlan
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.audit.held import HeldChecks
from airflow_delta.table.audit.held_reads import condition_of, held_queries_of_tables
from airflow_delta.table.audit.sql_checks import plan_checks_of_tables
from airflow_delta.transaction import CommitPolicy, events
from support.table import Table


def rows(*ids: int, day: str = "a") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "day": pa.array([day] * len(ids), pa.string())})


@pytest.fixture
def table(tmp_path) -> Table:
    table = Table(tmp_path / "table")
    table.write(rows(1, 2, 3, 4), begin={"partition_by": ["day"]})
    table.write(rows(5, 6, day="b"))
    return table


def publish(table: Table, handle, staged, **given):
    check = HeldCheck(name="audit.unique", version=handle.read_version, **given)
    policy = CommitPolicy(check_winners=HeldChecks(table.log(), handle, [check]))
    return table.publish(handle, staged, policy=policy)


WINNERS = {
    "same day": lambda table: table.write(rows(9)),
    "other day": lambda table: table.write(rows(9, day="b")),
    "delete of the day": lambda table: deltalake.DeltaTable(table.uri).delete("id = 1"),
    "delete of another day": lambda table: deltalake.DeltaTable(table.uri).delete("id = 5"),
}


@pytest.mark.parametrize(
    ("given", "meets"),
    [
        ({"whole_table": True}, tuple(WINNERS)),
        ({"predicates": ("day = 'a'",)}, ("same day", "delete of the day")),
        ({"predicates": ("id > 100",)}, ()),
        ({"predicates": ("day = 'b' AND id = 9",)}, ("other day",)),
        ({"predicates": ("id > 100", "id = 5")}, ("delete of another day",)),
    ],
    ids=str,
)
@pytest.mark.parametrize("winner", WINNERS)
def test_a_winner_that_meets_what_a_check_has_read_makes_it_outdated(table, given, meets, winner):
    handle = table.begin()
    staged = table.stage(handle, rows(7))
    WINNERS[winner](table)
    before = table.versions()
    if winner not in meets:
        assert publish(table, handle, staged, **given).version == handle.read_version + 2
        return
    with pytest.raises(exceptions.ChecksOutdatedException, match=f"version {handle.read_version + 1} .* has changed"):
        publish(table, handle, staged, **given)
    assert table.versions() == before
    assert table.publish(handle, staged).version == handle.read_version + 2, "the stage itself does not conflict"


def test_a_compaction_changes_nothing_that_a_check_has_read(table):
    table.write(rows(8))
    handle = table.begin()
    staged = table.stage(handle, rows(7))
    deltalake.DeltaTable(table.uri).optimize.compact()
    assert publish(table, handle, staged, whole_table=True).version == handle.read_version + 2


def test_a_check_of_a_later_version_has_seen_the_winners_up_to_it(table):
    handle = table.begin()
    staged = table.stage(handle, rows(7))
    seen = table.write(rows(9)).version
    check = HeldCheck(name="audit.unique", version=seen, whole_table=True)
    policy = CommitPolicy(check_winners=HeldChecks(table.log(), handle, [check]))
    assert table.publish(handle, staged, policy=policy).version == seen + 1


@pytest.mark.parametrize(("added", "holds"), [(2, True), (10, False)])
def test_rows_are_counted_again_after_the_winners(table, added, holds):
    """Six rows and two staged ones: a third more at most. What others add makes it less, which is too few in the end."""
    handle = table.begin()
    staged = table.stage(handle, rows(7, 8))
    table.write(rows(*range(100, 100 + added)))
    given = {"ratios": ("1.2", "1.34"), "rows_before": 6, "rows_after": 8}
    if holds:
        publish(table, handle, staged, **given)
        return
    with pytest.raises(exceptions.DeltaAuditFailedException, match=r"16 rows before the commit and 18 after it, 1\.125 times"):
        publish(table, handle, staged, **given)


def test_deleted_rows_count_and_moved_ones_do_not(table):
    handle = table.begin()
    staged = table.stage(handle, rows(7, 8))
    deltalake.DeltaTable(table.uri).delete("id IN (1, 5)")
    deltalake.DeltaTable(table.uri).optimize.compact()
    given = {"ratios": (None, "1.4"), "rows_before": 6, "rows_after": 8}
    with pytest.raises(exceptions.DeltaAuditFailedException, match=r"4 rows before the commit and 6 after it, 1\.5 times"):
        publish(table, handle, staged, **given)


@pytest.mark.parametrize("given", [{"whole_table": True}, {"ratios": (None, "1.5"), "rows_before": 0, "rows_after": 2}], ids=str)
@pytest.mark.parametrize("brings", [(), (1,), (1, 2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("later", [False, True])
def test_a_table_that_others_have_created_meanwhile(tmp_path, given, brings, later):
    """A check that took it for missing has seen nothing of it: neither rows of the first version nor later ones."""
    table = Table(tmp_path / "table")
    handle = table.begin()
    staged = table.stage(handle, rows(7, 8))
    if later:
        other, first = table.begin(), table.begin()
        table.publish(first, table.stage(first, rows()))
        table.publish(other, table.stage(other, rows(*brings)))
    else:
        table.write(rows(*brings))
    before = table.versions()
    if not brings or (len(brings) == 5 and "ratios" in given):  # 7 rows of 5 are not too many
        assert publish(table, handle, staged, **given).version == before[-1] + 1
        return
    kind = exceptions.DeltaAuditFailedException if "ratios" in given else exceptions.ConcurrentAppendException
    with pytest.raises(kind, match="1 rows before" if "ratios" in given else "for a table that did not exist, and version"):
        publish(table, handle, staged, **given)
    assert table.versions() == before


@pytest.mark.parametrize(
    ("sql", "condition"),
    [
        ("SELECT count(*) = count(DISTINCT id) FROM result WHERE day = 'a'", "day = 'a'"),
        ("select count(*) = 0 from before where day = 'a' and id > 3 -- why\n group by day", "day = 'a' and id > 3"),
        ("SELECT count(*) = 0 FROM `result` WHERE (day = 'a' OR day = 'b') HAVING true", "(day = 'a' OR day = 'b')"),
        ("SELECT count(*) = 0 FROM result", None),
        ("SELECT count(*) = 0 FROM result r WHERE r.day = 'a'", None),
        ("SELECT count(*) = 0 FROM result WHERE day IN (SELECT day FROM staged)", None),
        ("SELECT count(*) = 0 FROM result JOIN staged USING (id) WHERE day = 'a'", None),
        ("SELECT count(*) = 0 FROM staged, result WHERE day = 'a'", None),
        ("SELECT count(*) = 0 FROM result WHERE day = 'a' UNION SELECT false FROM staged", None),
        ("WITH w AS (SELECT * FROM result WHERE day = 'a') SELECT true FROM w", None),
        ("SELECT 'FROM result WHERE' = '' FROM staged WHERE id = 1", None),
        ("SELECT count(*) = 0 FROM result WHERE day = 'result'", None),
        ("SELECT (SELECT max(id) FROM before) = max(id) FROM result WHERE day = 'a'", None),
        ("SELECT true FROM result WHERE", None),
        ("SELECT 'unclosed FROM result WHERE day = 1", None),
    ],
)
def test_the_condition_of_a_query_is_its_own_or_none(sql, condition):
    assert condition_of(sql) == condition


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("SELECT (SELECT sum(id) FROM orders) = (SELECT sum(id) FROM lines)", {"orders": None, "lines": None}),
        ("SELECT count(*) = 0 FROM orders WHERE day = 'a'", {"orders": "day = 'a'"}),
        ("SELECT count(*) = 0 FROM `Lines_Before` WHERE id > 3", {"lines": "id > 3"}),
        ("SELECT count(*) = 0 FROM lines WHERE day IN (SELECT day FROM orders_staged)", {"lines": None}),
        ("SELECT count(*) = 0 FROM orders_staged JOIN lines_staged USING (id)", {}),
        ("SELECT count(*) = 0 FROM lines WHERE orders = 3", {"lines": None, "orders": None}),
    ],
)
def test_what_a_query_over_several_tables_reads_of_each(tmp_path, sql, reads):
    """Too much, if a name may be that of a table or of a column; never too little."""
    audited, ids = {}, {}
    for name in ("orders", "lines"):
        table = Table(tmp_path / name)
        table.write(rows(1, 2))
        handle = table.begin()
        audited[name], ids[handle.transaction_id] = AuditedTable(table.log(), handle, [table.stage(handle, rows(3))]), name
    for on_failure in ("fail", "warn"):
        check = SqlCheck(name="agree", sql=sql, on_failure=on_failure)
        held = held_queries_of_tables(audited, [check], "p.totals")
        found = {ids[each.transaction_id]: each.predicates[0] if each.predicates else None for each in held}
        assert found == ({} if on_failure == "warn" else reads)
        assert {(each.name, each.version, each.whole_table) for each in held} <= {
            ("agree of p.totals", 0, not each.predicates) for each in held
        }


class TestOnNewest:
    """An audit sees the table as the commit would leave it on top of the newest version."""

    def audited(self, table: Table, handle, *staged) -> AuditedTable:
        return AuditedTable(table.log(), handle, staged)

    def test_others_have_added_rows(self, table):
        handle = table.begin()
        staged = table.stage(handle, rows(7, 8))
        seen = table.write(rows(9)).version
        found = self.audited(table, handle, staged)
        assert (found.version, found.rows_before, found.rows_after, found.rows_staged) == (seen, 7, 9, 2)
        assert len(found.scan("result").files) == len(found.scan("before").files) + 1

    def test_queries_over_several_tables_do(self, table):
        handle = table.begin()
        audited = self.audited(table, handle, table.stage(handle, rows(7, 8)))
        seen = table.write(rows(9)).version
        checks = [SqlCheck(name="all", sql="SELECT true FROM orders, orders_before")]
        request = plan_checks_of_tables({"orders": audited}, checks, task_id="totals", attempt=new_attempt())
        views = AuditArguments.of(request).views
        files = {name: len(ScanPlan.from_dict(view).files) for name, view in views.items()}
        assert (audited.version, files) == (seen, {"orders": 4, "orders_before": 3})

    def test_nobody_has(self, table):
        handle = table.begin()
        found = self.audited(table, handle, table.stage(handle, rows(7, 8)))
        assert (found.version, found.rows_before, found.rows_after) == (handle.read_version, 6, 8)

    def test_an_overwrite_beside_others(self, table):
        handle = table.begin()
        staged = table.stage(handle, rows(7), mode="overwrite", replace_where="day = 'a'")
        seen = table.write(rows(9, 10, day="b")).version
        found = self.audited(table, handle, staged)
        assert (found.version, found.rows_before, found.rows_after) == (seen, 8, 5)

    def test_after_a_conflict_the_version_that_was_read(self, table):
        """The commit says what is wrong, and may restart."""
        handle = table.begin()
        staged = table.stage(handle, rows(7), mode="overwrite", replace_where="day = 'a'")
        table.write(rows(9))
        found = self.audited(table, handle, staged)
        assert (found.version, found.rows_before, found.rows_after) == (handle.read_version, 6, 3)

    def test_nothing_is_put_and_no_event_told(self, table):
        handle = table.begin()
        staged = table.stage(handle, rows(7))
        table.write(rows(9))
        before, told = table.versions(), []
        listen = lambda name, where, data: told.append(name)  # noqa: E731
        events.add_listener(listen, only=("delta.commit",))
        try:
            assert self.audited(table, handle, staged).rows_after == 8
        finally:
            events.remove_listener(listen)
        assert (table.versions(), told) == (before, [])
        assert table.publish(handle, staged).version == before[-1] + 1
