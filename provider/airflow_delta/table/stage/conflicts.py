"""Conflicts between stages of one transaction, found before the commit by the checker that compares transactions.

Stages that do not know each other have all read the version that the transaction reads, so one must not lose what another did.
Each is checked as a transaction that lost against the other: a conflict means that it must come first. What all stages leave
together is right if it is what some order of them leaves one by one, so the commit is refused if there is none: two stages that
each changed what the other has read (write skew), or more of them in a ring. A stage that was planned on top of another
(``after=``) has read what that one left, and comes after it.

Three rules have no counterpart between transactions:

- Of two tasks that replace rows, neither may write into what the other replaces: both orders may be possible, but they differ,
  and nothing says which one is meant. A file that both replace is removed once.
- Instances of one mapped task that replace rows are one overwrite in parts: together they replace what each of them replaces,
  and what they have read is what was there before all of them.
- A file that two stages rewrite is a conflict even if they mark different rows in it: each lists one deletion vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.exceptions import DeltaConcurrentModificationException, StageConflictException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile, CommitInfo, Protocol, RemoveFile, encode_actions
from airflow_delta.log.actions.decode import CommitFile
from airflow_delta.log.actions.reconciliation import file_key
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.definition.staged_definition import written
from airflow_delta.table.stage.earlier_stages import stage_id
from airflow_delta.table.stage.key_reads import key_set
from airflow_delta.table.stage.load import StageActions
from airflow_delta.table.stage.meetings import Meetings
from airflow_delta.table.stage.view import TransactionView
from airflow_delta.table.stage.whole_files import whole_files
from airflow_delta.transaction.conflicts.checker import ConflictChecker
from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
from airflow_delta.transaction.conflicts.resolution import Resolution
from airflow_delta.transaction.conflicts.rows_of_winners import SharedRows
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from airflow_delta.transaction.policy import CommitPolicy, ConflictOptions
from airflow_delta.transaction.prepare.isolation import IsolationLevel
from airflow_delta.transaction.reads.read_set import ReadSet
from airflow_delta.transaction.reads.table_reads import TableReads

OVERWRITES = ("overwrite", "dynamic")


def check_stages(view: TransactionView) -> None:
    """Refuse stages of which no order leaves what they leave together, and overwrites whose order would matter.

    Rows decide where partition values and column bounds do not, whatever ``conflict_detection`` the commit has: that is about the
    commits of others, and an audit or a preview does not know it.

    :raises StageConflictException: if there are such stages.
    """
    if len(view.stages) < 2:
        return
    together = _Together(view)
    for stage in together.stages:
        if others := stage.conflicts_with_overwrites():
            raise _overwrite_conflict(stage, others[0])
    order = _Order(together.stages)
    for stage in together.stages:
        for other in stage.conflicts_with():
            order.put_before(stage, other)
    ring = order.ring()
    if ring is not None:
        raise _conflict(ring)


class _Together:
    """The stages of a transaction, and what is found out once for all of them."""

    def __init__(self, view: TransactionView) -> None:
        self.view = view
        self.rows = SharedRows(view.log.store, CommitPolicy().conflict_read_limit)
        self.stages = [_Stage(self, position, stage) for position, stage in enumerate(view.stages)]
        self.meetings = Meetings(self.stages)
        self.replace_only = all(stage.replaces or not stage.actions.removes for stage in self.stages)
        """Whether files are removed by overwrites alone, which may all remove the same ones."""

    @cached_property
    def whole_files(self) -> dict[str, list[AddFile]]:
        """The files of the version that was read that each overwrite removes whole."""
        if self.view.handle.read_version < 0:
            return {}
        # Once the table is defined, nothing of the version that was read is left.
        overwrites = [stage.actions for stage in self.stages if not any(before.write.definition for before in stage.before)]
        return whole_files(self.view, TableReads(self.view.snapshot), overwrites)


class _Stage:
    """A stage as the checker sees it: one that lost, or one that won."""

    def __init__(self, together: _Together, position: int, actions: StageActions) -> None:
        self.together = together
        self.view = together.view
        self.position = position
        self.actions = actions
        self.write: StagedWrite = actions.write
        self.replaces = self.write.mode in OVERWRITES
        self.part_of = self.write.task_id if self.replaces else None
        """The overwrite that it is, together with other instances of its task."""
        self.id = stage_id(self.write)
        self.after = frozenset(self.write.after)

    def is_apart(self, other: _Stage) -> bool:
        """Tell whether they are not of one overwrite, and neither was planned on top of the other."""
        if self is other or (self.replaces and self.part_of == other.part_of):
            return False
        return self.id not in other.after and other.id not in self.after

    # -- as the one that lost -------------------------------------------------------------------------------------------------

    def conflicts_with(self) -> list[_Stage]:
        """Return the stages that changed what this one has read, rewritten or replaced: it must come before them."""
        declared, meetings = self.write.reads, self.together.meetings
        reads = bool(declared.predicates or declared.files or declared.whole_table)
        if not (reads or self.may_remove):
            return []
        found = self._removing_same()
        if reads:
            known = {other.position for other in found}
            touching = meetings.touching(self, self.reads)
            left = [other for other in touching if other.position not in known and self.is_apart(other)]
            found += self._lost_to([(other, other.commit) for other in left], self.reads)
        if self.replaces:
            known = {other.position for other in found}
            adding = meetings.adding(self, self.replaced_rows)
            left = [other for other in adding if other.position not in known and not other.replaces and self.is_apart(other)]
            found += self._lost_to([(other, other.commit_of_adds) for other in left], self.replaced_rows)
        return found

    def conflicts_with_overwrites(self) -> list[_Stage]:
        """Return the overwrites of other tasks that have new rows in what this one replaces."""
        if not self.replaces:
            return []
        adding = self.together.meetings.adding(self, self.replaced_rows)
        others = [other for other in adding if other.replaces and self.is_apart(other)]
        return self._lost_to([(other, other.commit_of_adds) for other in others], self.replaced_rows)

    def _removing_same(self) -> list[_Stage]:
        """Return the stages that remove a file of which this one removes rows, too, unless both replace all of its rows."""
        if self.together.replace_only or not self.may_remove:
            return []
        others = self.together.meetings.removing(file.path for file in self.removed)
        return [other for other in others if not (self.replaces and other.replaces) and self.is_apart(other)]

    def _lost_to(self, winners: Sequence[tuple[_Stage, WinningCommit]], reads: ReadSet) -> list[_Stage]:
        """Return those of other stages that this one cannot be serialised after."""
        winners = [(other, commit) for other, commit in winners if other.actions.adds or other.may_remove]
        if not winners:
            return []
        current = self._as_transaction(reads)
        rows = self.together.rows
        rows.begin()
        resolution = Resolution(current, "rows", rows)
        checker = ConflictChecker(current, lambda _version: 0, resolution)
        checker.begin([commit for _other, commit in winners])
        found = []
        for other, commit in winners:  # each after those that it was planned on top of
            try:
                checker.check_files(commit)
            except DeltaConcurrentModificationException:
                found.append(other)
        return found

    @cached_property
    def _seen(self) -> TableDefinition:
        """What the table was that the stage was planned on."""
        seen = self.view.seen_by(self.actions)
        return seen if seen.is_known else written(self.write)

    @property
    def is_partitioned(self) -> bool:
        """Whether partitions say what the stage has read."""
        return bool(self._seen.partition_columns)

    def _as_transaction(self, reads: ReadSet) -> CurrentTransaction:
        view, seen = self.view, self._seen
        return CurrentTransaction(
            table=view.log.uri,
            read_version=view.handle.read_version,
            reads=reads,
            metadata=view.target.metadata,
            protocol=Protocol(min_reader_version=1, min_writer_version=2),
            partition_columns=seen.partition_columns,
            actions=[*self.actions.removes, *self.actions.adds],
            is_blind_append=False,
            isolation_level=IsolationLevel.SERIALIZABLE,
            commit_info=CommitInfo(),
            operation=self.write.operation,
            read_metadata=seen.metadata,
            read_protocol=None,
            read_high_water_mark=lambda: 0,
            options=ConflictOptions(),
            snapshot_at=view.log.snapshot_at,
            validate=lambda _actions: None,
        )

    @cached_property
    def reads(self) -> ReadSet:
        """What the stage has read, apart from the rows that an overwrite replaces."""
        declared, recorder = self.write.reads, TableReads(self.view.snapshot)
        if declared.whole_table:
            recorder.read_whole_table(rows=True, selected=declared.selected)
        for text in declared.predicates:
            if self.replaces and text == self.write.replace_where:
                continue
            predicate = self.view.predicate_of(self.actions, text)
            # A rewrite lists the files that it depends on; others that it looked at had no matching rows.
            scanned = self.write.mode != "rewrite" or text in declared.scanned
            keys = key_set(self.view, self.actions, text)
            recorder.track_read_predicates(predicate, keys=keys, marked=text in declared.marked, scanned=scanned)
        if declared.files:
            recorder.track_files_read(declared.files, whole=not (declared.predicates or declared.whole_table))
        return recorder.recorded

    @cached_property
    def replaced_rows(self) -> ReadSet:
        """The rows that an overwrite replaces, as reads."""
        recorder = TableReads(self.view.snapshot)
        if self.write.mode == "dynamic":
            partitions = self.view.partitions_of(self.actions)
            recorder.recorded.add_predicate(partitions.text, partitions, partitions.members)
        elif self.write.replace_where is None:
            recorder.recorded.add_predicate("true")
        else:
            recorder.track_read_predicates(self.view.predicate_of(self.actions, self.write.replace_where))
        return recorder.recorded

    @property
    def may_remove(self) -> bool:
        """Whether the stage may remove files."""
        return self.replaces or bool(self.actions.removes)

    # -- as the one that won --------------------------------------------------------------------------------------------------

    @cached_property
    def before(self) -> list[StageActions]:
        """The stages that it was planned on top of."""
        return self.view.before(self.actions)

    @cached_property
    def removed(self) -> list[RemoveFile]:
        """The files that the stage removes: those that it lists, and those that an overwrite removes whole."""
        if not self.replaces:
            return self.actions.removes
        listed = {file_key(remove) for remove in self.actions.removes}
        staged = {file_key(add): add for stage in self.before for add in stage.adds}
        whole = [staged[key] for key in self.view.gone(staged.values(), self.actions)]
        whole += self.together.whole_files.get(self.id, ())
        changes = self.write.data_change
        return [*self.actions.removes, *(add.remove(0, data_change=changes) for add in whole if file_key(add) not in listed)]

    @cached_property
    def commit(self) -> WinningCommit:
        """The stage as a commit that landed after the version that was read."""
        return self._commit([*self.removed, *self.actions.adds])

    @cached_property
    def commit_of_adds(self) -> WinningCommit:
        """The files that it adds as such a commit."""
        return self._commit(self.actions.adds)

    def _commit(self, actions: Sequence[AddFile | RemoveFile]) -> WinningCommit:
        version = self.view.handle.read_version + 1 + self.position
        data = encode_actions([CommitInfo(operation=self.write.operation), *actions])
        return WinningCommit(CommitFile(version, data, 0), table=self.view.log.uri)


@dataclass(frozen=True, slots=True)
class _Before:
    """One stage must come before another.

    :param is_planned: because the other was planned on top of it.
    """

    first: _Stage
    then: _Stage
    is_planned: bool


class _Order:
    """Which stages must come before which others; the parts of one overwrite are one."""

    def __init__(self, stages: Sequence[_Stage]) -> None:
        first: dict[str | None, int] = {}
        self._part_of = [
            stage.position if stage.part_of is None else first.setdefault(stage.part_of, stage.position) for stage in stages
        ]
        self._known: list[_Before] = []
        by_id = {stage_id(stage.write): stage for stage in stages}
        for stage in stages:
            self._known += [_Before(by_id[earlier], stage, True) for earlier in stage.write.after if earlier in by_id]

    def put_before(self, stage: _Stage, other: _Stage) -> None:
        """Put a stage before another one."""
        self._known.append(_Before(stage, other, False))

    def ring(self) -> list[_Before] | None:
        """Return conditions that contradict each other, each about the stage that the one before ends with, if there are any."""
        after: dict[int, list[_Before]] = {}
        for known in self._known:
            first, then = (self._part_of[stage.position] for stage in (known.first, known.then))
            if first != then:
                after.setdefault(first, []).append(known)
        done: set[int] = set()
        for start in after:
            found = self._ring_from(start, after, done)
            if found is not None:
                return found
        return None

    def _ring_from(self, start: int, after: dict[int, list[_Before]], done: set[int]) -> list[_Before] | None:
        """Search depth first, without recursion: stages may be many."""
        path: list[_Before] = []
        entered = [start]
        waiting = [iter(after[start])] if start not in done else []
        while waiting:
            step = next(waiting[-1], None)
            if step is None:
                waiting.pop()
                done.add(entered.pop())
                if path:
                    path.pop()
                continue
            part = self._part_of[step.then.position]
            if part in entered:
                return [*path[entered.index(part) :], step]
            if part not in done:
                path.append(step)
                entered.append(part)
                waiting.append(iter(after.get(part, ())))
        return None


def _overwrite_conflict(stage: _Stage, other: _Stage) -> StageConflictException:
    handle, predicate = stage.view.handle, stage.write.replace_where
    values = _partition(stage, _touched(stage.replaced_rows, other.actions.adds))
    what = f"replace_where {predicate!r}" if predicate is not None else stage.write.mode
    return handle.error(
        StageConflictException,
        f"The stages {stage.write.stage} ({what}) and {other.write.stage} of transaction {handle.transaction_id} on table "
        f"{handle.table} both overwrite {f'partition {values}' if values else 'the same rows'}, and nothing says which of them "
        "wins. Give one of them after=<output of the other>, let them replace different partitions, or make them instances of "
        "one mapped task.",
    )


def _conflict(ring: Sequence[_Before]) -> StageConflictException:
    """Return the error of stages that must each come before the next one, and the last before the first."""
    handle = ring[0].first.view.handle
    writes = list({id(stage): stage.write for step in ring for stage in (step.first, step.then)}.values())
    *named, last = [f"{write.stage} ({write.operation})" for write in writes]
    read = next((step for step in ring if not step.is_planned), ring[0])
    both = "both" if len(writes) == 2 else "all"
    why = "; ".join(
        f"{step.then.write.stage} was planned on top of {step.first.write.stage}"
        if step.is_planned
        else f"{step.first.write.stage} depends on rows that {step.then.write.stage} changes"
        for step in ring
    )
    return handle.error(
        StageConflictException,
        f"The stages {', '.join(named)} and {last} of transaction {handle.transaction_id} on table {handle.table} {both} touch "
        f"{_place(read)}, and no order of them gives what they leave together: {why}. Give one of them after=<output of the "
        "other>, or make their predicates name different rows or partitions.",
    )


def _place(step: _Before) -> str:
    """Return which of the rows that one stage depends on another one changes."""
    stage, other = step.first, step.then
    files: list[AddFile | RemoveFile] = [*other.removed, *other.actions.adds]
    file = _touched(stage.reads, files)
    if file is None and stage.replaces:
        file = _touched(stage.replaced_rows, files)
    if file is None:
        return "the same rows"
    values = _partition(stage, file)
    return f"{file.path}, in partition {values}" if values else file.path


def _touched(reads: ReadSet, files: Sequence[AddFile | RemoveFile]) -> AddFile | RemoveFile | None:
    """Return the first of some files that may hold rows that were read, by path and partition."""
    known = reads.read_among([file.path for file in files])
    for file in files:
        if file.path in known or any(read.covers(file.partition_values or {}) for read in reads.predicates.values()):
            return file
    return None


def _partition(stage: _Stage, file: AddFile | RemoveFile | None) -> str:
    named = {} if file is None else stage.view.target.named_partition(file.partition_values)
    values = ", ".join(f"{name}={value}" for name, value in named.items())
    return f"[{values}]" if values else ""
