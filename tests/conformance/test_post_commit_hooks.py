"""What happens after a commit: rules 1.9 and 1.10 of Delta's engine.

Symlink manifests are ``transaction/commit/test_symlink_manifest.py``, the request for compaction
``transaction/commit/test_auto_compact.py``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import DeltaAssertionError, PostCommitHookFailedException
from airflow_delta.log.actions.actions import Action, CommitInfo
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction, PostCommitHook, events
from conformance.harness import (
    MANUAL,
    Raises,
    Row,
    Step,
    committed,
    created,
    names,
    row_id,
    snapshot,
    started,
    then,
    with_properties,
)
from support.actions import add, remove
from support.table import Table, metadata

CHECKPOINT = "*.checkpoint.parquet"


def checkpoint(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def commits(count: int, **options: Any) -> Step:
    def run(table: Table) -> None:
        for _ in range(count):
            table.log().start_transaction(**options).commit([], MANUAL)

    return run


class Noting(PostCommitHook):
    """Notes that it ran, and what it saw; fails where it is told to."""

    def __init__(self, name: str, notes: list[Any], error: Exception | None = None) -> None:
        self.name = name
        self.notes = notes
        self.error = error

    def run(self, txn: OptimisticTransaction, version: int, actions: Sequence[Action]) -> None:
        assert isinstance(actions[0], CommitInfo)
        self.notes.append((self.name, version))
        if self.error is not None:
            raise self.error


def hooks_of(*given: str, use: Any = None) -> Step:
    """Register hooks of these names (``!`` fails), commit, and see which ran."""

    def run(table: Table) -> list[Any]:
        notes: list[Any] = []
        transaction = table.log().start_transaction()
        hooks = {name: Noting(name, notes, ValueError("broken") if name.startswith("!") else None) for name in given}
        for name in given:
            transaction.register_post_commit_hook(hooks[name])
        (use or (lambda t: t.commit([add("a")], MANUAL)))(transaction)
        return notes

    return run


def delete_nothing(transaction: Any) -> None:
    transaction.commit_if_needed([], Operation.delete())


def restore(transaction: Any) -> None:
    transaction.commit_large([add("a")], Operation.restore(0))


def crc_is_kept(table: Table) -> bool:
    path = table.path / "_delta_log" / f"{1:020d}.crc"
    path.write_text("{}")
    table.log().write_checksum(table.log().snapshot)
    return path.read_text() == "{}"


def hook_events(table: Table) -> list[str]:
    seen: list[str] = []

    def listen(name: str, _uri: str, _data: Any) -> None:
        seen.append(name)

    events.add_listener(listen)
    try:
        hooks_of("!one")(table)
    finally:
        events.remove_listener(listen)
    return [name for name in seen if "hook" in name]


def newer_than_committed(table: Table) -> tuple[int, int]:
    """Another commit lands while ours is on its way: the log may then stand on a newer version than ours."""
    log = table.log()
    transaction = log.start_transaction()
    table.commit(add("other"))
    version = transaction.commit([add("a")], MANUAL)
    return version, log.snapshot.version


def active_inside(table: Table) -> list[Any]:
    seen: list[Any] = []

    class Looking(PostCommitHook):
        name = "looking"

        def run(self, txn: OptimisticTransaction, version: int, actions: Sequence[Action]) -> None:
            seen.append(OptimisticTransaction.get_active())

    with table.log().with_new_transaction() as transaction:
        transaction.register_post_commit_hook(Looking())
        transaction.commit([], MANUAL)
        seen.append(OptimisticTransaction.get_active() is transaction)
    return seen


def without_checksum(table: Table) -> None:
    transaction = table.log().start_transaction(policy=CommitPolicy(checksum=False))
    transaction.update_metadata_for_new_table(metadata())
    transaction.commit([], MANUAL)


MANIFESTS = with_properties(compatibility__symlinkFormatManifest__enabled="true")

RULES = [
    Row(
        "1.9",
        "the log stands on the committed version",
        [created()],
        lambda t: (log := t.log(), log.start_transaction().commit([add("a")], MANUAL), log.snapshot.version)[2],
        1,
    ),
    Row("1.9", "after a lost race too", [created()], newer_than_committed, (2, 2)),
    Row("1.10 checkpoint", "none for version 0", [with_properties(checkpointInterval="1")], names(CHECKPOINT), []),
    Row("1.10 checkpoint", "every tenth version", [created(), commits(11)], names(CHECKPOINT), [checkpoint(10)]),
    Row(
        "1.10 checkpoint",
        "the interval of the table",
        [with_properties(checkpointInterval="3"), commits(4)],
        names(CHECKPOINT),
        [checkpoint(3)],
    ),
    Row(
        "1.10 checkpoint",
        "the pointer follows it",
        [with_properties(checkpointInterval="3"), commits(4)],
        lambda t: json.loads((t.path / "_delta_log" / "_last_checkpoint").read_text())["version"],
        3,
    ),
    Row(
        "1.10 checksum",
        "of every commit",
        [created(), commits(2)],
        names("*.crc"),
        [f"{version:020d}.crc" for version in range(3)],
    ),
    Row("1.10 checksum", "switched off", [], then(without_checksum, names("*.crc")), []),
    Row("1.10 checksum", "never overwritten", [created(), committed(add("a"))], crc_is_kept, True),
    Row(
        "1.10 manifests",
        "a commit of files registers them",
        [MANIFESTS],
        started(lambda t: (t.commit([add("a")], MANUAL), [type(h).__name__ for h in t.post_commit_hooks])[1]),
        ["ChecksumHook", "CheckpointHook", "SymlinkManifestHook"],
    ),
    Row(
        "1.10 manifests",
        "a commit without files does not",
        [MANIFESTS],
        started(lambda t: (t.commit([], MANUAL), [type(h).__name__ for h in t.post_commit_hooks])[1]),
        ["ChecksumHook", "CheckpointHook"],
    ),
    Row("1.10 order", "as registered", [created()], hooks_of("b", "a"), [("b", 1), ("a", 1)]),
    Row("1.10 order", "one hook twice runs once", [created()], hooks_of("b", "a", "b"), [("b", 1), ("a", 1)]),
    Row("1.10 failure", "the commit stays", [created()], then(hooks_of("!one"), snapshot(lambda s: s.version)), 1),
    Row("1.10 failure", "hooks after it run", [created()], hooks_of("!one", "two"), [("!one", 1), ("two", 1)]),
    Row("1.10 failure", "an event", [created()], hook_events, ["delta.commit.hook.failure"]),
    Row("1.10 active", "cleared while hooks run, restored after", [created()], active_inside, [None, True]),
    Row("1.10", "none for a commit that was left out", [created()], hooks_of("a", use=delete_nothing), []),
    Row("1.10", "none for a large one", [created()], hooks_of("a", use=restore), []),
    Row(
        "1.10",
        "not before the commit",
        [created()],
        started(lambda t: t.run_post_commit_hooks(1, [])),
        Raises(DeltaAssertionError, "Can't call post commit hooks before committing"),
    ),
]


@pytest.mark.parametrize("row", RULES, ids=row_id)
def test_rule(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)


def test_a_failure_may_be_made_to_matter(tmp_path: Path) -> None:
    """1.10: then the error says what stays."""
    table = Table(tmp_path / "table")
    table.create()
    notes: list[Any] = []
    transaction = table.log().start_transaction(policy=CommitPolicy(fail_on_hook_error=True))
    transaction.register_post_commit_hook(Noting("one", notes, ValueError("broken")))
    transaction.register_post_commit_hook(Noting("two", notes))
    with pytest.raises(
        PostCommitHookFailedException, match="is committed, but its post-commit hook one failed: broken"
    ) as caught:
        transaction.commit([add("a")], MANUAL)
    assert (caught.value.hook, caught.value.version) == ("one", 1)
    assert transaction.committed
    assert notes == [("one", 1), ("two", 1)]
    assert table.versions() == [0, 1]


def test_the_line_of_a_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = Table(tmp_path / "table")
    table.create()
    hooks_of("!one")(table)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage() == "Error when executing post-commit hook !one for commit 1"
    assert table.commit(remove("a")) == 2
