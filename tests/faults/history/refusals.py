"""Whether a refusal is one that docs/conflicts.md allows: the winner that it names must stand in its way."""

from __future__ import annotations

from collections.abc import Sequence

from faults.history.log import Action, Attempt, Commit, file_of

STORE_ERRORS = ("StoreUnavailableError", "AmbiguousPutError", "MaxCommitRetriesExceededException")
"""Of a store with faults; nothing was written."""


def allowed_without_conflict(run: Attempt) -> bool:
    """Tell whether an error that names no winner may end a transaction."""
    return run.error in STORE_ERRORS


def unjustified(run: Attempt, commits: Sequence[Commit], level: str) -> str | None:
    """Return why the winner that an error names does not justify the refusal; ``None`` if it does."""
    if run.winner is None or not run.version < run.winner < len(commits):
        return "the winner is not between its version and the end"
    winner, state = commits[run.winner], commits[run.version].state
    plan = run.plan or {"removes": [], "adds": [], "metadata": None}
    reads = [what for what, _answer in run.reads if what["kind"] == "files"]
    if run.error == "ConcurrentAppendException":
        if level == "SnapshotIsolation":
            return "at SnapshotIsolation added files do not matter"
        if level == "WriteSerializable" and winner.info.get("isBlindAppend") and not plan["metadata"]:
            return "at WriteSerializable blind appends do not matter"
        if not reads and not plan["removes"]:
            return "it is a blind append"
        if not state.partitioned or any(_covers(what, winner) for what in reads):
            return None
        return "nothing was added to a partition that it read"
    if run.error == "ConcurrentDeleteReadException":
        opened = {path for what, answer in run.reads if what["kind"] == "files" and not what["by_partition"] for path in answer}
        if opened.intersection(winner.removed) or (winner.removed and any(what["whole"] for what in reads)):
            return None
        return "no file that it read was removed"
    if run.error == "ConcurrentDeleteDeleteException":
        return None if set(plan["removes"]).intersection(winner.removed) else "no file was removed by both"
    if run.error == "MetadataChangedException":
        return None if winner.of("metaData") else "the winner changes no metadata"
    if run.error == "ConcurrentTransactionException":
        looked_up = {what["app"] for what, _answer in run.reads if what["kind"] == "app"}
        return None if looked_up.intersection(txn["appId"] for txn in winner.of("txn")) else "no application is the same"
    return "no such conflict can happen here"


def _covers(what: Action, winner: Commit) -> bool:
    if what["parts"] is None:
        return bool(winner.added)
    return any(file_of(add).part in what["parts"] for add in winner.of("add"))
