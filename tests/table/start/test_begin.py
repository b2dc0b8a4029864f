"""What start settles: identity, policy, the table's state and what a new table gets."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.changes import SetProperties
from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import (
    ConcurrentAppendException,
    DeltaAnalysisException,
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    DeltaUnsupportedTableFeatureException,
    InvalidProtocolVersionException,
    TransactionAlreadyCommittedException,
    TransactionExpiredException,
)
from airflow_delta.log.actions.actions import encode_actions
from airflow_delta.table.run import run_transaction
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.state.find_commit import TryChain
from support.actions import column, foreign_info, info, metadata, protocol, schema, txn
from support.table import Table, put_rows
from support.tables import commit_path, create_table, write_commit


def put_table(table: Table, *actions) -> None:
    log = Path(table.path) / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_bytes(encode_actions(actions or (protocol(), metadata(partition_columns=["part"]))))


@pytest.mark.parametrize(
    ("identity", "says"),
    [
        ({"app_id": "a"}, "app_id was given without txn_version"),
        ({"txn_version": 1}, "txn_version was given without app_id"),
        ({"app_id": "a", "txn_version": -1}, "-1"),
        ({"app_id": "a", "txn_version": True}, "True"),
        ({"app_id": "a", "txn_version": "1"}, "'1'"),
        ({"app_id": "a", "txn_version": 1.5}, "1.5"),
        ({"app_id": "a", "txn_version": 2**63}, "whole number"),
        ({"app_id": " ", "txn_version": 1}, "non-empty"),
        ({"transaction_key": ""}, "non-empty"),
        ({"transaction_key": "k", "app_id": "a", "txn_version": 1}, "not both"),
        ({"transaction_key": "k", "rerun_policy": "again"}, "rerun_policy"),
        ({"transaction_key": "k", "isolation_level": "Snapshot"}, "isolation_level"),
    ],
)
def test_what_is_no_identity_or_policy_is_refused(table, identity, says):
    with pytest.raises(DeltaIllegalArgumentException) as caught:
        table.begin(**identity)
    assert says in str(caught.value)


def test_a_table_that_does_not_exist(table):
    with pytest.raises(DeltaTableNotFoundException, match="DeltaCreateTableOperator"):
        table.begin(create=False)
    handle = table.begin(partition_by=["p"], configuration={"delta.appendOnly": "true"}, description="d", name="n")
    assert (handle.read_version, handle.table_id, handle.schema_string, handle.txn_version) == (-1, None, None, 0)
    assert handle.configuration["delta.appendOnly"] == "true"
    assert handle.configuration["delta.setTransactionRetentionDuration"] == "interval 90 days"
    assert (handle.name, handle.description, handle.partition_columns) == ("n", "d", ("p",))
    assert not table.path.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"schema": "no json"},
        {"schema": schema(column("a", "long"), column("A", "long"))},
        {"schema": schema(column("a", "long")), "partition_by": ["b"]},
        {"schema": schema(column("a", "long")), "partition_by": ["a"]},
        {"configuration": {"delta.appendOnly": "maybe"}},
        {"configuration": {"delta.noSuchProperty": "1"}},
    ],
)
def test_a_table_that_could_not_be_created_is_refused_at_start(table, options):
    with pytest.raises((DeltaAnalysisException, DeltaIllegalArgumentException)):
        table.begin(**options)


def test_an_existing_table(table):
    put_table(table)
    handle = table.begin()
    assert (handle.read_version, handle.partition_columns, handle.isolation_level) == (0, ("part",), "Serializable")
    assert handle.table_id == metadata().id
    assert handle.staging_path == f"{table.uri}/staged/{handle.transaction_id}"
    assert handle == TransactionHandle.from_dict(handle.to_dict())
    assert table.begin(partition_by=["PART"]).read_version == 0
    with pytest.raises(DeltaAnalysisException, match=r"partitioned by \(part\)"):
        table.begin(partition_by=["id"])


@pytest.mark.parametrize(
    ("actions", "error"),
    [
        ((protocol(4, 7, reader_features=["x"], writer_features=["x"]), metadata()), InvalidProtocolVersionException),
        (
            (protocol(3, 7, reader_features=["rocketFuel"], writer_features=["rocketFuel"]), metadata()),
            DeltaUnsupportedTableFeatureException,
        ),
    ],
)
def test_a_table_that_we_do_not_understand_is_refused_at_start(table, actions, error):
    put_table(table, *actions)
    with pytest.raises(error):
        table.begin()


def test_whether_an_earlier_try_has_committed(table):
    """The log tells tries of one chain from those before a clear, by the tags of their commits; or it cannot tell."""
    instance = {"airflow.dagId": "d", "airflow.runId": "r", "airflow.taskId": "t", "airflow.mapIndex": "-1"}

    def tries(number: int, max_tries: int, first: int = 1) -> TryChain:
        return TryChain({**instance, "airflow.tryNumber": str(number), "airflow.maxTries": str(max_tries)}, first)

    def begin(chain: TryChain, policy: str = "append"):
        return table.begin(transaction_key="key", rerun_policy=policy, tries=chain)

    put_table(table, protocol(), metadata())
    assert begin(tries(2, 1)).committed is None, "the first try was killed before its commit"
    log = Path(table.path) / "_delta_log"
    committed = info(tags=dict(tries(2, 3).tags))
    (log / f"{1:020}.json").write_bytes(encode_actions([committed, txn("key", 0)]))
    for policy in ("skip", "append", "replace", "fail"):
        assert begin(tries(3, 3), policy).committed.version == 1
    assert begin(tries(4, 6, 4)).committed is None, "cleared"
    with pytest.raises(TransactionAlreadyCommittedException):
        begin(tries(4, 6, 4), "fail")
    other = TryChain({**tries(3, 3).tags, "airflow.mapIndex": "0"})
    assert begin(other).committed is None, "another instance"

    # Commits that do not tell max_tries: by the number that the first try of the chain must have had.
    old = {name: value for name, value in tries(2, 3).tags.items() if name != "airflow.maxTries"}
    (log / f"{2:020}.json").write_bytes(encode_actions([info(tags=old), txn("key", 1)]))
    assert begin(tries(3, 3)).committed.version == 2
    assert begin(tries(3, 5, 3)).committed is None

    table.log().checkpoint()
    for version in range(3):
        (log / f"{version:020}.json").unlink()
    (log / f"{3:020}.json").write_bytes(encode_actions([info()]))
    with pytest.raises(TransactionExpiredException, match="an earlier try of this task"):
        begin(tries(3, 3))
    assert begin(tries(4, 6, 4)).committed is None, "the first try after a clear: what was before is not its own"


INSTANCE = {"airflow.dagId": "d", "airflow.runId": "r", "airflow.taskId": "t", "airflow.mapIndex": "-1"}


def run_alone(table: Table, number: int, *, meanwhile: Callable[[], Any] | None = None, mode: str = "append", **options: Any):
    """Run try ``number`` of an operation that is a transaction of its own.

    :param meanwhile: what happens between its start and its commit.
    """

    def stage(handle: TransactionHandle):
        put_rows(handle, [1])
        if meanwhile is not None:
            meanwhile()
        return [table.stage_files(handle, path="rows", mode=mode)]

    tries = TryChain({**INSTANCE, "airflow.tryNumber": str(number), "airflow.maxTries": "3"})
    options = {"transaction_key": "key", "attempt": new_attempt(number), "tags": tries.tags, "tries": tries, **options}
    return run_transaction(table.log(), stage, **options)


@pytest.mark.parametrize("max_restarts", [0, 1])
@pytest.mark.parametrize("policy", ["skip", "append", "replace", "fail"])
@pytest.mark.parametrize("faster", [1, 2])
def test_of_two_tries_that_are_alive_at_once_one_commits(table, policy, max_restarts, faster):
    """Airflow gives a try up, begins the next one, and the old one goes on; both work for the same commit."""
    run_alone(table, 1, transaction_key="before")

    def other() -> None:
        assert run_alone(table, faster, rerun_policy=policy).version == 1

    late = run_alone(table, 3 - faster, rerun_policy=policy, max_restarts=max_restarts, meanwhile=other)
    assert (late.version, late.committed_before) == (1, True)
    late = run_alone(table, 3 - faster, rerun_policy=policy)  # or it begins only now
    assert (late.version, late.committed_before) == (1, True)
    assert table.log().update().version == 1


def test_the_conflict_of_a_retry_is_told_although_the_log_was_cleaned_up(table):
    """The log does not know the key: it has nothing to forget."""
    for key in ("a", "b"):
        run_alone(table, 1, transaction_key=key)
    table.log().checkpoint()
    (table.path / "_delta_log" / f"{0:020}.json").unlink()

    def other() -> None:
        run_alone(table, 1, transaction_key="c")

    with pytest.raises(ConcurrentAppendException):
        run_alone(table, 2, mode="overwrite", meanwhile=other)


def test_a_retry_asks_the_log_no_further_back_than_its_run(table):
    """A key that was committed long ago, by a commit that has left the log, is no hint at another try."""
    result = run_alone(table, 1)
    tags = {**INSTANCE, "airflow.tryNumber": "1", "airflow.maxTries": "3"}
    for since, committed in ((result.timestamp, True), (result.timestamp + 60_000, False)):  # a run that was deleted since
        handle = table.begin(transaction_key="key", rerun_policy="append", tries=TryChain(tags, since=since))
        assert (handle.committed is not None) is committed

    table.log().checkpoint()
    (table.path / "_delta_log" / f"{0:020}.json").unlink()
    long_ago = int(time.time() * 1000) - 2 * DAY
    write_commit(table.path, 1, info(timestamp=long_ago), at=long_ago)
    tries = TryChain({**INSTANCE, "airflow.tryNumber": "3", "airflow.maxTries": "5"}, 2, int(time.time() * 1000))
    assert table.begin(transaction_key="key", rerun_policy="append", tries=tries).committed is None
    with pytest.raises(TransactionExpiredException):
        table.begin(transaction_key="key", rerun_policy="append", tries=replace(tries, since=None))
    assert table.begin(transaction_key="key", rerun_policy="skip", tries=replace(tries, since=None)).committed is not None


def test_what_was_published_under_a_former_key_is_not_published_again(table):
    put_table(table, protocol(), metadata(), txn("run/1", 0))
    assert table.begin(transaction_key="run/value=a", former_keys=["run/0"]).committed is None
    with pytest.raises(TransactionExpiredException, match="earlier version of this provider"):
        table.begin(transaction_key="run/value=a", former_keys=["run/0", "run/1"])
    assert table.begin(transaction_key="run/value=a", former_keys=["run/1"], rerun_policy="append").txn_version == 0


DAY = 24 * 3600 * 1000
POLICIES = ("skip", "replace", "fail")


class TestHorizon:
    """A table that keeps keys for 90 days and commits for 30; the run of the key is a hundred days old unless said otherwise."""

    @pytest.fixture(autouse=True)
    def _keys(self, table):
        self.table, self.now = table, int(time.time() * 1000)
        configuration = {"delta.setTransactionRetentionDuration": "interval 90 days"}
        put_table(table, self.info(days=200), protocol(), metadata(configuration=configuration))

    def ago(self, days: float) -> int:
        return int(self.now - days * DAY)

    def info(self, *, days: float):
        return info(timestamp=self.ago(days))

    def put(self, version: int, *actions, days: float) -> None:
        write_commit(self.table.path, version, self.info(days=days), *actions, at=self.ago(days))

    def committed(self, version: int = 1, *, days: float = 100, last: int = 0) -> None:
        self.put(version, txn("key", last, int(self.now - days * DAY)), days=days)

    def clean_up(self, before: int) -> None:
        """Leave a checkpoint, which drops expired keys, and the commits from a version on."""
        self.table.log().checkpoint()
        for version in range(before):
            (Path(self.table.path) / "_delta_log" / f"{version:020}.json").unlink()

    def begin(self, policy: str = "skip", *, days: float | None = 100, **options):
        identity = {"transaction_key": "key"} if "app_id" not in options else {}
        since = None if days is None else int(self.now - days * DAY)
        return self.table.begin(**{**identity, "rerun_policy": policy, "possible_since": lambda: since, **options})

    def cleaned(self) -> None:
        self.committed()
        self.put(2, days=20)
        self.put(3, days=10)
        self.clean_up(3)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_what_nobody_remembers_is_refused(self, policy):
        self.cleaned()
        with pytest.raises(TransactionExpiredException) as caught:
            self.begin(policy)
        assert "setTransactionRetentionDuration" in str(caught.value)
        assert "goes back to version 3" in str(caught.value)
        assert "rerun_policy='append'" in str(caught.value)
        assert (caught.value.table, caught.value.version) == (self.table.uri, 3)

    def test_the_way_out(self):
        self.cleaned()
        handle = self.begin("append")
        assert (handle.committed, handle.txn_version) == (None, 0)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_a_young_run_is_new_whatever_the_table_has_forgotten(self, policy):
        self.cleaned()
        assert self.begin(policy, days=89).committed is None
        assert self.begin(policy, days=None).committed is None

    def test_keys_that_never_expire_need_no_log(self):
        self.put(1, metadata(configuration={}), days=100)
        self.put(2, days=10)
        self.clean_up(2)
        assert self.begin().committed is None

    def test_an_expired_key_that_the_log_still_has(self):
        self.committed()
        self.put(2, days=10)
        found = self.begin().committed
        assert (found.version, found.txn_version) == (1, 0)
        assert self.begin("replace").txn_version == 1
        with pytest.raises(TransactionAlreadyCommittedException):
            self.begin("fail")

    def test_an_expired_key_whose_commit_is_gone_but_not_the_key(self):
        self.committed(days=80)
        self.put(2, days=10)
        self.clean_up(2)
        log = self.table.log()
        configuration = {"delta.setTransactionRetentionDuration": "interval 70 days"}
        self.put(3, metadata(configuration=configuration), days=1)
        assert log.update().set_transaction("key") is None
        found = self.begin(days=80).committed
        assert (found.version, found.txn_version) == (3, 0)

    def test_an_expired_key_that_only_a_commit_still_has(self):
        self.put(1, txn("other", 9), txn("key", 7, self.ago(100)), days=100)
        self.put(2, txn("key2", 8), days=99)
        self.clean_up(0)
        assert self.table.log().update().set_transaction("key", expired=True) is None
        assert self.begin(app_id="key", txn_version=7).committed.version == 1
        assert self.begin(app_id="key", txn_version=8).committed is None

    def test_a_log_that_goes_back_far_enough(self):
        self.put(1, days=101.01)
        self.put(2, days=99)
        self.clean_up(1)
        assert self.begin().committed is None
        with pytest.raises(TransactionExpiredException):
            self.begin(days=102)

    @pytest.mark.parametrize("claimed", [{"timestamp": 0}, {"timestamp": 1}, {"in_commit_timestamp": 0}, {}])
    @pytest.mark.parametrize(("stored", "known"), [(101.01, True), (99, False)])
    def test_how_far_the_log_goes_back_is_told_by_the_store(self, claimed, stored, known):
        """Not by what the oldest commit that is left says of itself."""
        write_commit(self.table.path, 1, info(**claimed), at=self.ago(stored))
        self.put(2, days=50)
        self.clean_up(1)
        if known:
            assert self.begin().committed is None
            return
        with pytest.raises(TransactionExpiredException) as caught:
            self.begin()
        said = [datetime.fromtimestamp(self.ago(days) // 1000, UTC).isoformat() for days in (100, 99)]
        assert f"may have been committed since {said[0]}, keys from before" in str(caught.value)
        assert f"the log goes back to version 1 of {said[1]} only" in str(caught.value)

    def test_a_checkpoint_without_commits_tells_no_time(self):
        self.put(1, days=50)
        self.clean_up(2)
        with pytest.raises(TransactionExpiredException, match="the log goes back to nowhere only"):
            self.begin()

    def test_a_log_whose_oldest_commit_tells_no_time(self):
        oldest = commit_path(self.table.path, 1)
        oldest.write_text(json.dumps(foreign_info(timestamp="yesterday")))
        self.put(2, days=50)
        self.clean_up(1)
        with pytest.raises(TransactionExpiredException, match="the log goes back to version 1 of 20"):
            self.begin()
        os.utime(oldest, (self.ago(102) / 1000, self.ago(102) / 1000))
        assert self.begin().committed is None, "its file does"

    def test_the_whole_log(self):
        self.put(1, days=99)
        assert self.begin(days=5000).committed is None

    def test_versions_that_grow(self):
        self.committed(last=7)
        self.put(2, days=10)
        assert self.begin(app_id="key", txn_version=7).committed.version == 1
        assert self.begin(app_id="key", txn_version=8).committed is None
        with pytest.raises(TransactionExpiredException, match="cannot be replaced"):
            self.begin("replace", app_id="key", txn_version=7)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"delta.universalFormat.enabledFormats": "iceberg"}, "DELTA_UNIVERSAL_FORMAT_VIOLATION"),
        ({"delta.universalFormat.enabledFormats": "hudi"}, "DELTA_UNIVERSAL_FORMAT_VIOLATION"),
        ({"delta.enableIcebergCompatV2": "true", "delta.columnMapping.mode": "none"}, "WRONG_REQUIRED_TABLE_PROPERTY"),
        ({"delta.enableIcebergCompatV2": "true", "delta.columnMapping.mode": "name"}, "icebergCompatV2"),
    ],
)
def test_a_new_table_that_no_commit_could_write_is_refused_at_once(tmp_path, properties, said):
    with pytest.raises(DeltaError, match=said):
        Table(tmp_path / "table").begin(configuration=properties)


def test_commits_that_other_formats_do_not_show_are_warned_about(tmp_path, caplog):
    table = Table(tmp_path / "table")
    create_table(table.path, configuration={"delta.universalFormat.enabledFormats": "hudi"})
    table.begin()
    assert f"Table {table.uri} has delta.universalFormat.enabledFormats=hudi, but" in caplog.text
    assert "readers of hudi see them after Delta Spark's next commit" in caplog.text


def test_only_a_commit_that_ends_a_violation_of_uniform_is_made(tmp_path, caplog):
    """Delta Spark refuses every other one, by whatever writer the table came into this state."""
    table = Table(tmp_path / "table")
    create_table(
        table.path, configuration={"delta.universalFormat.enabledFormats": "hudi", "delta.enableDeletionVectors": "true"}
    )
    handle = table.begin()
    assert "accepts only a commit that corrects this: delta.universalFormat.enabledFormats names hudi" in caplog.text
    with pytest.raises(DeltaUnsupportedOperationException, match=r"cannot be committed to.*DELTA_UNIVERSAL_FORMAT_VIOLATION"):
        table.publish(handle, table.stage_rows(handle, [1]))
    for change in (SetProperties({"x": "y"}), SetProperties({"delta.checkpointInterval": "9"})):
        with pytest.raises(DeltaUnsupportedOperationException, match="rules out deletion vectors"):
            table.run(plan_alter, changes=[change])
    assert table.run(plan_alter, changes=[SetProperties({"delta.enableDeletionVectors": "false"})]).version == 1
    caplog.clear()
    table.begin()
    assert "readers of hudi see them after" in caplog.text
