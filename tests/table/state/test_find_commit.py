"""What commits and the files of a table tell about a transaction, rule by rule, on logs written by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from airflow_delta.contract.tags import APP_ID_TAG, INSTANCE_TAGS, MAX_TRIES_TAG, TRY_NUMBER_TAG
from airflow_delta.exceptions import DeltaUnsupportedTableFeatureException, TransactionExpiredException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from airflow_delta.log.actions.decode import CommitFile
from airflow_delta.table.state import find_commit as module
from airflow_delta.table.state.evidence import is_referenced
from airflow_delta.table.state.find_commit import (
    FoundCommit,
    TryChain,
    commit_of_chain,
    commit_of_transaction,
    find_commit,
    newest_first,
    own_after_conflict,
)
from airflow_delta.table.state.transaction_retention import last_txn_version
from support.actions import add, info, protocol, remove, txn
from support.tables import commit_path, create_table, write_commit

DAY = 24 * 3_600_000
ID = "11111111-2222-3333-4444-555555555555"
APP = "dag/group/run/-1"
TAGS = {"airflow.dagId": "d", "airflow.taskId": "t", "airflow.runId": "r", "airflow.mapIndex": "-1"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_table(tmp_path)
    return tmp_path


def log_of(path: Path) -> DeltaLog:
    log = DeltaLog.for_table(str(path))
    log.update()
    return log


def expire(path: Path, *, before: int) -> None:
    log_of(path).checkpoint()
    for version in range(before):
        commit_path(path, version).unlink()


# -- by the id of a transaction -----------------------------------------------------------------------------------------------


def test_a_commit_is_found_by_its_id_or_by_the_paths_of_its_files(path: Path) -> None:
    write_commit(path, 1, info(txn_id="other", user_metadata=f"about {ID}"))
    assert commit_of_transaction(log_of(path), ID, since=0) == FoundCommit(None, True)
    write_commit(path, 2, info(txn_id=ID))
    write_commit(path, 3)
    assert commit_of_transaction(log_of(path), ID, since=0) == FoundCommit(2, True)
    assert commit_of_transaction(log_of(path), ID, since=2) == FoundCommit(2, True)
    assert commit_of_transaction(log_of(path), ID, since=3) == FoundCommit(None, True)
    assert commit_of_transaction(log_of(path), ID, since=9) == FoundCommit(None, True)


@pytest.mark.parametrize("between", ["/", "%2F", "%2f", r"\/"])
def test_paths_may_be_spelled_in_several_ways(path: Path, between: str) -> None:
    name = between.join(["staged", ID, "a.parquet"])
    write_commit(path, 1, add("x.parquet"))
    text = commit_path(path, 1).read_text().replace("x.parquet", name)
    commit_path(path, 1).write_text(text)
    assert commit_of_transaction(log_of(path), ID, since=1).version == 1


@pytest.mark.parametrize("name", [f"other/{ID}/a.parquet", f"staged/{ID}.parquet", f"staged/x{ID}/a.parquet"])
def test_other_paths_with_the_id_are_not_its_files(path: Path, name: str) -> None:
    write_commit(path, 1, add(name))
    assert commit_of_transaction(log_of(path), ID, since=0).version is None
    assert not is_referenced(log_of(path).snapshot, ID)


def test_a_log_without_all_commits_is_not_complete(path: Path) -> None:
    for version in range(1, 5):
        write_commit(path, version)
    expire(path, before=3)
    assert [commit_of_transaction(log_of(path), ID, since=since).complete for since in (2, 3, 4, 5)] == [False, True, True, True]


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_commits_come_newest_first_up_to_a_gap(path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    for version in range(1, 8):
        write_commit(path, version)
    assert [commit.version for commit in newest_first(log_of(path), 2)] == [7, 6, 5, 4, 3, 2]
    assert [commit.version for commit in newest_first(log_of(path))] == [7, 6, 5, 4, 3, 2, 1, 0]
    expire(path, before=4)
    found = list(newest_first(log_of(path)))
    assert [commit.version for commit in found] == [7, 6, 5, 4]
    assert [commit.data for commit in found] == [commit_path(path, version).read_bytes() for version in (7, 6, 5, 4)]


# -- by its key -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("app_id", [APP, 'with "quotes" \\ and /', "ünïcode", "<tag> & 'more'", "tab\t"])
@pytest.mark.parametrize("escaped", [False, True])
def test_the_newest_commit_of_a_key(path: Path, app_id: str, escaped: bool) -> None:
    for version, number in enumerate((3, 5, 4), 1):
        write_commit(path, version, info(txn_id=f"id-{version}"), txn(f"{app_id}-not", 9), txn(app_id, number))
    write_commit(path, 4, txn("other", 1))
    if escaped:  # as a writer may that escapes whatever JSON lets it
        for version in (1, 2, 3):
            lines = commit_path(path, version).read_text().splitlines()
            special = [json.dumps(json.loads(line)).replace("/", "\\/").replace("<", "\\u003c") for line in lines]
            commit_path(path, version).write_text("\n".join(special) + "\n")

    def version(**options: object) -> int | None:
        found = find_commit(log_of(path), app_id=app_id, **options)  # type: ignore[arg-type]
        return None if found is None else found.version

    assert version() == 3
    assert version(txn_version=4) == 3
    assert version(txn_version=5) == 2
    assert version(txn_version=6) is None
    assert version(transaction_id="id-1") == 1
    assert version(transaction_id="id-2", since=2) == 2
    assert version(transaction_id="id-1", since=2) is None
    assert version(transaction_id="none") is None


# -- tries of a task ------------------------------------------------------------------------------------------------------------


def tries(number: int, max_tries: int | None = None, first_try: int = 1, since: int | None = None, **tags: str) -> TryChain:
    more = {} if max_tries is None else {"airflow.maxTries": str(max_tries)}
    return TryChain({**TAGS, "airflow.tryNumber": str(number), **more, **tags}, first_try=first_try, since=since)


def commit_by(path: Path, version: int, chain: TryChain | None, *, at: int = 100, app_id: str = APP, **changes: object) -> None:
    tags = None if chain is None else dict(chain.tags)
    write_commit(path, version, info(tags=tags, timestamp=at, **changes), txn(app_id, version), at=at)


def chain_commit(path: Path, chain: TryChain | None) -> int | None:
    found = commit_of_chain(log_of(path), APP, chain)
    return None if found is None else found.version


def test_tags_are_those_that_commits_have() -> None:
    assert set(TAGS) == set(INSTANCE_TAGS)
    assert (TRY_NUMBER_TAG, MAX_TRIES_TAG) == ("airflow.tryNumber", "airflow.maxTries")


def test_a_try_finds_the_commit_of_another_try_of_its_chain(path: Path) -> None:
    commit_by(path, 1, tries(1, 2))
    write_commit(path, 2)
    assert chain_commit(path, tries(2, 2)) == 1
    assert chain_commit(path, tries(1, 2)) == 1
    assert commit_of_chain(log_of(path), APP, tries(2, 2)).txn_version == 1
    assert chain_commit(path, tries(3, 5)) is None, "after a clear"
    assert chain_commit(path, None) is None
    assert own_after_conflict(log_of(path), APP, tries(2, 2)).version == 1
    assert own_after_conflict(log_of(path), "unknown", tries(2, 2)) is None


@pytest.mark.parametrize(
    ("tag", "resolved"),
    [
        ('{"rows":"7","statistics":"3-5"}', {"rows": "7", "statistics": "3-5"}),
        ("{}", {}),
        (None, {}),
        ("of another writer", {}),
        ('{"rows":7}', {}),
    ],
)
def test_a_commit_that_is_found_tells_the_conflicts_that_it_resolved(path: Path, tag: str | None, resolved: object) -> None:
    tags = {**tries(1, 2).tags, **({} if tag is None else {"airflow.conflictsResolved": tag})}
    write_commit(path, 1, info(tags=tags), txn(APP, 0))
    for found in (find_commit(log_of(path), app_id=APP), own_after_conflict(log_of(path), APP, tries(2, 2))):
        assert found is not None
        assert found.resolved == resolved


def test_a_table_of_one_commit(tmp_path: Path) -> None:
    create_table(tmp_path / "t", info(tags=dict(tries(1, 2).tags)), txn(APP, 0))
    assert own_after_conflict(log_of(tmp_path / "t"), APP, tries(2, 2)).version == 0
    assert find_commit(log_of(tmp_path / "t"), app_id=APP).version == 0


def test_a_chain_holds_commits_of_its_instance_with_the_number_of_a_try() -> None:
    chain = tries(2)
    assert chain.holds(tries(1).tags)
    assert not chain.holds(tries(1, **{"airflow.runId": "another"}).tags)
    assert not chain.holds(TAGS)
    assert not TryChain(TAGS).is_retry


def test_without_the_number_of_tries_the_first_one_of_the_chain_tells(path: Path) -> None:
    commit_by(path, 1, tries(2))
    assert chain_commit(path, tries(3, first_try=2)) == 1
    assert chain_commit(path, tries(3, 4, first_try=2)) == 1
    assert chain_commit(path, tries(4, first_try=3)) is None


@pytest.mark.parametrize("tag", TAGS)
def test_another_instance_is_another_chain(path: Path, tag: str) -> None:
    commit_by(path, 1, tries(1, 2))
    commit_by(path, 2, tries(1, 2, **{tag: "another"}))
    assert chain_commit(path, tries(2, 2)) == 1
    assert chain_commit(path, tries(2, 2, **{tag: "a third"})) is None


def test_the_newest_commit_of_the_instance_decides(path: Path) -> None:
    commit_by(path, 1, tries(2, 2))
    commit_by(path, 2, tries(4, 5))
    assert chain_commit(path, tries(3, 2)) is None
    assert chain_commit(path, tries(5, 5)) == 2


def test_what_was_committed_before_the_chain_began_is_of_another_run(path: Path) -> None:
    commit_by(path, 1, tries(1, 2), at=100)
    assert chain_commit(path, tries(2, 2, since=100)) == 1
    assert chain_commit(path, tries(2, 2, since=101)) is None
    commit_by(path, 1, tries(1, 2), at=100, in_commit_timestamp=200)
    assert chain_commit(path, tries(2, 2, since=200)) == 1
    assert chain_commit(path, tries(2, 2, since=201)) is None


@pytest.mark.parametrize("claim", [8 * DAY, 10 * DAY // 1000, 0, -1])
@pytest.mark.parametrize("name", ["timestamp", "in_commit_timestamp"])
def test_a_time_that_another_writer_claims_hides_no_commit(path: Path, name: str, claim: int) -> None:
    """A commit two days behind, in seconds, or of no time: a retry must still find what its first try has committed."""
    commit_by(path, 1, tries(1, 2), at=10 * DAY)
    write_commit(path, 2, info(**{name: claim}), at=10 * DAY)
    assert chain_commit(path, tries(2, 2, since=10 * DAY)) == 1
    assert own_after_conflict(log_of(path), APP, tries(2, 2, since=10 * DAY)).version == 1


def test_own_clock_and_store_must_agree_that_it_was_another_run(path: Path) -> None:
    tags = {**tries(1, 2).tags, APP_ID_TAG: APP}
    for claimed, stored, version in ((8, 10, 1), (10, 8, 1), (8, 8, None)):
        write_commit(path, 1, info(tags=tags, timestamp=claimed * DAY), txn(APP, 1), at=stored * DAY)
        assert chain_commit(path, tries(2, 2, since=10 * DAY)) == version


def test_a_search_ends_at_the_first_commit_that_the_store_wrote_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in range(1, 9):
        write_commit(path, version, info(timestamp=(version - 1) * DAY), at=version * DAY)
    looked_at: list[int] = []
    original = module.holds_app_id

    def looking(log: DeltaLog, file: CommitFile, app_id: str) -> object:
        looked_at.append(file.version)
        return original(log, file, app_id)

    monkeypatch.setattr(module, "holds_app_id", looking)
    assert commit_of_chain(log_of(path), APP, tries(1, 2, since=7 * DAY)) is None
    assert looked_at == [8, 7, 6], "a day, and the search ends"
    write_commit(path, 7, info(timestamp=30_000 * DAY), at=7 * DAY)
    assert commit_of_chain(log_of(path), APP, tries(1, 2, since=9 * DAY)) is None
    assert looked_at == [8, 7, 6, 8], "a claim from the future is asked about, too"


@pytest.mark.parametrize("claim", [0, 10 * DAY // 1000, 40 * DAY])
def test_a_claim_does_not_prove_that_a_key_has_not_expired(tmp_path: Path, claim: int) -> None:
    """The oldest commit that is left says that the log goes back to 1970."""
    path = tmp_path
    create_table(path, configuration={"delta.setTransactionRetentionDuration": "interval 7 days"})
    commit_by(path, 1, None, at=45 * DAY)
    write_commit(path, 2, info(timestamp=claim), at=50 * DAY)
    log_of(path).checkpoint()
    for version in (0, 1):
        commit_path(path, version).unlink()
    (path / "_delta_log" / f"{2:020d}.crc").unlink(missing_ok=True)
    log = log_of(path)
    with pytest.raises(TransactionExpiredException, match="goes back to version 2 of 1970-02-20"):
        last_txn_version(log, log.snapshot, APP, lambda: 44 * DAY)
    assert last_txn_version(log, log.snapshot, APP, lambda: 51 * DAY + 1) is None


def test_a_retry_whose_commit_may_have_expired_is_refused(path: Path) -> None:
    commit_by(path, 1, tries(1, 2))
    write_commit(path, 2)
    expire(path, before=2)
    with pytest.raises(TransactionExpiredException):
        chain_commit(path, tries(2, 2))
    with pytest.raises(TransactionExpiredException):
        chain_commit(path, tries(2, 2, since=1_700_000_000_001 + DAY))
    os.utime(commit_path(path, 2), (1_700_000_000, 1_700_000_000))
    assert chain_commit(path, tries(1, 2)) is None, "a first try has no earlier one"
    assert chain_commit(path, tries(3, 5, first_try=3)) is None
    assert chain_commit(path, tries(2, 2, since=1_700_000_000_001 + DAY)) is None, "the chain began after the last commit"


def test_commits_without_tags_are_of_no_chain(path: Path) -> None:
    commit_by(path, 1, None)
    assert chain_commit(path, tries(2, 2)) is None


# -- by the files of the table --------------------------------------------------------------------------------------------------

NAMES = {
    "as it is": f"staged/{ID}/a.parquet",
    "escaped": f"staged%2F{ID}%2Fa.parquet",
    "escaped within": f"staged/{ID.replace('-', '%2D')}/a.parquet",
    "another spelling": f"staged/./{ID}/a.parquet",
    "absolute": "file://{path}/staged/" + f"{ID}/a.parquet",
}


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("kind", ["add", "remove", "vector"])
@pytest.mark.parametrize("name", NAMES)
def test_a_table_that_names_a_file(path: Path, name: str, kind: str, checkpoint: bool) -> None:
    """Other files have the id in their names, too, before it and after it."""
    import time

    spelled = NAMES[name].replace("{path}", str(path))
    now = int(time.time() * 1000)
    vector = DeletionVectorDescriptor(
        storage_type="p", path_or_inline_dv=f"file://{path}/staged/{ID}/a.bin", offset=1, size_in_bytes=1, cardinality=1
    )
    actions = {
        "add": [add(spelled)],
        "remove": [remove(spelled, deletion_timestamp=now)],
        "vector": [add("x.parquet", deletion_vector=vector, stats='{"numRecords":3}')],
    }[kind]
    write_commit(path, 1, protocol(3, 7, reader_features=["deletionVectors"], writer_features=["deletionVectors"]))
    write_commit(
        path, 2, add("a%20b"), add(f"a/{ID}.parquet"), add(f"a%20/{ID}"), *actions, add(f"z/{ID}.parquet"), add("100%25")
    )
    if checkpoint:
        log_of(path).checkpoint()
    assert is_referenced(log_of(path).snapshot, ID)
    assert not is_referenced(log_of(path).snapshot, ID.replace("5", "6"))


def test_no_table_names_nothing(tmp_path: Path) -> None:
    assert not is_referenced(log_of(tmp_path / "none").snapshot, ID)


def test_a_table_that_cannot_be_read_tells_nothing(path: Path) -> None:
    write_commit(path, 1, protocol(3, 7, reader_features=["unheardOf"], writer_features=["unheardOf"]))
    with pytest.raises(DeltaUnsupportedTableFeatureException, match=str(path)) as raised:
        is_referenced(log_of(path).snapshot, ID)
    assert raised.value.version == 1
