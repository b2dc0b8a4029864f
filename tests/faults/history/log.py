"""A table's log and the notes of its writers, as a judge of histories reads them: from JSON alone, without the engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Action = Mapping[str, Any]
NO_DATA_OF_THE_TABLE = "delta.rowTracking"
"""The one domain that follows from the files of a commit."""


@dataclass(frozen=True)
class File:
    """A file that is live at some version, with the rows that it shows.

    :param vector: identity of its deletion vector, with which it is another file to a reader.
    """

    path: str
    part: str | None
    highest: int
    rows: frozenset[int]
    vector: str | None = None


Unit = Callable[[File, Action], Iterable[Hashable]]
"""What a file adds to the answer of a read. Two answers are the same if they consist of the same units."""


def files(file: File, _what: Action) -> Iterable[Hashable]:
    """Delta's rules: a reader depends on the files that it opened."""
    return ((file.path, file.vector),)


def rows(file: File, what: Action) -> Iterable[Hashable]:
    """What a query returns: rows, wherever they are kept."""
    return file.rows if what["above"] is None else [row for row in file.rows if value_of(row) > what["above"]]


def value_of(row: int) -> int:
    """Return the value of a row, by which predicates select."""
    return row % 10


def vector_of(action: Action) -> str | None:
    """Return the identity of a file's deletion vector."""
    vector = action.get("deletionVector")
    return None if vector is None else json.dumps(vector, sort_keys=True)


def file_of(add: Action) -> File:
    """Return the file of an ``add``; its writers list its rows in a tag."""
    shown = frozenset(json.loads(add["tags"]["rows"]))
    highest = json.loads(add["stats"])["maxValues"]["value"]
    [part] = add["partitionValues"].values() or [None]
    return File(add["path"], part, highest, shown, vector_of(add))


@dataclass(frozen=True)
class State:
    """The table at one version."""

    files: Mapping[Hashable, File] = field(default_factory=dict)
    apps: Mapping[str, int] = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)

    @property
    def partitioned(self) -> bool:
        return bool(self.metadata["partitionColumns"])

    @property
    def configuration(self) -> Mapping[str, str]:
        return dict(self.metadata.get("configuration") or {})

    @property
    def columns(self) -> list[Any]:
        return list(json.loads(self.metadata["schemaString"])["fields"])


@dataclass
class Commit:
    """One version: its actions, and the table after it."""

    version: int
    actions: list[Action]
    state: State

    def of(self, key: str) -> list[Action]:
        return [action[key] for action in self.actions if key in action]

    @property
    def info(self) -> Action:
        return self.of("commitInfo")[0] if self.of("commitInfo") else {}

    @property
    def added(self) -> list[str]:
        return [add["path"] for add in self.of("add")]

    @property
    def removed(self) -> list[str]:
        return [remove["path"] for remove in self.of("remove")]

    @property
    def changes_no_data(self) -> bool:
        """Whether it only rearranges data, or does nothing at all."""
        for action in self.actions:
            [(key, value)] = action.items()
            if key == "commitInfo" or (key == "domainMetadata" and value["domain"] == NO_DATA_OF_THE_TABLE):
                continue
            if key not in ("add", "remove", "cdc") or value["dataChange"]:
                return False
        return True


def read_log(table: Path, found: list[str]) -> list[Commit]:
    """Replay the log; what is wrong with it by itself goes into ``found``."""
    commits: list[Commit] = []
    state, ever = State(), set[Hashable]()
    for version, path in enumerate(sorted((table / "_delta_log").glob("*.json"))):
        if path.name != f"{version:020d}.json":
            found.append(f"gap: {path.name} follows version {version - 1}")
            break
        commit = Commit(version, [json.loads(line) for line in path.read_text().splitlines()], state)
        state = commit.state = _after(commit, state, ever, found)
        commits.append(commit)
    return commits


def _after(commit: Commit, before: State, ever: set[Hashable], found: list[str]) -> State:
    live, where = dict(before.files), f"version {commit.version}"
    for name in ("add", "remove"):
        paths = [action["path"] for action in commit.of(name)]
        found += [f"twice in one commit: {where} has {name} of {path} twice" for path in {p for p in paths if paths.count(p) > 1}]
    for remove in commit.of("remove"):
        if live.pop((remove["path"], vector_of(remove)), None) is None:
            found.append(f"removed what was not there: {where} removes {remove['path']}")
    for add in commit.of("add"):
        file = file_of(add)
        key = (file.path, file.vector)
        if key in ever:
            found.append(f"added twice: {where} adds {file.path} again")
        ever.add(key)
        live[key] = file
    shown = [row for file in live.values() for row in file.rows]
    if len(shown) != len(set(shown)):
        found.append(f"doubled rows: {sorted({row for row in shown if shown.count(row) > 1})} after {where}")
    apps = {**before.apps, **{txn["appId"]: txn["version"] for txn in commit.of("txn")}}
    return State(live, apps, commit.of("metaData")[-1] if commit.of("metaData") else before.metadata)


@dataclass
class Attempt:
    """One run of a transaction, as its process noted it.

    :param what: the kind of operation.
    :param level: the isolation level that it asked for; ``None`` for the table's.
    :param reads: what it read, and the answer.
    :param plan: what it was to commit; ``None`` if it did not come that far.
    :param end: ``committed``, ``failed``, ``unknown``, ``nothing`` (no commit was needed), or ``killed``.
    :param again: an earlier process began it.
    """

    txn: str
    process: str
    what: str
    level: str | None
    version: int
    begun: int
    again: bool = False
    reads: list[tuple[Action, Any]] = field(default_factory=list)
    plan: Action | None = None
    end: str = "killed"
    ended: int = 0
    committed: int | None = None
    error: str = ""
    winner: int | None = None
    message: str = ""

    @property
    def name(self) -> str:
        return f"{self.what} {self.txn[:8]} of process {self.process}"


def read_notes(folder: Path) -> list[Attempt]:
    """Return what the processes noted. A note that breaks off was never made."""
    return [attempt for path in sorted(folder.glob("*.jsonl")) for attempt in _attempts(path)]


def lines_of(path: Path) -> Iterator[Action]:
    """Yield the notes of one process, which may have been killed before it noted anything."""
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def _attempts(path: Path) -> Iterator[Attempt]:
    current: Attempt | None = None
    for note in lines_of(path):
        kind = note["note"]
        if kind == "begin":
            if current is not None:
                yield current
            known = ("txn", "what", "level", "version", "again", "begun")
            current = Attempt(process=path.stem, **{key: note[key] for key in known})
            continue
        assert current is not None
        assert current.txn == note["txn"]
        if kind == "read":
            current.reads.append((note["what"], note["answer"]))
        elif kind == "plan":
            current.plan = note
        else:
            current.end, current.ended = kind, note["at"]
            current.committed, current.winner = note.get("version"), note.get("winner")
            current.error, current.message = note.get("error", ""), note.get("message", "")
    if current is not None:
        yield current
