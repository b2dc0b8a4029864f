"""Every table feature, fifty commits deep: Delta Spark and we write in turn, each from the other's log and checkpoints on."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.log.features.protocol import features
from delta_spark.feature_cases import CASES, Case
from delta_spark.support import State, assert_same_state, delta_log, row_text, sql_name
from delta_spark.writer import Writer
from support.table import Table

DEPTH = 50
DELTA_EVERY = 8
"""Every so many turns are Delta Spark's: its commits take a second where ours take milliseconds."""
CHECKPOINT_INTERVAL = 3
"""No divisor of the turns, so that both engines write checkpoints."""
STAGED_AT = (17, 33)


def _parameters() -> Iterator[Any]:
    """Every feature once, the creators taking turns, and the other way round among the slow ones."""
    for number, case in enumerate(CASES):
        first = number % len(case.creators)
        for creator in case.creators:
            marks = [] if creator == case.creators[first] else [pytest.mark.slow]
            yield pytest.param(case, creator, id=f"{case.name}, created by {creator}", marks=marks)


IDS = list(_parameters())


class Turns:
    """A table that both engines write in turn."""

    def __init__(self, delta: Any, path: Path, case: Case) -> None:
        self.delta = delta
        self.path = path
        self.case = case
        self.ours = Writer(path)
        self.flow = Table(path, delta)
        self.number = 0
        self.done: Counter[str] = Counter()
        self.engines: list[str] = []

    def next_number(self) -> int:
        self.number += 3
        return self.number

    def sql(self, text: str) -> None:
        self.delta.sql(text.replace("TABLE_", sql_name(self.path)).replace("N_", str(self.next_number())))

    def rows(self, count: int = 2) -> list[dict[str, Any]]:
        rows = []
        for _ in range(count):
            row = self.case.row(self.next_number())
            known = {f["name"] for f in json.loads(self.ours.metadata.schema_string)["fields"]}
            rows.append({k: dt.datetime.fromisoformat(v) if k == "t" else v for k, v in row.items() if k in known})
        return rows

    # -- create ---------------------------------------------------------------------------------------------------------------

    def create_by_delta(self) -> None:
        properties = {"delta.checkpointInterval": str(CHECKPOINT_INTERVAL), **self.case.properties}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        self.sql(f"CREATE TABLE TABLE_ {self.case.ddl} TBLPROPERTIES ({listed})")
        for statement in self.case.delta_setup:
            self.sql(statement)

    def create_by_ours(self) -> None:
        self.ours.create(
            self.case.columns,
            partition_by=self.case.partition_by,
            configuration={
                "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
                **self.case.properties,
                **self.case.our_properties,
            },
        )
        for statement in self.case.our_setup:
            self.sql(statement)

    # -- one commit or more ---------------------------------------------------------------------------------------------------

    def theirs(self) -> None:
        step = self.case.delta_steps[self.done["theirs"] % len(self.case.delta_steps)]
        self.done["theirs"] += 1
        self.sql(step)

    def our_turn(self) -> None:
        step = self.case.our_steps[self.done["ours"] % len(self.case.our_steps)]
        self.done["ours"] += 1
        getattr(self, f"our_{step}")()

    def our_append(self) -> None:
        self.ours.append(self.rows())

    def our_append_once(self) -> None:
        self.ours.append_once(self.rows(), f"app-{self.number % 2}")

    def our_replace_where(self) -> None:
        self.ours.replace_where("p = 'a'", [{**row, "p": "a"} for row in self.rows()])

    def our_overwrite_partitions(self) -> None:
        self.ours.overwrite_partitions([{**row, "p": "b"} for row in self.rows()])

    def our_overwrite(self) -> None:
        self.ours.overwrite(self.rows())

    def our_delete_where(self) -> None:
        self.ours.delete_where("p = 'b'")

    def our_property(self) -> None:
        self.ours.set_properties(ours=str(self.next_number()))

    def our_transaction(self) -> None:
        self.ours.append_once([], "app-without-rows")

    def our_domain(self) -> None:
        self.ours.set_domain(f"ours.{self.number % 2}", json.dumps({"n": self.next_number()}))

    def our_no_domain(self) -> None:
        self.ours.set_domain("ours.0", "", removed=True)

    def our_staged(self) -> None:
        """Through the tasks' own steps and a Spark job; every second time rows are replaced by a predicate on data."""
        make = self.case.staged_row or self.case.row
        rows = [{k: dt.datetime.fromisoformat(v) if k == "t" else v for k, v in make(self.next_number()).items()} for _ in (1, 2)]
        ddl = ", ".join(part for part in self.case.staged_ddl.split(", ") if part.split()[0] in rows[0])
        frame = self.delta.createDataFrame([tuple(row.values()) for row in rows], ddl).coalesce(1)
        replaces = self.done["staged"] % 2 == 1 and "replace_where" in self.case.our_steps
        self.done["staged"] += 1
        if replaces:
            self.flow.write(frame, mode="overwrite", replace_where=f"id >= {rows[0]['id'] - 20}")
        else:
            self.flow.write(frame)

    # -- judge ----------------------------------------------------------------------------------------------------------------

    def compare(self, *, history: int | None) -> State:
        label = f"{self.case.name}, after {' '.join(self.engines)}:"
        return assert_same_state(self.ours.log, self.delta, self.path, history=history, label=label)

    def play(self) -> State:
        checkpointed: int | None = None
        for turn in range(5 * DEPTH):
            version = self.ours.version
            if version >= DEPTH:
                break
            if checkpointed is None and version >= DEPTH // 2:
                checkpointed = version
                delta_log(self.delta, self.path).checkpoint()  # else it depends on its turns whether Delta ever has one due
            if not self.case.our_steps or turn % DELTA_EVERY == 0:
                self.theirs()
                self.engines.append("delta")
            elif version in STAGED_AT:
                self.our_staged()
                self.engines.append("staged")
            else:
                self.our_turn()
                self.engines.append("ours")
        assert self.ours.version >= DEPTH
        return self.compare(history=None)


@contextmanager
def session_settings(delta: Any, settings: dict[str, str]) -> Iterator[None]:
    for key, value in settings.items():
        delta.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            delta.conf.unset(key)


@pytest.mark.parametrize(("case", "creator"), IDS)
def test_fifty_commits_in_turn(delta, tmp_path, case, creator):
    turns = Turns(delta, tmp_path / "table", case)
    with session_settings(delta, dict(case.conf)):
        turns.create_by_delta() if creator == "delta" else turns.create_by_ours()
        state = turns.play()
    assert state.rows
    assert set(case.expects) <= features(turns.ours.log.update().protocol)
    written_by = Counter(
        "ours" if "airflow" in str(record["engineInfo"]).lower() else "delta" for record in state.history.values()
    )
    assert written_by["delta"] >= DEPTH / 12
    if case.our_steps:
        assert written_by["ours"] > DEPTH / 2
        assert checkpoint_writers(turns.path) == {"parquet-mr", "parquet-cpp-arrow"}
    CHECKS.get(case.name, lambda _turns, _state: None)(turns, state)
    if case.delta_rs:
        second_judge(turns, state)


def checkpoint_writers(path: Path) -> set[str]:
    """Return the Parquet libraries that wrote checkpoints: Delta Spark's is parquet-mr, ours parquet-cpp-arrow."""
    import pyarrow.parquet as pq

    log = path / "_delta_log"
    files = [*log.glob("*.checkpoint*.parquet"), *log.glob("_sidecars/*.parquet")]
    return {pq.read_metadata(file).created_by.split(" ")[0] for file in files}


def second_judge(turns: Turns, state: State) -> None:
    """Have delta-rs read version, rows, metadata, history and transactions."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(turns.path)
    assert table.version() == state.version
    rows = pa.table(QueryBuilder().register("judged", table).execute("SELECT * FROM judged").read_all())
    rows = rows.select([f["name"] for f in state.schema["fields"]]).to_pylist()
    assert sorted(map(row_text, rows)) == state.rows
    metadata = table.metadata()
    assert (metadata.id, metadata.configuration) == (state.metadata["id"], state.metadata["configuration"])
    assert metadata.partition_columns == state.metadata["partitionColumns"]
    assert {c["version"]: c["operation"] for c in table.history()} == {v: r["operation"] for v, r in state.history.items()}
    assert {app: table.transaction_version(app) for app in state.transactions} == state.transactions


# -- what a feature promises beyond the state of the table -----------------------------------------------------------------------


def change_feed(turns: Turns, state: State) -> None:
    """The changes of all versions, added up, are the rows of the table."""
    changes = turns.delta.sql(f"SELECT * FROM table_changes_by_path('{turns.path}', 0)")
    total: Counter[str] = Counter()
    for row in changes.collect():
        values = row.asDict(recursive=True)
        kind = values.pop("_change_type")
        for name in ("_commit_version", "_commit_timestamp"):
            values.pop(name)
        total[row_text(values)] += -1 if kind in ("delete", "update_preimage") else 1
    assert sorted((+total).elements()) == state.rows
    assert not -total


def row_ids(turns: Turns, state: State) -> None:
    """Every row has an id of its own."""
    ids = [r[0] for r in turns.delta.sql(f"SELECT _metadata.row_id FROM {sql_name(turns.path)}").collect()]
    assert None not in ids
    assert len(set(ids)) == len(state.rows)


def identities(turns: Turns, state: State) -> None:
    values = [int(text.split(",")[0].removeprefix("n=")) for text in state.rows]
    assert len(set(values)) == len(values)
    assert all(value >= 100 and value % 10 == 0 for value in values)


def generated(turns: Turns, state: State) -> None:
    wrong = turns.delta.sql(f"SELECT * FROM {sql_name(turns.path)} WHERE NOT (g <=> id * 2)").collect()
    assert not wrong


def commit_timestamps(turns: Turns, state: State) -> None:
    times = [state.history[version]["timestamp"] for version in sorted(state.history)]
    assert all(earlier < later for earlier, later in pairwise(times))


def clustering(turns: Turns, state: State) -> None:
    columns = turns.delta.sql(f"DESCRIBE DETAIL {sql_name(turns.path)}").collect()[0]["clusteringColumns"]
    assert columns[0] == "id"


def v2_checkpoints(turns: Turns, _state: State) -> None:
    log = turns.path / "_delta_log"
    kind = turns.case.name.split()[1]
    assert list(log.glob(f"*.checkpoint.*-*.{kind}"))
    assert list((log / "_sidecars").glob("*.parquet"))
    assert not list(log.glob("*.checkpoint.parquet"))


CHECKS = {
    "changeDataFeed": change_feed,
    "rowTracking": row_ids,
    "identityColumns": identities,
    "generatedColumns": generated,
    "inCommitTimestamp": commit_timestamps,
    "clustering": clustering,
    "v2Checkpoint json": v2_checkpoints,
    "v2Checkpoint parquet": v2_checkpoints,
}
