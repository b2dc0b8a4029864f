"""Writers that know nothing of publications, at each put of a publication, and what must come of it.

Three tables: the publication replaces rows of the first two, and appends to the third. A foreign commit is never lost and never
refused because of a publication. It refuses one whose table it changes under it before that table was checked, and has one taken
back that was decided by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import deltalake

from airflow_delta.contract.audit import HeldCheck
from airflow_delta.exceptions import DeltaError, PublicationSplitException, PublicationUndoneException
from airflow_delta.publication import Member, get_versions, open_publications
from publication.judge import judge_rows, judge_states, judge_versions
from publication.lake import LakeTable, publish_all, rows
from publication.points import visited

PART = "part = 'a'"
NAMES = ("first", "second", "third")
PUTS = (
    *(f"plan {name}" for name in NAMES),
    *(f"intent {name}" for name in NAMES[1:]),
    *(f"published {name}" for name in NAMES),
)
KINDS = ("append", "delete", "overwrite", "change metadata")
NEW = 77
"""Id of the row that the publication brings to each table."""


class Session(Protocol):
    """A writer that has loaded a table."""

    def append(self, ids: Iterable[int], part: str = "a") -> object: ...

    def delete(self, predicate: str) -> object: ...

    def overwrite(self, ids: Iterable[int]) -> object: ...

    def change_metadata(self) -> object: ...


Engine = Callable[[LakeTable], Session]


class DeltaRs:
    """delta-rs, with the version that it has loaded when this was made."""

    def __init__(self, table: LakeTable) -> None:
        self._table = deltalake.DeltaTable(table.uri)

    def append(self, ids: Iterable[int], part: str = "a") -> None:
        deltalake.write_deltalake(self._table, rows(list(ids), part), mode="append")

    def delete(self, predicate: str) -> None:
        self._table.delete(predicate)

    def overwrite(self, ids: Iterable[int]) -> None:
        deltalake.write_deltalake(self._table, rows(list(ids)), mode="overwrite")

    def change_metadata(self) -> None:
        self._table.alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})


def work(session: Session, kind: str) -> None:
    """Have a writer do something that conflicts with rows of partition ``a`` having been read."""
    if kind == "append":
        session.append([99])
    elif kind == "delete":
        session.delete("id IN (2, 101)")  # of either partition
    elif kind == "overwrite":
        session.overwrite([98])
    else:
        session.change_metadata()


@dataclass
class World:
    """The tables, the publication, and the foreign commits by their file.

    :ivar outcome: what the commit task reported.
    :ivar dirty_reads: what the error of ``undone`` lists: table, version and operation.
    """

    tables: list[LakeTable]
    members: list[Member]
    foreign: dict[Path, bytes] = field(default_factory=dict)
    outcome: str = ""
    dirty_reads: list[tuple[str, int, str]] = field(default_factory=list)

    @classmethod
    def made(cls, folder: Path, *, held: bool = False) -> World:
        """Return the tables and the publication.

        :param held: a check has read all of every table, and must hold in what is published.
        """
        tables = [LakeTable(folder / name) for name in NAMES]
        for table in tables:
            table.fill([1, 2, 3])
            table.append([101, 102], part="b")
        members = [table.member("k", [NEW], replaces=None if table is tables[2] else PART) for table in tables]
        if held:
            members = [
                replace(member, held=[HeldCheck(name="check", version=member.handle.read_version, whole_table=True)])
                for member in members
            ]
        return cls(tables, members)

    def interfere(self, number: int, action: Callable[[], object]) -> int:
        """Have a foreign writer change a table; return the number of its commits."""
        log = self.tables[number].path / "_delta_log"
        before = set(log.glob("0*.json"))
        action()
        new = {file: file.read_bytes() for file in set(log.glob("0*.json")) - before}
        self.foreign |= new
        return len(new)

    def publish(self, visit: Callable[[str, str], None] = lambda _when, _name: None) -> str:
        """Publish as a commit task does; return the outcome."""
        error: DeltaError | None = None
        try:
            with visited(visit):
                self.outcome = publish_all(self.members, anchor=self.tables[0].uri).outcome
        except PublicationUndoneException as undone:
            self.outcome, error = "undone", undone
            self.dirty_reads = [(read["table"], read["version"], read["operation"]) for read in undone.dirty_reads]
        except PublicationSplitException as split:
            self.outcome, error = "split", split
        except DeltaError as refused:
            self.outcome, error = "refused", refused
        assert error is None or str(error)
        return self.outcome

    def check(self, kind: str) -> None:
        """Check that no foreign commit is lost or hidden, and that the logs have what was reported, on all tables or on none.

        :param kind: what the foreign writer did.
        """
        wrong = [f"{file} is lost" for file, data in self.foreign.items() if file.read_bytes() != data]
        logs = {table.uri: table.entries() for table in self.tables}
        for table in self.tables:
            wrong += [*judge_versions(table.uri, logs[table.uri]), *judge_rows(table, logs[table.uri])]
            wrong += self._judge_published(table, logs[table.uri])
            assert not open_publications(table.log())
        wrong += judge_states(logs)
        heads = {table.uri: len(logs[table.uri]) - 1 for table in self.tables}
        if get_versions({table.uri: table.log() for table in self.tables}).versions != heads:
            wrong.append("a reader is held back at the end")
        on = sum(NEW in table.ids() for table in self.tables)
        if self.outcome != "split" and on != (3 if self.outcome == "published" else 0) and kind != "overwrite":
            wrong.append(f"it is {self.outcome}, and on {on} tables")
        assert not wrong, wrong

    def _judge_published(self, table: LakeTable, entries: list[dict[str, Any]]) -> list[str]:
        """Check that the publication removed only rows that its stage has read."""
        at = next((entry["version"] for entry in entries if entry["state"] == "published"), None)
        if at is None:
            return []
        before, after = set(table.ids(at - 1)), set(table.ids(at))
        read = set() if table is self.tables[2] else {1, 2, 3}
        return [] if (after - before, before - after) == ({NEW}, read) else [f"{table.uri} is published wrongly"]


def expected(number: int, point: str, when: str, kind: str, *, held: bool = False) -> str:
    """Return the outcome of a publication if a foreign commit changes one of its tables at a point.

    :param number: of the table.
    :param held: as of :meth:`World.made`.
    """
    at = 2 * PUTS.index(point) + (when == "after")
    conflicts = kind == "change metadata" or number < 2 or held
    if not conflicts or at > 2 * PUTS.index(f"published {NAMES[number]}"):
        return "published"
    checked = f"published {NAMES[0]}" if number == 0 else f"intent {NAMES[number]}"
    return "refused" if at <= 2 * PUTS.index(checked) else "undone"


def run_at(folder: Path, engine: Engine, number: int, point: str, when: str, kind: str, *, held: bool = False) -> str:
    """Publish, and have a foreign writer change a table at a point; check what came of it, and return the outcome.

    :param held: as of :meth:`World.made`.
    """
    world = World.made(folder, held=held)
    commits = []

    def visit(now: str, name: str) -> None:
        if (now, name) == (when, point) and not commits:
            commits.append(world.interfere(number, lambda: work(engine(world.tables[number]), kind)))

    world.publish(visit)
    where = f"{kind} on table {NAMES[number]} {when} {point}"
    assert commits == [1], f"{where}: {commits} commits"
    assert world.outcome == expected(number, point, when, kind, held=held), f"{where}: {world.outcome}"
    if kind != "overwrite":
        assert (99 in world.tables[number].ids()) == (kind == "append"), where
    world.check(kind)
    return world.outcome
