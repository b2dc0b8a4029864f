"""Judges a history of concurrent transactions, in the manner of Elle: from the log and what each process noted, no more.

What each isolation level allows is that of docs/conflicts.md and of Delta. ``python tests/faults/history/judge.py DIRECTORY``
judges a history that was kept: a table in ``table/``, the notes in ``notes/``.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2])]

from faults.history.log import Action, Attempt, Commit, File, State, Unit, file_of, files, read_log, read_notes
from faults.history.refusals import allowed_without_conflict, unjustified

SERIALIZABLE, WRITE_SERIALIZABLE, SNAPSHOT = "Serializable", "WriteSerializable", "SnapshotIsolation"

CHANGES_DATA = ("WRITE", "STREAMING UPDATE", "DELETE", "TRUNCATE", "MERGE", "UPDATE")
"""Operations that stay at WriteSerializable, whatever their actions say."""

TOLERATED = {"delta.enableDeletionVectors": "true"}
"""Properties that others may set beside a transaction; the table supports their features."""
NAMES_OF_ROW_TRACKING = "delta.rowTracking.materialized"
"""Properties that a change of metadata adds by itself."""


@dataclass
class Verdict:
    """What is wrong with a history, and what it consisted of."""

    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def judge(folder: Path, unit: Unit = files) -> Verdict:
    """Judge a history.

    :param unit: what answers are compared by: :func:`files`, as Delta's rules do, or :func:`rows`.
    """
    verdict = Verdict()
    commits = read_log(folder / "table", verdict.wrong)
    attempts = read_notes(folder / "notes")
    by_txn: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_txn[attempt.txn].append(attempt)
        verdict.counts[attempt.end] += 1
        verdict.counts[f"{attempt.end}:{attempt.what}"] += 1
        if attempt.error:
            verdict.counts[attempt.error] += 1
    landed: dict[str, list[Commit]] = defaultdict(list)
    for commit in commits[1:]:
        landed[commit.info.get("txnId", "")].append(commit)
    verdict.counts["commits"] = len(commits) - 1
    verdict.wrong += [f"a commit of nobody: version {landed[txn][0].version}" for txn in landed.keys() - by_txn.keys()]
    judgement = _Judgement(commits, unit, {txn: _planned(runs) for txn, runs in by_txn.items()})
    for txn, runs in by_txn.items():
        verdict.wrong += judgement.of(runs, landed[txn])
        if landed[txn]:
            verdict.counts.update(f"{run.end}, and committed" for run in runs if run.end in ("killed", "unknown"))
    verdict.wrong += _out_of_time(attempts)
    verdict.wrong += _out_of_step(commits)
    return verdict


@dataclass
class _Judgement:
    commits: Sequence[Commit]
    unit: Unit
    transactions: dict[str, Attempt]

    def of(self, runs: list[Attempt], landed: list[Commit]) -> Iterator[str]:
        """Judge one transaction, which may have been run again by another process."""
        first = runs[0]
        versions = [commit.version for commit in landed]
        if len(versions) > 1:
            yield f"committed twice: {first.name} is versions {versions}"
        for run in runs:
            yield from self._told(run, _planned(runs), versions, surely=run is first)
            yield from self._answers(run)
        if landed:
            commit, run = landed[0], _planned(runs)
            if run.plan is None:
                yield f"committed before it was planned: {run.name} is version {commit.version}"
                return
            yield from self._contents(run, run.plan, commit)
            yield from self._isolation(run, run.plan, commit)
            yield from self._metadata(run, run.plan, commit)

    def _told(self, run: Attempt, planned: Attempt, versions: list[int], *, surely: bool) -> Iterator[str]:
        """Whether what the process was told is true.

        :param planned: the run that has read what the transaction depends on.
        :param surely: no earlier run of the transaction may have committed it.
        """
        if run.end == "committed" and versions != [run.committed]:
            yield f"lost: {run.name} was told version {run.committed}, and is in {versions}"
        if run.end == "nothing" and versions:
            yield f"reported as empty, and there: {run.name} is in {versions}"
        if run.end != "failed":
            return
        if versions and (surely or run.winner is not None):
            yield f"reported as failed, and there: {run.name} ({run.error}) is in {versions}"
        if run.winner is None and not allowed_without_conflict(run):
            yield f"failed without a fault: {run.name} with {run.error}: {run.message}"
        elif run.winner is not None and not versions:
            reason = unjustified(replace(run, reads=run.reads or planned.reads), self.commits, self.level_of(run))
            if reason is not None:
                yield f"refused without a reason: {run.name} at version {run.version} with {run.error} of {run.winner}: {reason}"

    # -- reads ------------------------------------------------------------------------------------------------------------------

    def _answers(self, run: Attempt) -> Iterator[str]:
        """Whether what it read is what its version holds."""
        if run.version >= len(self.commits):
            yield f"read the future: {run.name} read version {run.version} of {len(self.commits) - 1}"
            return
        state = self.commits[run.version].state
        for what, answer in run.reads:
            expected = _answer(state, what)
            if expected != (sorted(answer) if isinstance(answer, list) else answer):
                yield f"read wrongly: {run.name} read {dict(what)} of version {run.version} as {answer}, which is {expected}"

    def _isolation(self, run: Attempt, plan: Action, commit: Commit) -> Iterator[str]:
        """Whether each read would have had the same answer right before the commit."""
        level = commit.info.get("isolationLevel")
        due = self.level_of(run, commit)
        if level != due:
            yield f"wrong level: {run.name} ran at {level} instead of {due}"
        blind = _reads_nothing(run) and not commit.removed
        if commit.info.get("isBlindAppend") is not blind:
            yield f"wrong claim: {run.name} says isBlindAppend={commit.info.get('isBlindAppend')}"
        began, right_before = self.commits[run.version].state, self.commits[commit.version - 1].state
        between = self.commits[run.version + 1 : commit.version]
        ignored: set[Hashable] = set()
        if due == WRITE_SERIALIZABLE and not plan["metadata"]:
            ignored = {path for other in between if self._is_blind(other) for path in other.added}
        for what, _answer_then in run.reads:
            if what["kind"] == "app":
                same = _answer(began, what) == _answer(right_before, what)
            else:
                then = self._units(began, what, set())
                now = self._units(right_before, what, ignored)
                same = then <= now if due == SNAPSHOT else then == now
            if not same:
                yield (
                    f"not isolated ({due}): {run.name} read {dict(what)} of version {run.version}, and committed "
                    f"{commit.version}, before which it is {_answer(right_before, what)} instead of {_answer(began, what)}"
                )

    def _units(self, state: State, what: Action, ignored: set[Hashable]) -> set[Hashable]:
        return {unit for file in selected(state, what) if file.path not in ignored for unit in self.unit(file, what)}

    def _is_blind(self, commit: Commit) -> bool:
        run = self.transactions.get(commit.info.get("txnId", ""))
        return run is not None and _reads_nothing(run) and not commit.removed

    def level_of(self, run: Attempt, commit: Commit | None = None) -> str:
        """Return the level that a transaction must run at."""
        table = self.commits[run.version].state.configuration if run.version < len(self.commits) else {}
        asked = run.level or table.get("delta.isolationLevel", SERIALIZABLE)
        plan = run.plan or {}
        rearranges = commit.changes_no_data if commit is not None else bool(plan.get("rearranges"))
        if rearranges and (asked == SERIALIZABLE or plan.get("operation") not in CHANGES_DATA):
            return SNAPSHOT
        return asked

    # -- what was written -------------------------------------------------------------------------------------------------------

    def _contents(self, run: Attempt, plan: Action, commit: Commit) -> Iterator[str]:
        """Whether the commit is what was to be committed, all of it and nothing else."""
        for name, planned, there in (
            ("adds", [add["path"] for add in plan["adds"]], commit.added),
            ("removes", list(plan["removes"]), commit.removed),
            ("applications", sorted(plan["apps"].items()), sorted((t["appId"], t["version"]) for t in commit.of("txn"))),
        ):
            if sorted(planned) != sorted(there):
                yield f"another commit than planned: version {commit.version} of {run.name} has {name} {there}, not {planned}"

    def _metadata(self, run: Attempt, plan: Action, commit: Commit) -> Iterator[str]:
        """Whether metadata that others changed was tolerable, and none of it is lost."""
        before, after = (self.commits[v].state for v in (commit.version - 1, commit.version))
        own = plan["metadata"] or {}
        pending = bool(own)
        for other in self.commits[run.version + 1 : commit.version]:
            if not other.of("metaData"):
                continue
            old, new = self.commits[other.version - 1].state, other.state
            if pending:  # only who has added the very column may come before; the transaction goes on without a change of its own
                pending = False
                added = [column["name"] for column in new.columns]
                if own.keys() != {"column"} or own["column"] not in added or old.configuration != new.configuration:
                    yield f"metadata changed beneath metadata: {run.name} of version {run.version} committed {commit.version}"
                continue
            changed = {k: v for k, v in new.configuration.items() if old.configuration.get(k) != v}
            gone = old.configuration.keys() - new.configuration.keys()
            if gone or old.columns != new.columns or any(TOLERATED.get(k) != v for k, v in changed.items()):
                yield f"metadata changed beneath it: {run.name} of version {run.version} committed {commit.version}"
        names = [column["name"] for column in before.columns]
        expected = sorted({*names, *([own["column"]] if "column" in own else [])})
        if sorted(column["name"] for column in after.columns) != expected:
            yield f"columns lost: after version {commit.version} of {run.name}, not {expected}"
        expected_properties = {**before.configuration, **own.get("properties", {})}
        differing = {key for key, value in expected_properties.items() ^ after.configuration.items()}
        if any(not key.startswith(NAMES_OF_ROW_TRACKING) for key in differing):
            yield f"properties lost: version {commit.version} of {run.name} leaves {dict(after.configuration)}"


def selected(state: State, what: Action) -> list[File]:
    """Return the files that may hold the rows of a read."""
    chosen = list(state.files.values())
    if what["parts"] is not None and state.partitioned:
        chosen = [file for file in chosen if file.part in what["parts"]]
    if what["above"] is not None:
        chosen = [file for file in chosen if file.highest > what["above"]]
    return chosen


def _answer(state: State, what: Action) -> list[str] | int:
    if what["kind"] == "app":
        return state.apps.get(what["app"], -1)
    return sorted(file.path for file in selected(state, what))


def _planned(runs: Sequence[Attempt]) -> Attempt:
    """Return the run of a transaction whose reads its commit depends on; later ones repeat them."""
    return next((run for run in runs if run.plan is not None), runs[0])


def _reads_nothing(run: Attempt) -> bool:
    return all(what["kind"] == "app" for what, _answer in run.reads)


def _out_of_time(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Whether each transaction reads all that was reported as committed before it began."""
    reported = sorted((run.ended, run.committed, run.name) for run in attempts if run.end == "committed" and run.committed)
    newest, position, whose = 0, 0, ""
    for run in sorted((run for run in attempts if not run.again), key=lambda run: run.begun):
        while position < len(reported) and reported[position][0] < run.begun:
            if reported[position][1] > newest:
                _, newest, whose = reported[position]
            position += 1
        if run.version < newest:
            yield f"reads the past: {run.name} began at version {run.version} after {whose} was told {newest}"


def _out_of_step(commits: Sequence[Commit]) -> Iterator[str]:
    """Whether timestamps and row ids go up with the versions."""
    last, end = 0, 0
    for commit in commits:
        timestamp = commit.info.get("inCommitTimestamp")
        if timestamp is not None:
            if timestamp <= last:
                yield f"time stands still: version {commit.version} has {timestamp} after {last}"
            last = timestamp
        for add in commit.of("add"):
            first = add.get("baseRowId")
            if first is None:
                continue
            if first < end:
                yield f"row ids twice: {add['path']} of version {commit.version} begins at {first}, below {end}"
            if add.get("defaultRowCommitVersion") != commit.version:
                yield f"wrong row commit version: {add['path']} of version {commit.version}"
            end = max(end, first + len(file_of(add).rows))


if __name__ == "__main__":
    told = judge(Path(sys.argv[1]))
    print(*told.wrong, dict(told.counts), sep="\n")
