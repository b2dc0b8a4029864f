"""Workers on one publication that stop at a point while others work, or whose store gives an answer that cannot be trusted."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_delta.contract.audit import HeldCheck
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import ManifestException, PublicationUndoneException
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.publication import (
    Member,
    OpenTable,
    PublicationOptions,
    abort_tables,
    get_versions,
    open_publications,
    publish_tables,
    settle,
)
from airflow_delta.table.operations.vacuum.run import HOUR, vacuum
from airflow_delta.transaction import CommitPolicy
from airflow_delta.transaction.intents import IntentRule
from faults.crash.attempts import Attempt
from faults.shared.layers import Remote
from publication.judge import judge_rows, judge_states, judge_versions
from publication.lake import LakeTable
from publication.points import killed

PART = "part = 'a'"
NAMES = ("first", "second", "third")
OLD, NEW, OTHER = 1, 77, 900
"""Ids of rows: before, of the publication, and of another one."""

HASTY = CommitPolicy(intents=IntentRule(patience=0.05))
"""Of a commit that does not wait long for an open publication: its worker does not go on by itself."""

Client = Callable[[LogStore], LogStore]
Opened = Callable[[str], DeltaLog]
Task = Callable[[Opened], Any]


class Worker(Attempt):
    """An attempt of a task on several tables, each through a client of its own."""

    def __init__(self, client: Client, task: Task, *, stop_at: int | None = None) -> None:
        self._client = client
        self._logs: dict[str, DeltaLog] = {}
        super().__init__(LocalStore("/"), task, stop_at=stop_at)

    @property
    def given(self) -> Opened:
        return self._open

    def _open(self, uri: str) -> DeltaLog:
        if uri not in self._logs:
            self._logs[uri] = self.log_on(self._client(LocalStore(uri)))
        return self._logs[uri]


class Lake:
    """Tables, and a publication that replaces rows of all but the last one, to which it appends, and which a check has read.

    :param count: of tables.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.tables = [LakeTable(folder / name) for name in NAMES[:count]]
        for table in self.tables:
            table.fill([OLD])
        self.members = [self._member(table) for table in self.tables]
        self.client: Client = Remote

    def _member(self, table: LakeTable) -> Member:
        if table is not self.tables[-1]:
            return table.member("k", [NEW], replaces=PART)
        member = table.member("k", [NEW])
        check = HeldCheck(name="a check", version=member.handle.read_version, predicates=(PART,))
        return replace(member, held=[check])

    def worker(self, name: str, *, stop_at: int | None = None) -> Worker:
        """Return an attempt of a task, by the name of the method."""
        return Worker(self.client, getattr(self, name), stop_at=stop_at)

    # -- tasks -----------------------------------------------------------------------------------------------------------------

    def commit(self, opened: Opened) -> str:
        """Publish, as a try of the commit task."""
        return self._publish(self.members, opened, anchor=self.tables[0].uri)

    def abort(self, opened: Opened) -> str:
        """Abort, as the teardown does."""
        members = [Member(log=opened(member.log.uri), handle=member.handle) for member in self.members]
        return abort_tables(members, open_table=_opens(opened)).outcome

    def settle(self, opened: Opened) -> str:
        """Bring what is open on any table to its end, as `airflow delta settle` does."""
        ends = {"none"}
        for table in self.tables:
            log = opened(table.uri)
            for found in open_publications(log):
                ends.add(settle(log, found.publication, _opens(opened), patience=0.0).outcome)
        return max(ends - {"none"}, default="none")

    def publish_another(self, opened: Opened) -> str:
        """Another publication, which appends to all tables in the other order."""
        members = [table.member("other", [OTHER], part="z") for table in self.tables]
        return self._publish(members, opened, anchor=self.tables[-1].uri)

    def vacuum_later(self, opened: Opened) -> str:
        """VACUUM of every table in ten days: transactions are abandoned after a week, plans are kept as long as the log."""
        now = int(time.time() * 1000) + 10 * 24 * HOUR
        for table in self.tables:
            vacuum(opened(table.uri), retention_hours=0, retention_check=False, clock=lambda: now, policy=HASTY)
        return "none"

    @staticmethod
    def _publish(members: list[Member], opened: Opened, *, anchor: str) -> str:
        tried = [replace(member, log=opened(member.log.uri)) for member in members]
        options = PublicationOptions(anchor=anchor, patience=0.0)
        try:
            return publish_tables(tried, attempt=new_attempt(), options=options, open_table=_opens(opened)).outcome
        except PublicationUndoneException:
            return "undone"

    # -- what stands before ----------------------------------------------------------------------------------------------------

    def killed_at(self, point: str, when: str = "after") -> Lake:
        """Have a worker be killed at a put."""
        killed(lambda: self.commit(DeltaLog.for_table), point, when)
        return self

    def refused_late(self) -> Lake:
        """Have the decision be made, and a foreign writer change the last table."""
        self.killed_at("published first")
        self.tables[-1].add_property()
        return self

    # -- what must hold --------------------------------------------------------------------------------------------------------

    def shown(self) -> int:
        """Return on how many tables the publication is."""
        return sum(NEW in table.ids() for table in self.tables)

    def check(self, where: str, *, cleaned: bool = False) -> None:
        """Check that it is on all tables or on none, by every version of every log.

        :param cleaned: VACUUM has deleted the files of earlier versions, so that it may be split.
        """
        for table in self.tables:
            for found in open_publications(table.log()):
                with suppress(ManifestException):  # it is gone
                    settle(table.log(), found.publication, DeltaLog.for_table, patience=0.0)
        logs = {table.uri: table.entries() for table in self.tables}
        wrong = judge_states(logs)
        for table in self.tables:
            wrong += judge_versions(table.uri, logs[table.uri])
            wrong += [] if cleaned else judge_rows(table, logs[table.uri])
        if self.shown() not in (0, len(self.tables)) and not cleaned:
            wrong.append(f"it is on {self.shown()} tables")
        if len({OTHER in table.ids() for table in self.tables}) > 1:
            wrong.append("the other one is on some tables only")
        vector = get_versions({table.uri: table.log() for table in self.tables})
        if vector.held_back or (vector.split and not cleaned):
            wrong.append(f"a reader is held back: {vector.to_dict()}")
        assert not wrong, f"{where}: {wrong}"


def _opens(opened: Opened) -> OpenTable:
    return lambda uri: opened(uri)
