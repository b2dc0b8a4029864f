"""Random histories of publications on real tables, and what they leave, judged from the logs alone.

A history has two to four tables and two publications that share some of them, in random order and modes; checks have read some
of the tables and must hold. Their workers are killed, or halted while others run, before and after every put; others are retries,
aborts, cleanup, the other publication, single commits of the provider, and delta-rs, which appends, deletes, overwrites and
changes properties. At the end everybody comes once more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from airflow_delta.contract.audit import HeldCheck
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import (
    DeltaError,
    PublicationPendingException,
    PublicationSplitException,
    PublicationUndoneException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.publication import (
    Member,
    PublicationOptions,
    abort_tables,
    get_versions,
    open_publications,
    publish_tables,
    settle,
)
from airflow_delta.publication.steps import Settlement
from airflow_delta.table.commit.publish import publish
from airflow_delta.transaction import CommitPolicy
from airflow_delta.transaction.intents import IntentRule
from publication.judge import judge_rows, judge_states, judge_versions, shown, states
from publication.lake import KilledError, LakeTable, again
from publication.points import visited

PART = "part = 'a'"
QUICK = CommitPolicy(checkpoint="off", checksum=False, intents=IntentRule(patience=0.05))


class StuckError(Exception):
    """Somebody meets the same publications again and again."""


@contextmanager
def bounded_meetings(limit: int = 300) -> Iterator[None]:
    """Let nobody wait for ever for a publication that does not end."""
    real = Settlement._meet
    met = 0

    def meet(self: Settlement, table: Any, other: str) -> None:
        nonlocal met
        met += 1
        if met > limit:
            raise StuckError(f"{other} on table {table.uri} was met {limit} times")
        real(self, table, other)

    with patch.object(Settlement, "_meet", meet):
        yield


@dataclass
class Publication:
    """One publication of a history.

    :param reads: whether it replaces what it read, for each table.
    :param held: whether a check has read the same, for each table, and must hold in what is published.
    :ivar reports: outcomes that its workers reported.
    """

    name: str
    tables: list[LakeTable]
    reads: list[bool]
    held: list[bool]
    intents: bool
    keep: bool
    members: list[Member] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    reports: list[str] = field(default_factory=list)


class History:
    """One history.

    :param intents: whether publications put intents.
    :ivar is_alone: no single commit of the provider was there.
    :ivar foreign: bytes of each foreign commit, by its file.
    :ivar wrong: what a reader in between saw that must not be.
    """

    def __init__(self, folder: Path, seed: int, *, intents: bool = True) -> None:
        self.random = random.Random(seed)
        self._held = random.Random(f"held {seed}")
        self.foreign: dict[Path, bytes] = {}
        self.wrong: list[str] = []
        self.is_alone = True
        self._next = 1000
        self._depth = 0
        self._budget = self.random.randint(1, 5)
        self.tables = [LakeTable(folder / f"t{n}") for n in range(self.random.randint(2, 4))]
        for table in self.tables:
            table.fill(self._ids(3))
            table.append(self._ids(2), part="b")
        self.publications = [self._publication(name, intents) for name in ("p", "q")]

    def _ids(self, count: int) -> list[int]:
        self._next += count
        return list(range(self._next - count, self._next))

    def _publication(self, name: str, intents: bool) -> Publication:
        draw = self.random
        tables = draw.sample(self.tables, draw.randint(2, len(self.tables)))
        keep = draw.random() < 0.1
        reads, held = ([one.random() < share for _ in tables] for one, share in ((draw, 0.6), (self._held, 0.3)))
        return Publication(name, tables, reads, held, intents, keep)

    # -- who may do something --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the history to its end."""
        for publication in self.publications:
            for table, reads, held in zip(publication.tables, publication.reads, publication.held, strict=True):
                (new,) = self._ids(1)
                publication.ids[table.uri] = new
                member = table.member(publication.name, [new], replaces=PART if reads else None)
                check = HeldCheck(name="a check", version=member.handle.read_version, predicates=(PART,))
                publication.members.append(replace(member, conflict_detection="delta", held=[check] if held else []))
        with visited(self._visit):
            for publication in self.random.sample(self.publications, 2):
                self._work(publication)
                if self.random.random() < 0.3:
                    self._interfere()
        self._budget = 0
        for _ in range(2):  # everybody once more, undisturbed
            for publication in self.publications:
                self._publish(publication)
        for table in self.tables:
            self._settle(table)

    def _work(self, publication: Publication) -> None:
        try:
            if self.random.random() < 0.85:
                self._publish(publication)
            else:
                self._abort(publication)
        except KilledError:
            pass

    def _visit(self, _when: str, _name: str) -> None:
        """Before or after a put: perhaps others work, perhaps this worker is killed."""
        if self._budget <= 0 or self._depth > 1:
            return
        drawn = self.random.random()
        if drawn < 0.06:
            self._budget -= 1
            raise KilledError
        if drawn < 0.2:
            self._budget -= 1
            self._interfere()
        elif drawn < 0.3:
            self._read()

    def _interfere(self) -> None:
        self._depth += 1
        try:
            drawn = self.random.random()
            if drawn < 0.5:
                self._write_foreign()
            elif drawn < 0.6:
                self._commit_alone()
            elif drawn < 0.7:
                self._clean_up()
            else:
                self._work(self.random.choice(self.publications))
        finally:
            self._depth -= 1

    def _publish(self, publication: Publication) -> None:
        options = PublicationOptions(
            on_late_conflict="keep" if publication.keep else "undo",
            anchor=publication.tables[0].uri,
            intents=publication.intents,
            patience=0.0,
        )
        members = [again(member) for member in publication.members]
        try:
            result = publish_tables(members, attempt=new_attempt(), options=options, policy=QUICK, open_table=DeltaLog.for_table)
            publication.reports.append(result.outcome)
        except PublicationUndoneException:
            publication.reports.append("undone")
        except PublicationSplitException:
            publication.reports.append("split")
        except PublicationPendingException:
            pass
        except DeltaError:
            publication.reports.append("refused")

    def _abort(self, publication: Publication) -> None:
        members = [again(member) for member in publication.members]
        publication.reports.append(abort_tables(members, open_table=DeltaLog.for_table).outcome)

    def _clean_up(self) -> None:
        with suppress(KilledError):
            self._settle(self.random.choice(self.tables))

    def _settle(self, table: LakeTable) -> None:
        """Bring what is open on a table to its end; what that reports has to be true as well."""
        for found in open_publications(table.log()):
            outcome = settle(table.log(), found.publication, DeltaLog.for_table, patience=0.0).outcome
            for publication in self.publications:
                if found.publication.startswith(publication.members[0].handle.transaction_id):
                    publication.reports.append(outcome)

    def _commit_alone(self) -> None:
        table = self.random.choice(self.tables)
        member = table.member(f"single-{self._next}", self._ids(1), part="b")
        publish(table.log(), member.handle, member.staged, attempt=new_attempt(), policy=QUICK)
        self.is_alone = False

    def _write_foreign(self) -> None:
        table = self.random.choice(self.tables)
        before = set((table.path / "_delta_log").glob("0*.json"))
        kind = self.random.choice(["append", "append", "delete", "delete new", "overwrite", "property"])
        if kind == "append":
            table.append(self._ids(1))
        elif kind == "delete":
            table.delete(f"id % 3 = {self.random.randrange(3)} and part = 'a'")
        elif kind == "delete new":
            table.delete(f"id >= {self._next - 4}")
        elif kind == "overwrite":
            table.overwrite(self._ids(1))
        else:
            table.add_property()
        for file in set((table.path / "_delta_log").glob("0*.json")) - before:
            self.foreign[file] = file.read_bytes()

    def _read(self) -> None:
        """Read a version vector, and check it by the logs."""
        tables = {table.uri: table for table in self.tables}
        vector = get_versions({uri: table.log() for uri, table in tables.items()})
        for publication, on in shown({uri: table.entries() for uri, table in tables.items()}, vector.versions).items():
            if len(set(on.values())) > 1 and publication not in vector.split:
                self.wrong.append(f"a reader sees half of {publication}: {on}, {vector.to_dict()}")

    # -- what must hold --------------------------------------------------------------------------------------------------------

    def judge(self) -> list[str]:
        """Return what is wrong with the logs."""
        wrong = list(self.wrong)
        wrong += [f"the foreign commit {file} is lost" for file, data in self.foreign.items() if file.read_bytes() != data]
        logs = {table.uri: table.entries() for table in self.tables}
        for uri, entries in logs.items():
            wrong += [*judge_versions(uri, entries), *judge_rows(LakeTable(Path(uri)), entries)]
        wrong += judge_states(logs)
        heads = {uri: len(entries) - 1 for uri, entries in logs.items()}
        visible = shown(logs, heads)
        for publication in self.publications:
            wrong += self._judge_reports(publication, logs, visible)
        wrong += self._judge_order(logs, visible)
        vector = get_versions({table.uri: table.log() for table in self.tables})
        if vector.versions != heads:
            wrong.append(f"a reader is held back at the end: {vector.to_dict()}")
        return wrong

    def _judge_reports(
        self, publication: Publication, logs: dict[str, list[dict[str, Any]]], visible: dict[str, dict[str, bool]]
    ) -> list[str]:
        wrong = []
        anchor = publication.members[0].handle.transaction_id
        found = [name for name in visible if name.startswith(anchor)]
        on = [sum(visible[name].values()) for name in found]
        total = len(publication.tables)
        said = set(publication.reports)
        if len(said) > 1:
            wrong.append(f"{publication.name} was reported as {said}")
        if ("published" in said and sum(on) != total) or ("split" in said and not 0 < sum(on) < total):
            wrong.append(f"{publication.name} was reported as {said} and is on {on} of {total} tables")
        if said and said <= {"refused", "undone"} and sum(on):
            wrong.append(f"{publication.name} was reported as {said} and is on {on} of {total} tables")
        for member, reads, held in zip(publication.members, publication.reads, publication.held, strict=True):
            for name in found:
                wrong += self._judge_conflicts(member, reads or held, name, logs[member.log.uri])
        for name in found:
            found_states = [state for uri in visible[name] for state in states(logs[uri], name)]
            if "undone" in found_states and publication.intents and not self.foreign and self.is_alone:
                wrong.append(f"{publication.name} was taken back, and nobody foreign was there")
        return wrong

    def _judge_conflicts(self, member: Member, reads: bool, name: str, entries: list[dict[str, Any]]) -> list[str]:
        """Check that no commit that conflicts is between the version that was read and the publication.

        :param reads: the stage of this table has read rows of partition ``a``, or a check that must hold.
        """
        at = next((e["version"] for e in entries if e["publication"] == name and e["state"] == "published"), None)
        if at is None:
            return []
        for entry in entries[member.handle.read_version + 1 : at]:
            kinds = {kind: action for line in entry["lines"] for kind, action in line.items()}
            touches = any(
                (action.get("partitionValues") or {}).get("part") == "a"
                for line in entry["lines"]
                for kind, action in line.items()
                if kind in ("add", "remove")
            )
            if "metaData" in kinds or (reads and touches):
                return [f"{name} overlooked version {entry['version']} of {member.log.uri}"]
        return []

    def _judge_order(self, logs: dict[str, list[dict[str, Any]]], visible: dict[str, dict[str, bool]]) -> list[str]:
        """Check that two publications with intents of which one reads have one order on all tables."""
        one, two = self.publications
        orders = {}
        for table in one.tables:
            if table not in two.tables or not (one.reads[one.tables.index(table)] or two.reads[two.tables.index(table)]):
                continue
            at = [
                next(
                    (
                        e["version"]
                        for e in logs[table.uri]
                        if e["state"] == "published"
                        and (e["publication"] or "").startswith(p.members[0].handle.transaction_id)
                        and visible[e["publication"]][table.uri]
                    ),
                    None,
                )
                for p in (one, two)
            ]
            if None not in at:
                orders[table.uri] = at[0] < at[1]
        return [f"opposite orders: {orders}"] if len(set(orders.values())) > 1 and one.intents and two.intents else []


def run_histories(
    folder: Callable[[int], Path], seeds: range, *, intents: bool = True, stop: bool = False
) -> tuple[dict[str, int], list[tuple[int, list[str]]]]:
    """Run histories; return how their publications ended, and what was wrong with which.

    :param stop: at the first one that is wrong.
    """
    ends: dict[str, int] = {}
    failed = []
    for seed in seeds:
        history = History(folder(seed), seed, intents=intents)
        try:
            with bounded_meetings():
                history.run()
            wrong = history.judge()
        except (DeltaError, OSError, RecursionError, StuckError) as error:
            wrong = [f"{type(error).__name__}: {error}"[:500]]
        for publication in history.publications:
            end = publication.reports[-1] if publication.reports else "none"
            ends[end] = ends.get(end, 0) + 1
        if wrong:
            failed.append((seed, wrong))
            if stop:
                break
    return ends, failed
