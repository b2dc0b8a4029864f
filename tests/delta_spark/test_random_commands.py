"""Random sequences of commands, run by Delta Spark on one copy of a table and by us on the other: the rows stay equal."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from delta_spark.support import delta_history, delta_rows, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES: dict[str, Mapping[str, str]] = {
    "copy on write": {"delta.enableDeletionVectors": "false"},
    "deletion vectors": {"delta.enableDeletionVectors": "true"},
    "change data feed": {"delta.enableDeletionVectors": "false", "delta.enableChangeDataFeed": "true"},
    "deletion vectors, column mapping": {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"},
}

predicates = st.one_of(
    st.builds("id % {} = {}".format, st.integers(2, 4), st.integers(0, 3)),
    st.builds("id > {}".format, st.integers(0, 30)),
    st.builds("p = '{}'".format, st.sampled_from("abc")),
    st.builds("p = '{}' AND v < {}".format, st.sampled_from("abc"), st.integers(0, 100)),
    st.just("v IS NULL"),
    st.just("p IS NULL OR id < 3"),
)
rows = st.builds(
    "SELECT id, CASE WHEN id % 5 = 0 THEN NULL ELSE id * {} END AS v, CASE WHEN id % 7 = 0 THEN NULL "
    "ELSE substring('abc', CAST(id % 3 AS INT) + 1, 1) END AS p FROM range({}, {})".format,
    st.integers(1, 5),
    st.integers(0, 10),
    st.integers(11, 30),
)
actions = st.sampled_from(
    [
        # matched, not matched, not matched by source: what each does, in our form and in SQL
        ({"matched": "update", "notMatched": "insert"}, "upsert"),
        ({"matched": "delete", "notMatched": "insert"}, "replace"),
        ({"matched": "update"}, "update"),
        ({"notMatched": "insert"}, "insert"),
        ({"matched": "update", "notMatched": "insert", "notMatchedBySource": "delete"}, "mirror"),
        ({"notMatchedBySource": "update"}, "mark"),
    ]
).map(lambda pair: pair[0])
SET = {"v": "source.v + 1", "p": "source.p"}
MARK = {"v": "-1"}
commands = st.lists(
    st.one_of(
        st.tuples(st.just("append"), rows),
        st.tuples(st.just("overwrite"), rows),
        st.tuples(st.just("delete"), predicates),
        st.tuples(st.just("update"), predicates),
        st.tuples(st.just("merge"), rows, actions),
        st.tuples(st.just("optimize")),
    ),
    min_size=3,
    max_size=6,
)


def by_delta(delta: SparkSession, path: Path) -> dict[str, Callable[..., Any]]:
    name = sql_name(path)

    def merge(source: str, wanted: Mapping[str, str]) -> None:
        text = f"MERGE INTO {name} target USING ({source}) source ON target.id = source.id"
        if "matched" in wanted:
            done = "DELETE" if wanted["matched"] == "delete" else f"UPDATE SET {assigned(SET)}"
            text += f" WHEN MATCHED THEN {done}"
        if "notMatched" in wanted:
            text += " WHEN NOT MATCHED THEN INSERT *"
        if "notMatchedBySource" in wanted:
            done = "DELETE" if wanted["notMatchedBySource"] == "delete" else f"UPDATE SET {assigned(MARK)}"
            text += f" WHEN NOT MATCHED BY SOURCE THEN {done}"
        delta.sql(text)

    return {
        "append": lambda source: delta.sql(f"INSERT INTO {name} {source}"),
        "overwrite": lambda source: delta.sql(f"INSERT OVERWRITE {name} {source}"),
        "delete": lambda predicate: delta.sql(f"DELETE FROM {name} WHERE {predicate}"),
        "update": lambda predicate: delta.sql(f"UPDATE {name} SET v = coalesce(v, 0) + id, p = 'a' WHERE {predicate}"),
        "merge": merge,
        "optimize": lambda: delta.sql(f"OPTIMIZE {name}"),
    }


def by_us(table: Table) -> dict[str, Callable[..., Any]]:
    def merge(source: str, wanted: Mapping[str, str]) -> None:
        sets = {"matched": SET, "notMatched": None, "notMatchedBySource": MARK}
        clauses = [
            {"kind": kind, "action": action, "set": None if action == "delete" else sets[kind]} for kind, action in wanted.items()
        ]
        table.run(plan_merge, source=source, condition="target.id = source.id", clauses=clauses)

    return {
        "append": table.write,
        "overwrite": lambda source: table.write(source, mode="overwrite"),
        "delete": lambda predicate: table.run(plan_delete, predicate=predicate),
        "update": lambda predicate: table.run(plan_update, set={"v": "coalesce(v, 0) + id", "p": "'a'"}, predicate=predicate),
        "merge": merge,
        "optimize": lambda: table.run(plan_optimize),
    }


def assigned(values: Mapping[str, str]) -> str:
    return ", ".join(f"target.{name} = {value}" for name, value in values.items())


NUMBERS = itertools.count()


@pytest.mark.parametrize("partition_by", ["", "PARTITIONED BY (p)"])
@pytest.mark.parametrize("properties", TABLES.values(), ids=TABLES)
def test_the_rows_stay_equal(delta: SparkSession, tmp_path: Path, properties: Mapping[str, str], partition_by: str) -> None:
    listed = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())

    @settings(
        max_examples=2,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(sequence=commands)
    def run(sequence: list[tuple[Any, ...]]) -> None:
        number = next(NUMBERS)
        theirs, ours = (tmp_path / f"{side}-{number}" for side in ("theirs", "ours"))
        for path in (theirs, ours):
            delta.sql(
                f"CREATE TABLE {sql_name(path)} (id BIGINT, v BIGINT, p STRING) USING delta {partition_by} "
                f"TBLPROPERTIES ({listed})"
            )
            delta.sql(
                f"INSERT INTO {sql_name(path)} SELECT id, id * 2, substring('abc', CAST(id % 3 AS INT) + 1, 1) FROM range(20)"
            )
        engines = by_delta(delta, theirs), by_us(Table(ours, delta))
        for step, (command, *arguments) in enumerate(sequence):
            for engine in engines:
                engine[command](*arguments)
            done = sequence[: step + 1]
            assert delta_rows(delta, ours) == delta_rows(delta, theirs), done
        assert changes(delta, ours, properties) == changes(delta, theirs, properties), sequence
        known = delta_history(delta, ours)
        assert [line["operation"] for line in known.values()].count("MERGE") == [c for c, *_ in sequence].count("merge")

    run()


def changes(delta: SparkSession, path: Path, properties: Mapping[str, str]) -> list[tuple[Any, ...]]:
    """Return the net of the change data feed: versions differ, since a command that changes nothing is a commit of ours."""
    if "delta.enableChangeDataFeed" not in properties:
        return []
    feed = delta.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(str(path))
    counted = feed.groupBy("id", "v", "p", "_change_type").count()
    return sorted(map(tuple, counted.collect()), key=repr)
