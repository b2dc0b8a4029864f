"""Keys that a commit brings: once each, and none that the table has, also in the version that is published."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from airflow_delta import exceptions
from airflow_delta.contract.audit import AuditCheck, HeldCheck, SqlCheck
from airflow_delta.contract.char_lengths import DECLARED
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector
from airflow_delta.log.statistics.wide_bounds import with_wide_bounds
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.audit.held import HeldChecks
from airflow_delta.table.audit.held_reads import held_queries, held_ratio, held_unique
from airflow_delta.table.audit.limit_checks import statistics_checks
from airflow_delta.table.audit.unique import _KeyNumbers
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.transaction import CommitPolicy, Operation
from support.actions import column, schema
from support.table import Table


def rows(*ids: Any, day: str = "a") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "day": pa.array([day] * len(ids), pa.string())})


@pytest.fixture
def table(tmp_path) -> Table:
    table = Table(tmp_path / "table")
    table.write(rows(1, 2, 3, 4), begin={"partition_by": ["day"]})
    table.write(rows(5, 6, day="b"))
    return table


def check(table: Table, handle, *staged, unique: Any = "id") -> AuditCheck:
    """The outcome of the only check."""
    [outcome] = statistics_checks(unique=unique).run(AuditedTable(table.log(), handle, staged))
    return outcome


def held(table: Table, handle, *staged, unique: Any = "id") -> HeldChecks:
    """What the commit asks after an audit that has passed, as it travels through XCom."""
    audited = AuditedTable(table.log(), handle, staged)
    [outcome] = statistics_checks(unique=unique).run(audited)
    assert outcome.passed, outcome.message
    [check] = held_unique(audited, unique, outcome, "audit")
    return HeldChecks(table.log(), handle, [HeldCheck.from_dict(check.to_dict())], staged)


def publish(table: Table, handle, *staged, checks: HeldChecks) -> int:
    return table.publish(handle, *staged, policy=CommitPolicy(check_winners=checks)).version


# -- what an audit finds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (rows(7, 8), None),
        (rows(7, 8, 7, 9, 9), "2 keys id (7, 9) staged more than once"),
        (rows(7, 3), "1 key id (3) in the table already, version 1"),
        (rows(7, 5), "1 key id (5) in the table already, version 1"),  # in another partition
        (rows(7, 7, 6), "1 key id (7) staged more than once; 1 key id (6) in the table already, version 1"),
        (rows(None, None), None),  # as UNIQUE of SQL
        (rows(), None),
        (rows(*range(1, 7)), "6 keys id (1, 2, 3, ...) in the table already, version 1"),
    ],
    ids=str,
)
def test_keys_of_an_append(table, given, found):
    handle = table.begin()
    outcome = check(table, handle, table.stage(handle, given))
    if found is None:
        assert (outcome.passed, outcome.value) == (True, 0)
        assert outcome.message == "no key id is staged twice, or in the table already, version 1"
    else:
        assert not outcome.passed
        assert outcome.message == found
        assert outcome.severity == "fail"


def test_two_stages_with_one_key(table):
    handle = table.begin()
    staged = [table.stage(handle, rows(7), task_id="one"), table.stage(handle, rows(7, day="b"), task_id="two")]
    assert check(table, handle, *staged).message == "1 key id (7) staged more than once"
    assert check(table, handle, *staged, unique=["id", "day"]).passed
    other = [table.stage(handle, rows(3, day="b"), task_id="three")]
    assert check(table, handle, *other, unique=("day", "id")).passed
    assert not check(table, handle, *other).passed


def test_rows_that_the_commit_removes_are_not_there(table):
    handle = table.begin()
    assert check(table, handle, table.stage(handle, rows(1, 2), mode="overwrite", replace_where="day = 'a'")).passed
    assert not check(table, handle, table.stage(handle, rows(1, 5), mode="overwrite", replace_where="day = 'a'")).passed
    delete = table.operate(handle, plan_delete, task_id="delete", predicate="day = 'b'")
    assert check(table, handle, delete, table.stage(handle, rows(5))).passed


VECTORS = {"delta.enableDeletionVectors": "true"}


def test_deleted_rows_are_not_there(tmp_path):
    table = Table(tmp_path / "table")
    table.write(rows(1, 2, 3, 4), begin={"configuration": VECTORS})
    [file] = table.log().update().add_files()
    vector = inline_deletion_vector(BitMap64([2]))
    marked = msgspec.structs.replace(file, deletion_vector=vector, stats=with_wide_bounds(file.stats, None), data_change=True)
    table.commit(file.remove(1), marked, operation=Operation.delete(["id = 3"]))
    handle = table.begin()
    assert check(table, handle, table.stage(handle, rows(3))).passed
    assert not check(table, handle, table.stage(handle, rows(4))).passed


def test_old_repetitions_are_not_the_commit_s(table):
    table.write(rows(1, 1, 2))
    handle = table.begin()
    assert check(table, handle, table.stage(handle, rows(7))).passed


def test_a_new_table(tmp_path):
    table = Table(tmp_path / "new")
    handle = table.begin()
    assert check(table, handle, table.stage(handle, rows(1, 2))).message.endswith("or in the table already, which is new")
    assert not check(table, handle, table.stage(handle, rows(1, 1))).passed


UTC = dt.UTC
VALUES: dict[str, tuple[pa.DataType, list[Any], Any]] = {
    # type, values in the table, a new one
    "long": (pa.int64(), [-(2**63), 0, 2**63 - 1], 5),
    "byte": (pa.int8(), [-128, 127], 5),
    "decimal": (pa.decimal128(38, 10), [Decimal("0.1"), Decimal("12345678901234567890.0000000001")], Decimal("0.2")),
    "string": (pa.string(), ["", "a", "x" * 100 + "a", "\U0001f600" * 40 + "é"], "x" * 100 + "b"),
    "binary": (pa.binary(), [b"", b"\x00\xff", b"a" * 100], b"\xff"),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(2026, 2, 28)], dt.date(2026, 3, 1)),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1900, 1, 1, tzinfo=UTC), dt.datetime(2026, 1, 1, 0, 0, 0, 999_999, UTC)],
        dt.datetime(2026, 1, 1, 0, 0, 0, 999_998, UTC),
    ),
    "timestamp_ntz": (pa.timestamp("us"), [dt.datetime(2026, 1, 1, 1, 1, 1, 1)], dt.datetime(2026, 1, 1, 1, 1, 1, 2)),
    "boolean": (pa.bool_(), [True], False),
}


@pytest.mark.parametrize("kind", VALUES)
def test_each_type_is_compared_exactly_whatever_its_bounds(tmp_path, kind):
    data_type, known, new = VALUES[kind]
    table = Table(tmp_path / "table")
    for value in known:  # a file for each
        table.write(pa.table({"key": pa.array([value], data_type), "n": pa.array([1], pa.int64())}))
    handle = table.begin()

    def of(*values: Any, n: int = 1) -> AuditCheck:
        given = pa.table({"key": pa.array(values, data_type), "n": pa.array([n] * len(values), pa.int64())})
        return check(table, handle, table.stage(handle, given), unique=unique)

    for unique in ("key", ["key", "n"], ["n", "key"]):
        assert of(new).passed
        assert not of(new, new).passed
        for value in known:
            assert not of(value).passed, value
            assert of(value, n=2).passed is (unique != "key")
        assert of(None, None).passed


@pytest.mark.parametrize("count", [16, 17, 1000])
def test_few_keys_and_many(table, count):
    """Few are looked for one by one, many between their ends."""
    handle = table.begin()
    new = range(100, 100 + count - 1)
    assert check(table, handle, table.stage(handle, rows(*new, 50))).passed
    assert check(table, handle, table.stage(handle, rows(*new, 6))).message == "1 key id (6) in the table already, version 1"


def test_only_files_that_may_hold_a_key_are_read(table):
    """A file that is gone does not matter where its bounds are elsewhere."""
    for file in table.path.glob("**/day=a/*.parquet"):
        file.unlink()
    handle = table.begin()
    assert check(table, handle, table.stage(handle, rows(7, 8))).passed
    assert not check(table, handle, table.stage(handle, rows(5))).passed
    with pytest.raises(exceptions.DeltaFileNotFoundException):
        check(table, handle, table.stage(handle, rows(2)))


def test_a_field_of_a_struct_and_a_mapped_column(tmp_path):
    table = Table(tmp_path / "table")
    of = lambda *ids: pa.table({"a": pa.array([{"b.c": i} for i in ids], pa.struct([("b.c", pa.int64())]))})  # noqa: E731
    table.write(of(1, 2), begin={"configuration": {"delta.columnMapping.mode": "name"}})
    handle = table.begin()
    assert check(table, handle, table.stage(handle, of(3, None)), unique="a.`b.c`").passed
    assert not check(table, handle, table.stage(handle, of(2)), unique="a.`b.c`").passed


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.list_(pa.int64())], ids=str)
def test_what_has_no_exact_equality_is_refused(tmp_path, kind):
    table = Table(tmp_path / "table")
    table.write(pa.table({"x": pa.array([], kind), "id": pa.array([], pa.int64())}))
    handle = table.begin()
    staged = table.stage(handle, pa.table({"x": pa.array([], kind), "id": pa.array([], pa.int64())}))
    with pytest.raises(exceptions.DeltaIllegalArgumentException, match=r"which has no exact equality\. Use a check in SQL"):
        check(table, handle, staged, unique=["id", "x"])
    with pytest.raises(exceptions.DeltaAnalysisException, match="names the column 'y'"):
        check(table, handle, staged, unique="y")


@pytest.mark.parametrize("given", [3, [""], ["id", "id"], {"columns": "id", "most": 1}, {"columns": "id", "limit": -1}], ids=str)
def test_what_names_no_key_is_refused(given):
    with pytest.raises(exceptions.DeltaIllegalArgumentException, match="unique"):
        statistics_checks(unique=given)


@pytest.mark.parametrize(("limit", "passed"), [(3, True), (2, False)])
def test_beyond_the_limit_it_is_not_decided(table, limit, passed):
    handle = table.begin()
    outcome = check(table, handle, table.stage(handle, rows(7, 8, 9)), unique={"columns": "id", "limit": limit})
    assert outcome.passed is passed
    if not passed:
        assert outcome.message.startswith("cannot be decided: more than 2 staged rows would have to be read")
    outcome = check(table, handle, table.stage(handle, rows(2)), unique={"columns": ["id"], "limit": str(limit)})
    assert not outcome.passed  # its file has four rows
    assert outcome.message.startswith(f"cannot be decided: more than {limit} other rows")


# -- what the commit asks again -------------------------------------------------------------------------------------------------


def optimize(table: Table) -> None:
    deltalake.DeltaTable(table.uri).optimize.compact()


WINNERS: dict[str, tuple[Any, str | None]] = {
    "other keys": (lambda table: table.write(rows(9)), None),
    "the key": (lambda table: table.write(rows(8, 9)), "certain"),
    "the key elsewhere": (lambda table: table.write(rows(8, day="z")), "certain"),
    "a delete": (lambda table: deltalake.DeltaTable(table.uri).delete("id = 1"), None),
    "a compaction": (optimize, None),
    "the key, compacted": (lambda table: (table.write(rows(8)), optimize(table)), "not certain"),
    "the key, deleted": (lambda table: (table.write(rows(8)), deltalake.DeltaTable(table.uri).delete("id = 8")), "not certain"),
}


@pytest.mark.parametrize("winner", WINNERS)
def test_winners_that_add_a_staged_key_stop_the_commit(table, winner):
    others, problem = WINNERS[winner]
    table.write(rows(3, 4))
    handle = table.begin()
    staged = table.stage(handle, rows(7, 8))
    checks = held(table, handle, staged)
    others(table)
    before = table.versions()
    if problem is None:
        assert publish(table, handle, staged, checks=checks) == before[-1] + 1
        return
    kind = exceptions.DeltaAuditFailedException if problem == "certain" else exceptions.ChecksOutdatedException
    with pytest.raises(kind, match=r"unique of audit holds for version 2, .*after version 3 \(WRITE\).* 1 key id \(8\)"):
        publish(table, handle, staged, checks=checks)
    assert table.versions() == before
    # What an audit would say now.
    assert check(table, handle, staged).passed is (winner == "the key, deleted")


@pytest.mark.slow
@pytest.mark.spark
def test_the_keys_that_a_commit_replaces_are_its_own(tmp_path, spark):
    """A winner marks another row of the file where the commit marks the old one: it adds the file with both."""
    table = Table(tmp_path / "table", spark)
    table.write(rows(*range(1, 9)), begin={"configuration": VECTORS})
    handle = table.begin()
    delete = table.operate(handle, plan_delete, predicate="id = 3")
    again = table.stage(handle, rows(3), task_id="again")
    checks = held(table, handle, delete, again)
    other = table.begin()
    table.publish(other, table.operate(other, plan_delete, predicate="id = 4"))
    assert publish(table, handle, delete, again, checks=checks) == other.read_version + 2
    assert sorted(row[0] for row in table.rows()) == [1, 2, 3, 5, 6, 7, 8]


def test_the_first_of_two_runs_creates_the_table(tmp_path):
    """Both have seen no table."""
    table = Table(tmp_path / "new")
    runs = [table.begin() for _ in range(3)]
    staged = [table.stage(handle, given) for handle, given in zip(runs, (rows(1, 2), rows(2, 3), rows(4)), strict=True)]
    checks = [held(table, handle, write) for handle, write in zip(runs, staged, strict=True)]
    assert publish(table, runs[0], staged[0], checks=checks[0]) == 0
    with pytest.raises(exceptions.DeltaAuditFailedException, match=r"not after version 0 .* 1 key id \(2\)"):
        publish(table, runs[1], staged[1], checks=checks[1])
    assert publish(table, runs[2], staged[2], checks=checks[2]) == 1


def test_other_checks_of_a_table_that_another_run_creates(tmp_path):
    """What a query has read, and how many rows there were, changes with the first rows of others."""
    table = Table(tmp_path / "new")
    first, second = table.begin(), table.begin()
    one, two = table.stage(first, rows(1, 2)), table.stage(second, rows(3, 4, 5))
    audited = AuditedTable(table.log(), second, [two])
    [outcome] = statistics_checks(rows_change={"max_ratio": 2}).run(audited)
    assert outcome.passed
    counted = held_ratio(audited, {"max_ratio": 2}, outcome, "audit")
    asked = held_queries(audited, [_sql("SELECT count(*) = count(DISTINCT id) FROM result WHERE id > 7")], "audit")
    table.publish(first, one)
    with pytest.raises(exceptions.DeltaAuditFailedException, match=r"2 rows before the commit and 5 after it, 2\.5 times"):
        publish(table, second, two, checks=HeldChecks(table.log(), second, counted))
    with pytest.raises(exceptions.ConcurrentAppendException, match=r"did not exist, and version 0 .* has changed the table"):
        publish(table, second, two, checks=HeldChecks(table.log(), second, asked))
    assert table.versions() == [0]


def _sql(text: str) -> Any:
    return SqlCheck(name="sql", sql=text)


def test_what_spark_fills_up_with_spaces_is_the_same(tmp_path):
    """Another engine has written a ``char(3)`` as it was given."""
    table = Table(tmp_path / "table")
    of = lambda *keys: pa.table({"key": pa.array(keys, pa.string())})  # noqa: E731
    table.write(of("x"), begin={"schema": schema({**column("key", "string"), "metadata": {DECLARED: "char(3)"}})})
    deltalake.write_deltalake(table.uri, of("a"), mode="append")
    handle = table.begin()
    assert not check(table, handle, table.stage(handle, of("a  ")), unique="key").passed
    assert not check(table, handle, table.stage(handle, of("b", "b ")), unique="key").passed
    assert check(table, handle, table.stage(handle, of("c")), unique="key").passed


def test_two_columns_at_the_commit(table):
    handle = table.begin()
    staged = [table.stage(handle, rows(7), task_id="one"), table.stage(handle, rows(8, day="b"), task_id="two")]
    checks = held(table, handle, *staged, unique=["day", "id"])
    table.write(rows(8))
    assert publish(table, handle, *staged, checks=checks) == handle.read_version + 2
    handle = table.begin()
    staged = [table.stage(handle, rows(9))]
    checks = held(table, handle, *staged, unique=["day", "id"])
    table.write(rows(9))
    with pytest.raises(exceptions.DeltaAuditFailedException, match=r"1 key \(day, id\) \(\(a, 9\)\)"):
        publish(table, handle, *staged, checks=checks)


def test_beyond_the_limit_the_commit_does_not_know(table):
    handle = table.begin()
    staged = table.stage(handle, rows(7, 20))
    checks = held(table, handle, staged, unique={"columns": "id", "limit": 2})
    table.write(rows(6, 7, 8))
    with pytest.raises(
        exceptions.ChecksOutdatedException, match=r"not certain that it does after version 2 .*: more than 2 other rows"
    ):
        publish(table, handle, staged, checks=checks)


def test_what_is_not_known_of_rows_that_made_the_table_begins_again(tmp_path):
    """An audit that ran again would still see no table."""
    table = Table(tmp_path / "new")
    first, second = table.begin(), table.begin()
    staged = table.stage(second, rows(7, 8))
    checks = held(table, second, staged, unique={"columns": "id", "limit": 2})
    table.publish(first, table.stage(first, rows(6, 7, 8)))
    with pytest.raises(
        exceptions.ConcurrentAppendException, match=r"did not exist, and it is not certain .* more than 2 other rows"
    ):
        publish(table, second, staged, checks=checks)


@pytest.mark.parametrize("seed", range(40))
def test_keys_in_several_columns_are_numbered_as_python_compares_them(seed):
    draw = random.Random(seed)
    width = draw.randint(1, 3)

    def drawn() -> tuple[list[tuple], pa.Table]:
        keys = [tuple(str(draw.randint(0, 9)) for _ in range(width)) for _ in range(draw.randint(0, 40))]
        columns = [pa.array([key[at] for key in keys], pa.string()) for at in range(width)]
        found = pa.Table.from_arrays(columns, names=[str(at) for at in range(width)])
        return keys, pa.concat_tables([found.slice(0, 7), found.slice(7)])

    (own, staged), (others, table) = drawn(), drawn()
    numbers = _KeyNumbers(staged)
    by_key = dict(zip(own, numbers.of(staged).to_pylist(), strict=True))
    assert len(set(by_key.values())) == len(set(own))
    assert numbers.of(table).to_pylist() == [by_key.get(key) for key in others]
