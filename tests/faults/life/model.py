"""A naive model of what a table must hold: rows by id, and the state of each logical run. It knows no file and no action."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from faults.life.clock import DAY

KEYS_KEPT = 90 * DAY
FILES_KEPT = 7 * DAY

Rows = dict[int, str]
"""Partition by id; every try of every stage writes ids of its own."""


@dataclass
class Event:
    """What a version changed."""

    version: int
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    metadata: str | None = None
    key: str | None = None


@dataclass
class LogKey:
    """A transaction key that the table knows, or knew.

    :ivar rows: what it added and has not taken back.
    :ivar last: when it was committed last.
    :ivar tries: task instances and chains of tries that committed it.
    """

    rows: set[int] = field(default_factory=set)
    last: float = 0.0
    versions: dict[str, int] = field(default_factory=dict)
    tries: set[tuple[Any, ...]] = field(default_factory=set)


@dataclass
class Execution:
    """One execution of a start task.

    :ivar found: its key was committed, and its stages have nothing to do.
    :ivar replaces: ids that its commit takes back.
    :ivar touched: when it last staged something.
    :ivar given_up: a VACUUM may have given it up.
    :ivar anew: the table had forgotten the key, and numbers its commits from 0 again.
    :ivar unmarked: VACUUM may have deleted its abort marker, so newly staged files may be committed.
    """

    id: str
    key: str
    policy: str
    read_version: int
    began: float
    touched: float
    found: bool = False
    replaces: frozenset[int] = frozenset()
    version: int | None = None
    aborted: bool = False
    aborted_at: float = 0.0
    given_up: bool = False
    unmarked: bool = False
    anew: bool = False
    wide: bool = False


@dataclass
class Report:
    """What a stage of an execution staged."""

    execution: str
    rows: Rows
    slice: str | None = None


class Wrong(AssertionError):
    """The table, or an answer, is not what it must be."""


def expect(condition: object, what: str, outcome: Any = None) -> None:
    if not condition:
        said = "" if outcome is None else f": {outcome.error!r}" if outcome.error is not None else f": {outcome.value}"
        raise Wrong(f"{what}{said[:700]}")


class Model:
    """What the table must hold, and how each try may end."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.history: dict[int, Rows] = {}
        self.times: dict[int, float] = {}
        self.events: list[Event] = []
        self.keys: dict[str, LogKey] = {}
        self.executions: dict[str, Execution] = {}
        self.oldest_commit = 0
        self.last_vacuum: float | None = None
        self.is_foreign = False
        self.changed_at: int | None = None
        self._before: Rows = {}

    @property
    def version(self) -> int:
        return max(self.history, default=-1)

    # -- versions ---------------------------------------------------------------------------------------------------------------

    def change(self, event: Event, rows: Rows) -> None:
        """Note a version that changes rows."""
        expect(event.version > self.version, f"version {event.version} is committed again")
        self._before, self.rows, self.changed_at = self.rows, rows, event.version
        self.events.append(event)

    def settle(self, versions: list[int], oldest: int, now: float) -> None:
        """Note the versions that the log has after a step; those of VACUUM and of nothing change no rows."""
        last = self.version
        if self.changed_at is not None:
            expect(self.changed_at in versions, f"version {self.changed_at} was reported and is not in the log")
        for version in versions:
            if version > last:
                after = self.changed_at is not None and version >= self.changed_at
                self.history[version] = self.rows if after or self.changed_at is None else self._before
                self.times[version] = now
        self.changed_at, self.oldest_commit = None, oldest

    def since(self, execution: Execution) -> list[Event]:
        return [event for event in self.events if event.version > execution.read_version]

    def is_lost(self, execution: Execution, now: float) -> bool:
        """Return whether the log may no longer tell about an execution."""
        known = self.keys.get(execution.key)
        since = execution.began if known is None else min(execution.began, known.last)
        return self.oldest_commit > max(execution.read_version, 0) or now - since > KEYS_KEPT

    # -- start ------------------------------------------------------------------------------------------------------------------

    def started(self, outcome: Any, *, key: str, policy: str, since: float, now: float, wide: bool = False) -> None:
        """Judge a try of a start task.

        :param since: when the key may have been committed for the first time.
        """
        known = self.keys.get(key)
        name = type(outcome.error).__name__
        if outcome.refused():
            if name == "TransactionExpiredException":
                expect(policy != "append" and now - since > KEYS_KEPT, f"{key} cannot have expired", outcome)
            elif name == "TransactionAlreadyCommittedException":
                fits = policy == "fail" or (policy == "replace" and known and not self._can_replace(known))
                expect(known and fits, f"{key} is not committed, or can be replaced", outcome)
            else:
                expect(name == "NonEmptyLocationException" and self.is_foreign, f"start of {key} was refused", outcome)
            return
        expect(not self.is_foreign, "a table is made in a folder of other files", outcome)
        handle = outcome.value
        found = handle.get("committed") is not None
        expect(not known or policy not in ("skip", "fail") or found, f"{key} is committed, and {policy} begins it again", outcome)
        expect(not found or (known and policy == "skip"), f"{key} is not committed", outcome)
        expect(handle["readVersion"] == self.version, f"not the latest version, {self.version}", outcome)
        replaces = frozenset(known.rows) if known and policy == "replace" else frozenset()
        execution = Execution(handle["transactionId"], key, policy, self.version, now, now, found, replaces, wide=wide)
        if known and handle["txnVersion"] == 0:
            execution.anew = policy == "append" and now - known.last > KEYS_KEPT
            expect(execution.anew or found, f"{key} counts from 0 again", outcome)
        expect(execution.id not in self.executions, "two executions have one id", outcome)
        self.executions[execution.id] = execution

    def _can_replace(self, known: Any) -> bool:
        """Return whether the table has all rows that a key has added, and the log says which they are."""
        return not frozenset(known.rows) - self.rows.keys() and min(known.versions.values()) >= self.oldest_commit

    # -- stage ------------------------------------------------------------------------------------------------------------------

    def staged(self, outcome: Any, execution: Execution, now: float) -> None:
        if outcome.refused():
            fits = execution.aborted or execution.given_up or self._other_columns(execution) or self.is_lost(execution, now)
            expect(fits or execution.version is not None, "a stage was refused", outcome)
        execution.touched = now

    # -- commit -----------------------------------------------------------------------------------------------------------------

    def committed(self, outcome: Any, execution: Execution, reports: list[Report], now: float) -> None:
        """Judge a try of a commit.

        :param reports: of the stages that succeeded in the run; those of another execution as well.
        """
        lost = self.is_lost(execution, now)
        if execution.found or execution.version is not None:
            expect(not outcome.refused() or lost, "what is committed was refused", outcome)
            if execution.version is not None and not outcome.refused() and not lost:
                expect(outcome.value["version"] == execution.version, f"it is version {execution.version}", outcome)
            return
        others = {event.key for event in self.since(execution)} & {execution.key}
        if others and execution.policy == "skip" and not outcome.refused():
            expect(outcome.value["committedBefore"], "another execution has committed the key", outcome)
            return
        why = self._must_refuse(execution, reports) or (others and "another execution has committed the key")
        if why:
            expect(outcome.refused(), why, outcome)
            return
        if outcome.refused():
            expect(self._may_refuse(execution, lost), "a commit was refused", outcome)
            return
        expect(not outcome.value["committedBefore"], "it was not committed before", outcome)
        self._publish(outcome.value["version"], execution, reports, now)

    def _must_refuse(self, execution: Execution, reports: list[Report]) -> str | None:
        if execution.aborted and not execution.unmarked:
            return "it was aborted"
        if not reports:
            return "no stage has reported"
        if any(report.execution != execution.id for report in reports):
            return "a stage has reported to another execution"
        slices = {report.slice for report in reports if report.slice}
        if any(slices & (event.added | event.removed) for event in self.since(execution)):
            return "another commit has changed what it overwrites"
        if execution.replaces - self.rows.keys():
            return "rows that it replaces are gone"
        return None

    def _may_refuse(self, execution: Execution, lost: bool) -> bool:
        # Tables that two transactions create are one if their definitions are.
        created = execution.read_version < 0 <= self.version
        touched = any(event.removed or event.added for event in self.since(execution)) and bool(execution.replaces)
        if execution.policy == "replace" and (known := self.keys.get(execution.key)) is not None:
            touched = touched or min(known.versions.values()) < self.oldest_commit  # the log no longer says what it added
        changed = self._other_columns(execution) or (execution.wide and created)
        return changed or touched or execution.given_up or execution.aborted or lost or self.is_foreign

    def _other_columns(self, execution: Execution) -> bool:
        """Return whether the metadata have changed otherwise than this execution changes them."""
        changes = {event.metadata for event in self.since(execution)} - {None}
        return bool(changes - {"wide"} if execution.wide else changes)

    def _publish(self, version: int, execution: Execution, reports: list[Report], now: float) -> None:
        slices = {report.slice for report in reports if report.slice}
        gone = {row for row, part in self.rows.items() if part in slices} | execution.replaces
        new: Rows = {}
        for report in reports:
            expect(not new.keys() & report.rows.keys(), "a report counts twice")
            new |= report.rows
        rows = {row: part for row, part in self.rows.items() if row not in gone} | new
        removed = frozenset(self.rows[row] for row in gone & self.rows.keys())
        metadata = "wide" if execution.wide else None
        self.change(Event(version, frozenset(new.values()), removed, metadata, execution.key), rows)
        execution.version = version
        known = self.keys.setdefault(execution.key, LogKey())
        if execution.anew:
            known.rows, known.versions = set(), {}
        known.rows = (known.rows - gone) | new.keys()  # what the key itself has removed is not missed
        known.last, known.versions[execution.id] = now, version

    # -- abort ------------------------------------------------------------------------------------------------------------------

    def given_up(self, outcome: Any, execution: Execution, now: float) -> None:
        """Judge a try of an abort."""
        expect(not outcome.refused(), "an abort failed", outcome)
        said = outcome.value["outcome"]
        if execution.version is not None:
            fits = said == "committed" or (said == "marked" and self.is_lost(execution, now))
            expect(fits, "an abort gave up what is committed", outcome)
        elif not execution.found:
            expect(said != "committed" or self.is_lost(execution, now), "an abort found what is not committed", outcome)
            if said != "committed":
                execution.aborted, execution.unmarked, execution.aborted_at = True, False, now

    def vacuumed(self, now: float) -> None:
        self.last_vacuum = now
        for execution in self.executions.values():
            execution.given_up = execution.given_up or now - execution.touched > FILES_KEPT - 1
            execution.unmarked = execution.unmarked or now - max(execution.touched, execution.aborted_at) > FILES_KEPT - 1
