"""Commits that a closer look at the rows let pass: Delta Spark reads each of them and all that belongs to it, and goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.merge import when_matched_update, when_not_matched_insert
from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
)
from airflow_delta.log.actions.actions import encode_actions
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.transaction import CommitPolicy
from airflow_delta.transaction.conflict_detection import ConflictDetection
from delta_spark.checksums import assert_valid_to_delta
from delta_spark.jvm import exception_name
from delta_spark.support import delta_history, sql_name
from support import readers, tables
from support.table import Table

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

Rows = dict[int, int]
"""The column ``v`` by ``id``; ``p`` follows from the id."""

VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
TRACKED = {"delta.enableRowTracking": "true"}
TIMED = {"delta.enableInCommitTimestamps": "true"}
MAPPED = {"delta.columnMapping.mode": "name"}

COLUMNS = "id BIGINT, v INT, p STRING"
DERIVED = (
    f"n BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 10 INCREMENT BY 5), {COLUMNS}, g BIGINT GENERATED ALWAYS AS (id * 2)"
)

TABLES: dict[str, tuple[str, str, Mapping[str, str]]] = {
    "everything": (COLUMNS, "", {**VECTORS, **FEED, **TRACKED, **TIMED}),
    "everything, mapped": (COLUMNS, "PARTITIONED BY (p)", {**VECTORS, **FEED, **TRACKED, **TIMED, **MAPPED}),
    "clustered": (COLUMNS, "CLUSTER BY (id)", {**VECTORS, **TRACKED}),
    "vectors": (COLUMNS, "", VECTORS),
    "copy on write": (COLUMNS, "", {"delta.enableDeletionVectors": "false"}),
    "derived": (DERIVED, "", {**VECTORS, **FEED}),
}
"""Columns, partitioning and properties."""

P = "substring('ab', CAST(id % 2 AS INT) + 1, 1)"
FILES = ((0, 12), (12, 20))
"""Ids of the first two files. An UPDATE of rows of one makes a third file, and the first vector."""
UPDATED = (0, 6)


def row(number: int, v: int) -> tuple[int, int, str]:
    return (number, v, "ab"[number % 2])


# -- statements ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A statement as Delta Spark runs it and as we stage it.

    :param after: returns the rows that it leaves of some rows.
    """

    sql: str
    plan: Callable[..., Any]
    arguments: Mapping[str, Any]
    after: Callable[[Rows], Rows]


def delete(*ids: int) -> Change:
    where = f"id IN ({', '.join(map(str, ids))})"
    return Change(
        f"DELETE FROM {{t}} WHERE {where}",
        plan_delete,
        {"predicate": where},
        lambda rows: {number: v for number, v in rows.items() if number not in ids},
    )


def update(*ids: int) -> Change:
    """Add 1000 to ``v``."""
    where = f"id IN ({', '.join(map(str, ids))})"
    return Change(
        f"UPDATE {{t}} SET v = v + 1000 WHERE {where}",
        plan_update,
        {"predicate": where, "set": {"v": "v + 1000"}},
        lambda rows: {number: v + 1000 if number in ids else v for number, v in rows.items()},
    )


def merge(*ids: int) -> Change:
    """Add 5 to ``v``, or insert a row with 5."""
    source = f"SELECT id, 5 AS v, {P} AS p FROM VALUES {', '.join(f'({number}L)' for number in ids)} AS s(id)"
    values = {name: f"source.{name}" for name in ("id", "v", "p")}
    return Change(
        f"MERGE INTO {{t}} target USING ({source}) source ON target.id = source.id "
        "WHEN MATCHED THEN UPDATE SET v = target.v + source.v "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})",
        plan_merge,
        {
            "source": source,
            "condition": "target.id = source.id",
            "clauses": [when_matched_update({"v": "target.v + source.v"}), when_not_matched_insert(values)],
        },
        lambda rows: rows | {number: rows.get(number, 0) + 5 for number in ids},
    )


# -- a table ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Staged:
    """What we have staged and not committed."""

    change: Change
    handle: TransactionHandle
    write: StagedWrite


class KnownTable:
    """A table whose rows are known at each version, from the one on that it is copied at.

    :param rows: at that version.
    :ivar ours: the versions that we committed.
    """

    def __init__(self, delta: SparkSession, path: Path, rows: Rows) -> None:
        self.delta = delta
        self.path = path
        self.table = Table(path, delta)
        self.rows: list[Rows] = [rows]
        self.ours: list[int] = []
        self.first = self.table.versions()[-1]

    @property
    def version(self) -> int:
        return self.first + len(self.rows) - 1

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        return [tuple(found) for found in self.delta.sql(text.replace("{t}", sql_name(self.path))).collect()]

    def by_delta(self, *statements: Change | str) -> None:
        """Let Delta Spark run statements; a text leaves the rows as they are."""
        for statement in statements:
            self.sql(statement if isinstance(statement, str) else statement.sql)
            self.became(self.rows[-1] if isinstance(statement, str) else statement.after(self.rows[-1]))

    def became(self, rows: Rows) -> None:
        """Note the rows of a new version."""
        self.rows.append(rows)
        assert len(self.table.versions()) == self.version + 1

    def stage(self, change: Change) -> Staged:
        handle = self.table.begin()
        return Staged(change, handle, self.table.operate(handle, change.plan, **change.arguments))

    def publish(self, staged: Staged, level: ConflictDetection = "rows") -> CommitResult:
        """Commit; the result must be that of the statement on the newest rows, and its checksum that of the log."""
        before = self.row_ids()
        result = self.table.publish(staged.handle, staged.write, policy=CommitPolicy(conflict_detection=level))
        self.became(staged.change.after(self.rows[-1]))
        assert result.version == self.version
        self.ours.append(self.version)
        assert_valid_to_delta(self.delta, self.path)
        self.check_row_ids(before)
        return result

    # -- what others see -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the rows of each version and the changes between them.

        Delta Spark reads the versions that we committed and the latest, which takes it a while; the independent readers read all.
        """
        by_version = dict(enumerate(([row(*item) for item in rows.items()] for rows in self.rows), self.first))
        read = sorted({*self.ours, self.version})
        select = " UNION ALL ".join(f"SELECT {version}, id, v, p FROM {{t}} VERSION AS OF {version}" for version in read)
        assert sorted(self.sql(select)) == sorted((version, *found) for version in read for found in by_version[version])
        for version, expected in by_version.items():
            assert self.independent(version) == sorted(expected), version
        if self.has(FEED):
            assert self.changes() == self.expected_changes()
        if self.has(TIMED):
            infos = [self.table.info(version) for version in range(self.version + 1)]
            assert all(earlier["inCommitTimestamp"] < later["inCommitTimestamp"] for earlier, later in pairwise(infos))

    def independent(self, version: int) -> list[tuple[Any, ...]]:
        """Return the rows of a version as independent readers agree on them."""
        if not self.has(MAPPED):
            return sorted((found["id"], found["v"], found["p"]) for found in readers.rows(self.path, version))
        # DuckDB reads partition columns under column mapping as null, whoever wrote the table.
        duckdb, polars = (readers.READERS[name](str(self.path), version) for name in ("DuckDB", "Polars"))
        assert sorted(zip(*duckdb.select(["id", "v"]).to_pydict().values(), strict=True)) == sorted(
            zip(*polars.select(["id", "v"]).to_pydict().values(), strict=True)
        )
        return sorted(zip(*polars.select(["id", "v", "p"]).to_pydict().values(), strict=True))

    def has(self, properties: Mapping[str, str]) -> bool:
        return properties.items() <= self.table.log().snapshot.metadata.configuration.items()

    def copied(self) -> KnownTable:
        return KnownTable(self.delta, shutil.copytree(self.path, self.path.parent / "copy"), self.rows[-1])

    def files(self) -> set[str]:
        return {file.path for file in self.table.log().update().add_files()}

    def marked(self, names: set[str]) -> dict[str, Any]:
        """Return how many rows the vectors of files mark, and what else the log says of these files."""
        return {
            file.path: (
                getattr(file.deletion_vector, "cardinality", 0),
                json.loads(file.stats or "{}"),
                (file.partition_values, file.tags, file.base_row_id, file.default_row_commit_version, file.clustering_provider),
            )
            for file in self.table.log().update().add_files()
            if file.path in names
        }

    def changes(self, version: int | None = None) -> list[tuple[Any, ...]]:
        """Return the change data feed of all versions, or of one."""
        start, end = (self.first + 1, self.version) if version is None else (version, version)
        reader = self.delta.read.option("readChangeFeed", "true").option("startingVersion", start).option("endingVersion", end)
        found = reader.format("delta").load(str(self.path)).select("_commit_version", "_change_type", "id", "v", "p")
        return sorted(map(tuple, found.collect()))

    def expected_changes(self, version: int | None = None) -> list[tuple[Any, ...]]:
        steps = enumerate(pairwise(self.rows), self.first + 1)
        return sorted(
            (number, *change) for number, step in steps if version in (None, number) for change in changes_between(*step)
        )

    def row_ids(self) -> dict[int, tuple[int, int, int]]:
        """Return ``v``, the row id and the row commit version of each row, by its column ``id``."""
        if not self.has(TRACKED):
            return {}
        found = self.sql("SELECT id, v, _metadata.row_id, _metadata.row_commit_version FROM {t}")
        assert len({row_id for _id, _v, row_id, _version in found}) == len(found)
        return {number: rest for number, *rest in found}  # type: ignore[misc]

    def check_row_ids(self, before: Mapping[int, tuple[int, int, int]]) -> None:
        """Check that every row that was there has the id that it had, and that a changed or new one is of the last version."""
        after = self.row_ids()
        known = {row_id for _v, row_id, _version in before.values()}
        for number, (v, row_id, version) in after.items():
            was = before.get(number)
            assert row_id not in known if was is None else row_id == was[1]
            assert version == (was[2] if was is not None and v == was[0] else self.version)


def changes_between(before: Rows, after: Rows) -> Iterator[tuple[Any, ...]]:
    for number, v in before.items():
        if number not in after:
            yield "delete", *row(number, v)
        elif after[number] != v:
            yield "update_preimage", *row(number, v)
            yield "update_postimage", *row(number, after[number])
    for number in after.keys() - before.keys():
        yield "insert", *row(number, after[number])


Make = Callable[..., KnownTable]


@pytest.fixture(scope="module")
def origins(delta: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tables as Delta Spark has made them, once; tests work on copies."""
    made: dict[str, Path] = {}

    def origin(kind: str) -> Path:
        if kind not in made:
            path = made[kind] = tmp_path_factory.mktemp("origins") / "table"
            columns, partitioning, properties = TABLES[kind]
            listed = ", ".join(f"'{key}' = '{value}'" for key, value in {**properties, "delta.checkpointInterval": "7"}.items())
            delta.sql(f"CREATE TABLE {sql_name(path)} ({columns}) USING delta {partitioning} TBLPROPERTIES ({listed})")
            if kind == "derived":
                delta.sql(f"ALTER TABLE {sql_name(path)} ADD CONSTRAINT small CHECK (v < 100000)")
            for start, end in FILES:
                select = f"SELECT /*+ COALESCE(1) */ id, CAST(id * 10 AS INT), {P} FROM range({start}, {end})"
                delta.sql(f"INSERT INTO {sql_name(path)} (id, v, p) {select}")
            if kind != "copy on write":
                delta.sql(update(*UPDATED).sql.replace("{t}", sql_name(path)))
        return made[kind]

    return origin


@pytest.fixture
def make(delta: SparkSession, origins: Callable[[str], Path], tmp_path: Path) -> Make:
    def copied(kind: str) -> KnownTable:
        path = tmp_path / "table"
        shutil.copytree(origins(kind), path)
        rows = {number: number * 10 for number in range(FILES[-1][1])}
        return KnownTable(delta, path, rows if kind == "copy on write" else update(*UPDATED).after(rows))

    return copied


# -- two vectors on one file -----------------------------------------------------------------------------------------------------

OURS = (delete(3, 14), update(8, 13), merge(5, 17, 103))
"""Changes of rows in the same two files."""
THEIRS = (2, 9, 15)
"""Other rows of these files; what changes them all adds files whose bounds hold those of the first two."""


@pytest.mark.parametrize("theirs", [delete(*THEIRS), update(*THEIRS), merge(*THEIRS, 102)], ids=["delete", "update", "merge"])
def test_vectors_of_both(make: Make, theirs: Change) -> None:
    known = make("everything")
    staged = [known.stage(ours) for ours in OURS]
    known.by_delta(theirs)
    resolved = [known.publish(ours).resolved for ours in staged]
    added = {} if theirs.plan is plan_delete else {"keys": "4"}
    # The MERGE has looked at rows that it does not mark: those that are gone are compared with its keys, too.
    assert resolved == [{**added, "rows": "4"}, {**added, "rows": "4-5"}, {"keys": "4-6", "rows": "4-6"}]
    for version, has_changes in ((5, False), (6, True), (7, True)):
        assert ("cdc" in known.table.actions(version)) == has_changes
        assert known.changes(version) == known.expected_changes(version) != []
    vectors = [file.deletion_vector for file in known.table.log().update().add_files()]
    assert sorted(vector.cardinality for vector in vectors if vector is not None) == [4, 7]
    known.check()


def test_the_level_decides(make: Make) -> None:
    known = make("vectors")
    staged = known.stage(delete(3, 14))
    known.by_delta(delete(*THEIRS))
    levels: tuple[ConflictDetection, ...] = ("delta", "statistics")
    for level in levels:
        with pytest.raises(DeltaConcurrentModificationException):
            known.publish(staged, level)
    assert known.publish(staged).resolved == {"rows": "4"}
    known.check()
    known.sql("VACUUM {t} RETAIN 0 HOURS")  # keeps the vectors that both have written together
    assert known.independent(known.version) == [row(*item) for item in known.rows[-1].items()]


def test_vectors_of_a_clone(make: Make, tmp_path: Path) -> None:
    """The files of a shallow clone and their vectors are at absolute paths, new vectors are its own."""
    origin, path = make("vectors"), tmp_path / "clone"
    origin.sql(f"CREATE TABLE {sql_name(path)} SHALLOW CLONE {{t}}")
    known = KnownTable(origin.delta, path, origin.rows[-1])
    vectors = [file.deletion_vector for file in known.table.log().update().add_files()]
    assert [vector.storage_type for vector in vectors if vector is not None] == ["p"]
    staged = [known.stage(change) for change in (delete(3, 14), update(8, 13), merge(5, 17, 103))]
    known.by_delta(delete(*THEIRS), update(4, 16))
    for change in staged:
        assert known.publish(change).resolved["rows"]
        assert sorted(known.sql("SELECT id, v, p FROM {t}")) == sorted(row(*item) for item in known.rows[-1].items())
    known.by_delta(delete(5, 103), merge(1, 104), "OPTIMIZE {t}")
    assert sorted(known.sql("SELECT id, v, p FROM {t}")) == sorted(row(*item) for item in known.rows[-1].items())


def test_delta_would_have_written_the_same(make: Make) -> None:
    """Run after the winner, Delta Spark's statement marks the same rows, leaves the same statistics, and counts the same."""
    known = make("vectors")
    copy, names = known.copied(), known.files()
    for ours, theirs in (
        (delete(3, 14), update(2, 15)),
        (update(4, 16), delete(9)),
        (merge(5, 17, 103), delete(10, 18)),
        (delete(0, 7), delete(6)),  # the two rows of a file: then it goes
    ):
        staged = known.stage(ours)
        known.by_delta(theirs)
        assert known.publish(staged).resolved
        copy.by_delta(theirs, ours)
        assert counted(known) == counted(copy)
    assert known.marked(names) == copy.marked(names)


def counted(known: KnownTable) -> dict[str, str]:
    """Return the metrics of the last commit, without times, bytes and what depends on the files that rows are written to."""
    metrics = known.table.info(known.version)["operationMetrics"]
    kinds = ("Rows", "DeletionVectors", "RemovedFiles", "FilesRemoved")
    return {name: value for name, value in metrics.items() if any(kind in name for kind in kinds)}


def test_rows_of_both_conflict(make: Make) -> None:
    known = make("vectors")
    deletes, updates, inserts = (known.stage(change) for change in (delete(3, 8), update(3, 8), merge(3, 101)))
    known.by_delta(delete(8, 9), merge(101))
    for staged in (deletes, updates):
        with pytest.raises(ConcurrentDeleteDeleteException, match="1 of the rows of a file"):
            known.publish(staged)
    with pytest.raises(ConcurrentAppendException, match="that was added is one that it should have read"):
        known.publish(inserts)
    assert len(known.table.versions()) == known.version + 1


# -- goes on ---------------------------------------------------------------------------------------------------------------------


def test_delta_goes_on(make: Make) -> None:
    known = make("everything, mapped")
    first = known.stage(delete(2, 13))
    known.by_delta(delete(3), update(4, 14), merge(5, 15, 101))
    assert known.publish(first).resolved["rows"] == "4-6"
    second = known.stage(merge(8, 17, 103))
    known.by_delta(delete(6), merge(7, 16, 102), "OPTIMIZE {t}")  # row 6 is in a file that the MERGE did not need
    resolved = known.publish(second).resolved
    assert (resolved["moved"], resolved["rows"]) == ("10", "9-10")
    known.by_delta(update(9, 103), delete(18, 101), "REORG TABLE {t} APPLY (PURGE)")
    known.check()


# -- moved rows ------------------------------------------------------------------------------------------------------------------

MOVED = (0, 3, 14)
"""Rows of three files; row 0 has been updated, so that its row id is stored in its file."""


@pytest.mark.parametrize(
    ("kind", "compaction", "ours"),
    [
        ("clustered", "OPTIMIZE {t}", delete(*MOVED)),
        ("everything", "OPTIMIZE {t} ZORDER BY (v)", update(*MOVED)),
        ("everything", "REORG TABLE {t} APPLY (PURGE)", delete(*MOVED)),
        ("everything, mapped", "OPTIMIZE {t}", merge(*MOVED, 103)),
    ],
    ids=["clustered", "ZORDER", "REORG", "mapped"],
)
def test_moved_rows(make: Make, kind: str, compaction: str, ours: Change) -> None:
    known = make(kind)
    before = known.row_ids()
    staged = known.stage(ours)
    known.by_delta(compaction)
    copy, names = known.copied(), known.files()
    assert known.publish(staged).resolved == {"moved": "4", "rows": "4"}
    known.check_row_ids(before)
    copy.by_delta(ours)  # Delta Spark marks the same rows in the same way
    assert counted(known) == counted(copy)
    assert known.marked(names) == copy.marked(names)
    known.check()


def test_moved_rows_among_other_changes(make: Make) -> None:
    known = make("everything")
    before = known.row_ids()
    staged = known.stage(delete(*MOVED))
    known.by_delta(delete(2, 15), "OPTIMIZE {t}", update(4, 16), "OPTIMIZE {t}", delete(5))
    assert known.publish(staged).resolved == {"keys": "6,8", "moved": "5,7", "rows": "4-8"}
    after = known.row_ids()
    assert {number: after[number][1] for number in after} == {number: before[number][1] for number in after}
    assert {number: version for number, (_v, _id, version) in after.items() if version != before[number][2]} == {4: 6, 16: 6}
    known.by_delta("REORG TABLE {t} APPLY (PURGE)")
    assert known.row_ids() == after
    known.check()


def test_moved_rows_of_several_row_groups(make: Make, delta: SparkSession) -> None:
    known = make("everything")
    known.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id, CAST(id AS INT), {P} FROM range(1000, 1500)")
    known.became(known.rows[-1] | {number: number for number in range(1000, 1500)})
    before = known.row_ids()
    staged = known.stage(delete(3, 1001, 1250, 1499))
    delta.conf.set("parquet.block.size", "1")
    try:
        known.by_delta("OPTIMIZE {t}")
    finally:
        delta.conf.unset("parquet.block.size")
    [file] = known.table.actions(known.version)["add"]
    assert pq.read_metadata(known.path / file["path"]).num_row_groups > 3
    assert known.publish(staged).resolved == {"moved": "5", "rows": "5"}
    known.check_row_ids(before)
    known.check()


@pytest.mark.parametrize("ours", [delete(*MOVED), update(*MOVED), merge(*MOVED, 103), delete(*range(20))], ids="dumD")
@pytest.mark.parametrize("compaction", ["OPTIMIZE {t}", "OPTIMIZE {t} ZORDER BY (v)"])
def test_moved_rows_without_row_tracking(make: Make, compaction: str, ours: Change) -> None:
    """Found by their content: Delta Spark does not say where rows went."""
    known = make("vectors")
    staged = known.stage(ours)
    known.by_delta(compaction)
    assert known.publish(staged).resolved == {"moved": "4", "rows": "4"}
    known.check()


OPTIMIZE = Change("OPTIMIZE {t}", plan_optimize, {}, lambda rows: rows)


@pytest.mark.parametrize("kind", ["vectors", "everything, mapped", "copy on write"])
@pytest.mark.parametrize("theirs", [delete(*MOVED), update(*MOVED), merge(*MOVED, 103), delete(*range(12))], ids="dumD")
def test_our_compaction_and_changes_of_delta(make: Make, kind: str, theirs: Change) -> None:
    """It takes along what Delta Spark changed, and a change of ours that began before follows it."""
    known = make(kind)
    compaction, late = known.stage(OPTIMIZE), known.stage(delete(5, 17))
    known.by_delta(theirs)
    if not known.has(VECTORS):
        with pytest.raises(ConcurrentDeleteReadException, match="enableDeletionVectors"):
            known.publish(compaction)
        return
    assert known.publish(compaction).resolved["rows"] == str(known.version - 1)
    if theirs.after(dict.fromkeys(range(12), 0)):  # else both have deleted row 5
        assert known.publish(late).resolved["rows"] == f"{known.version - 2}-{known.version - 1}"
    known.by_delta(update(1, 13, 18), "OPTIMIZE {t}", delete(16))
    known.check()


# -- timestamps, computed columns ------------------------------------------------------------------------------------------------


def test_timestamps_stay_in_order(make: Make) -> None:
    known = make("everything")
    ahead = int(datetime.now(UTC).timestamp() * 1000) + 3_600_000
    info = tables.info("WRITE", in_commit_timestamp=ahead, is_blind_append=False)
    known.table.log().write_commit(known.version + 1, encode_actions([info, tables.txn("clock ahead", 1)]))
    known.became(known.rows[-1])
    staged = known.stage(update(3, 14))
    known.by_delta(delete(*THEIRS))
    assert known.publish(staged).resolved == {"rows": "5"}
    history = delta_history(known.delta, known.path)
    assert [history[version]["timestamp"] - ahead for version in (4, 5, 6)] == [0, 1, 2]
    for version in (5, 6):
        at = datetime.fromtimestamp(history[version]["timestamp"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        assert dict(known.sql(f"SELECT id, v FROM {{t}} TIMESTAMP AS OF '{at}'")) == known.rows[version - known.first]
    known.check()


def test_computed_columns(make: Make) -> None:
    known = make("derived")
    numbers = computed(known)
    first = known.stage(update(3, 14))
    known.by_delta(merge(*THEIRS, 102))
    assert known.publish(first).resolved == {"keys": "5", "rows": "5"}
    second = known.stage(merge(4, 103))
    known.by_delta(delete(5))
    assert known.publish(second).resolved == {"keys": "7", "rows": "7"}
    third, last = known.stage(merge(104)), max(computed(known).values())
    known.by_delta(merge(105, 106))
    with pytest.raises(MetadataChangedException):  # both take values of the identity column
        known.publish(third)
    found = computed(known)
    assert {number: n for number, n in found.items() if number in numbers} == {n: numbers[n] for n in numbers if n != 5}
    assert min(found[105], found[106]) > last == found[103]
    with pytest.raises(Exception, match="CHECK constraint small") as refused:
        known.sql("UPDATE {t} SET v = 100000 WHERE id = 4")
    assert exception_name(refused.value) == "DeltaInvariantViolationException"
    known.check()


def computed(known: KnownTable) -> dict[int, int]:
    """Return the values of the identity column, after a look at those of the generated column."""
    found = known.sql("SELECT id, n, g FROM {t}")
    assert len({n for _id, n, _g in found}) == len(found)
    assert all(n >= 10 and n % 5 == 0 and g == 2 * number for number, n, g in found)
    return {number: n for number, n, _g in found}


# -- delta-rs --------------------------------------------------------------------------------------------------------------------


def by_delta_rs(run: Callable[[DeltaTable], object], after: Callable[[Rows], Rows]) -> Callable[[KnownTable], None]:
    def winner(known: KnownTable) -> None:
        from deltalake import DeltaTable

        run(DeltaTable(str(known.path)))
        known.became(after(known.rows[-1]))

    return winner


def rs_append(*ids: int) -> Callable[[KnownTable], None]:
    schema = pa.schema({"id": pa.int64(), "v": pa.int32(), "p": pa.string()})
    rows = pa.Table.from_pylist([dict(zip(schema.names, row(number, 7), strict=True)) for number in ids], schema)

    def run(table: DeltaTable) -> None:
        from deltalake import write_deltalake

        write_deltalake(table, rows, mode="append")

    return by_delta_rs(run, lambda rows: rows | dict.fromkeys(ids, 7))


def rs_delete(number: int) -> Callable[[KnownTable], None]:
    return by_delta_rs(lambda table: table.delete(f"id = {number}"), delete(number).after)


def rs_update(number: int) -> Callable[[KnownTable], None]:
    return by_delta_rs(lambda table: table.update({"v": "v + 1000"}, predicate=f"id = {number}"), update(number).after)


WITH_V = Change("", plan_delete, {"predicate": "v IN (30, 1100)"}, lambda rows: {i: v for i, v in rows.items() if v != 30})
"""Deletes row 3, and would delete what has 1100."""


@pytest.mark.parametrize(
    ("kind", "ours", "theirs", "how"),
    [
        ("copy on write", delete(3, 8), rs_append(100, 101), {"statistics": "3"}),
        ("copy on write", delete(3, 8), rs_append(-1, 100), {"keys": "3"}),
        ("copy on write", merge(3, 103), rs_append(-1, 200), {"keys": "3"}),
        ("copy on write", update(3, 8), rs_delete(13), {"statistics": "3"}),
        ("copy on write", WITH_V, rs_update(13), {"keys": "3"}),
        ("vectors", update(3, 8), rs_append(-1, 100), {"keys": "4"}),
    ],
    ids=["append elsewhere", "append", "append and merge", "delete", "update", "append and vectors"],
)
def test_delta_rs(make: Make, kind: str, ours: Change, theirs: Callable[[KnownTable], None], how: dict[str, str]) -> None:
    known = make(kind)
    staged = known.stage(ours)
    theirs(known)
    assert known.publish(staged).resolved == how
    rs_append(300)(known)
    known.check()


def test_delta_rs_conflicts(make: Make) -> None:
    known = make("copy on write")
    for theirs in (rs_append(-1, 4, 100), rs_delete(2), rs_update(5)):
        staged = known.stage(delete(3, 4))
        theirs(known)
        with pytest.raises(ConcurrentAppendException, match="that was added is one that it should have read"):
            known.publish(staged)
