"""Random interleavings of transactions, judged by an oracle that shares no code with what it judges.

The oracle replays the JSON log alone. The committed transactions, in the order of their versions, must be a serial order: each
one's reads at the version before its own must give what they gave at the version that it read. A commit that changes nothing runs
at SnapshotIsolation, as in Delta, and promises only that its reads were those of the version it read.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from airflow_delta.exceptions import DeltaConcurrentModificationException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import Action, SetTransaction
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction
from support.actions import add, remove
from support.table import FAST, Table

PARTS = (1, 2, 3)
QUIET = CommitPolicy(checkpoint="off", checksum=False)
FEATURES = {"delta.feature.rowTracking": "supported", "delta.enableInCommitTimestamps": "true"}
ROWS = 3


# -- the oracle ---------------------------------------------------------------------------------------------------------------


@dataclass
class State:
    """The table at one version: live files with their partition, and application versions."""

    files: dict[str, int] = field(default_factory=dict)
    apps: dict[str, int] = field(default_factory=dict)
    level: str = ""
    timestamp: int = 0
    row_ids: dict[str, int] = field(default_factory=dict)
    high_water_mark: int = -1


def replay(root: Path) -> list[State]:
    """Return the states of all versions, from the JSON files alone."""
    states: list[State] = []
    files: dict[str, int] = {}
    apps: dict[str, int] = {}
    row_ids: dict[str, int] = {}
    mark = -1
    for version, path in enumerate(sorted((root / "_delta_log").glob("*.json"))):
        assert int(path.stem) == version, "versions are contiguous"
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        assert list(actions[0]) == ["commitInfo"]
        for action in actions:
            if "remove" in action:
                assert action["remove"]["path"] in files, f"version {version} removes a file that is not there"
                del files[action["remove"]["path"]]
        for action in actions:
            if "add" in action:
                assert action["add"]["path"] not in files, f"version {version} adds a file that is there"
                files[action["add"]["path"]] = int(action["add"]["partitionValues"]["part"])
                row_ids[action["add"]["path"]] = action["add"]["baseRowId"]
                assert action["add"]["defaultRowCommitVersion"] == version
            if "domainMetadata" in action:
                mark = json.loads(action["domainMetadata"]["configuration"])["rowIdHighWaterMark"]
            if "txn" in action:
                apps[action["txn"]["appId"]] = action["txn"]["version"]
        info = actions[0]["commitInfo"]
        states.append(State(dict(files), dict(apps), info["isolationLevel"], info["inCommitTimestamp"], dict(row_ids), mark))
    return states


def read(state: State, what: tuple[str, Any]) -> Any:
    """Return what one recorded read gives at a state."""
    kind, argument = what
    if kind == "app":
        return state.apps.get(argument, -1)
    wanted = PARTS if kind == "all" else argument
    return sorted(path for path, part in state.files.items() if part in wanted)


# -- transactions ---------------------------------------------------------------------------------------------------------------


@dataclass
class Client:
    """One transaction: its kind, what it has read, and what its reads gave."""

    number: int
    kind: str
    part: int
    transaction: OptimisticTransaction
    reads: list[tuple[tuple[str, Any], Any]] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    version: int | None = None

    def _filter(self, *parts: int) -> list[str]:
        if not parts:
            found = self.transaction.filter_files()
            what: tuple[str, Any] = ("all", None)
        else:
            found = self.transaction.filter_files(f"part IN ({', '.join(map(str, parts))})")
            what = ("parts", parts)
        paths = sorted(found["path"].to_pylist())
        self.reads.append((what, paths))
        return paths

    def work(self, part_of: dict[str, int]) -> None:
        """Read, and decide on actions that follow from what was read."""
        new = add(f"f{self.number}", part=self.part, records=ROWS)
        if self.kind == "append":
            self.actions = [new]
        elif self.kind == "read partition, write":
            self._filter(self.part)
            self.actions = [add(f"f{self.number}", part=self.part % len(PARTS) + 1, records=ROWS)]
        elif self.kind == "delete":
            self.actions = [remove(path, part=self.part) for path in self._filter(self.part)[:1]]
        elif self.kind == "overwrite partition":
            self.actions = [*[remove(path, part=self.part) for path in self._filter(self.part)], new]
        elif self.kind == "overwrite":
            self.actions = [*[remove(path, part=part_of[path]) for path in self._filter()], new]
        elif self.kind == "read whole table":
            self.transaction.read_whole_table()
            self.reads.append((("all", None), sorted(part_of)))
            self.actions = [new]
        elif self.kind == "read two partitions":
            self._filter(self.part, self.part % len(PARTS) + 1)
            self.actions = [new]
        elif self.kind == "app":
            last = self.transaction.txn_version("app")
            self.reads.append((("app", "app"), last))
            self.actions = [new, SetTransaction(app_id="app", version=last + 1, last_updated=1)]

    def commit(self) -> None:
        try:
            self.version = self.transaction.commit(self.actions, Operation.write())
        except DeltaConcurrentModificationException as error:
            event(type(error).__name__)


KINDS = (
    "append",
    "read partition, write",
    "delete",
    "overwrite partition",
    "overwrite",
    "read whole table",
    "read two partitions",
    "app",
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from(KINDS), st.sampled_from(PARTS)),
        st.tuples(st.just("commit"), st.integers(0, 5), st.just(0)),
    ),
    min_size=4,
    max_size=16,
)


def run(root: Path, steps: list[tuple[str, Any, int]]) -> list[Client]:
    """Carry the steps out on a fresh table, then commit what is still open; return the clients that were committed."""
    table = Table(root / "table")
    table.create(("part",), configuration=FEATURES)
    table.commit(*[add(f"s{part}", part=part, records=ROWS) for part in PARTS], operation=Operation.write())
    opened: list[Client] = []
    done: list[Client] = []

    def close(index: int) -> None:
        client = opened.pop(index)
        client.commit()
        done.append(client)

    for number, (step, what, part) in enumerate(steps):
        if step == "begin":
            log = DeltaLog.for_table(str(table.path), FAST)
            client = Client(number, what, part, log.start_transaction(policy=QUIET))
            client.work(replay(table.path)[client.transaction.read_version].files)
            opened.append(client)
        elif opened:
            close(what % len(opened))
    while opened:
        close(len(opened) - 1)
    return [client for client in done if client.version is not None]


def judge(root: Path, committed: list[Client]) -> None:
    """Raise unless the committed transactions, in commit order, are a serial order of what happened."""
    states = replay(root)
    assert len({client.version for client in committed}) == len(committed)
    stamps = [state.timestamp for state in states]
    assert stamps == sorted(set(stamps)), "every version is later than the one before"
    given = sorted(states[-1].row_ids.values())
    assert all(later - earlier >= ROWS for earlier, later in pairwise(given)), "no row id is given twice"
    assert states[-1].high_water_mark == given[-1] + ROWS - 1
    assert sorted(client.version for client in committed) == list(range(2, len(states)))  # type: ignore[type-var]
    for client in committed:
        assert client.version is not None
        at_read, before = states[client.transaction.read_version], states[client.version - 1]
        for what, given_then in client.reads:
            assert read(at_read, what) == given_then, f"{client.kind} did not read version {client.transaction.read_version}"
            if states[client.version].level != "Serializable":
                assert not client.actions
                continue
            assert read(before, what) == given_then, f"{client.kind} at version {client.version}: {what} gives something else now"


@settings(max_examples=100, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_committed_transactions_are_serial_in_commit_order(steps: list[tuple[str, Any, int]]) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        committed = run(root, steps)
        judge(root / "table", committed)
        expected = replay(root / "table")[-1].files
        snapshot = DeltaLog.for_table(str(root / "table"), FAST).snapshot
        assert Counter(snapshot.files()["path"].to_pylist()) == Counter(expected.keys())
        appended = [client for client in committed if client.kind == "append"]
        begun = [step for step in steps if step[:2] == ("begin", "append")]
        assert len(appended) == len(begun), "a blind append never conflicts with data changes"
    finally:
        shutil.rmtree(root, ignore_errors=True)
