"""Intents: commits of one table let a publication end first; publications settle each other."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time

import deltalake
import msgspec
import pytest
from deltalake import Transaction

from airflow_delta.contract.intents import INTENT_APP, STATE_APP
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentTransactionException,
    PublicationPendingException,
    TransactionAbortedException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import SetTransaction
from airflow_delta.log.actions.intents import unexpired
from airflow_delta.log.checkpoint.reader import CheckpointReader
from airflow_delta.log.checksum.checksum import MAX_OWN_SET_TRANSACTIONS, VersionChecksum
from airflow_delta.publication import open_publications, publication_states, settle, settle_named
from airflow_delta.table.commit.publish import publish
from airflow_delta.transaction import CommitPolicy
from airflow_delta.transaction.intents import IntentRule
from publication.lake import LakeTable, forgetful, publish_all, rows
from publication.points import at, killed, visited
from support.pauses import sleep_by

PART = "part = 'a'"
HASTY = CommitPolicy(intents=IntentRule(patience=0.3))


def test_a_commit_waits_for_the_publication_and_then_goes_on(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7], replaces=PART), lines.member("k", [40], replaces=PART)]
    single = lines.member("single", [50])
    result = []
    worker = threading.Thread(
        target=lambda: result.append(publish(lines.log(), single.handle, single.staged, attempt=new_attempt()))
    )

    def start() -> None:
        worker.start()
        time.sleep(0.3)
        assert worker.is_alive()

    with visited(at("intent lines", "after", start)):
        publish_all(members, anchor=orders.uri)
    worker.join()
    assert result[0].version == 3
    assert lines.states() == ["intent", "published"]
    assert lines.ids() == [40, 50]


def test_after_its_patience_a_commit_goes_on_as_a_foreign_one(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7], replaces=PART), lines.member("k", [40], replaces=PART)]
    killed(lambda: publish_all(members, anchor=orders.uri), "published orders", "before")
    single = lines.member("single", [50])
    began = time.monotonic()
    publish(lines.log(), single.handle, single.staged, attempt=new_attempt(), policy=HASTY)
    assert time.monotonic() - began < 5
    assert lines.ids() == [10, 20, 30, 50]
    with pytest.raises(ConcurrentAppendException):
        publish_all(members, anchor=orders.uri)


def test_a_commit_that_meets_no_open_intent_does_not_wait(orders: LakeTable, lines: LakeTable) -> None:
    publish_all([orders.member("k", [7]), lines.member("k", [40])])
    began = time.monotonic()
    lines.publish_ids("single", [50])
    orders.publish_ids("single", [50])
    assert time.monotonic() - began < 3


def test_publications_that_meet_crosswise_are_not_both_decided(orders: LakeTable, lines: LakeTable) -> None:
    one = [orders.member("k1", [7], replaces=PART), lines.member("k1", [40], replaces=PART)]
    two = [orders.member("k2", [8], replaces=PART), lines.member("k2", [41], replaces=PART)]
    with (
        visited(at("intent lines", "after", lambda: publish_all(two, anchor=lines.uri))),
        pytest.raises((ConcurrentAppendException, ConcurrentTransactionException)),
    ):
        publish_all(one, anchor=orders.uri)
    assert orders.ids() == [8]
    assert lines.ids() == [41]


def test_a_publication_rolls_a_decided_one_forward(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7]), lines.member("k", [40])]
    killed(lambda: publish_all(members, anchor=orders.uri), "published lines", "before")
    publish_all([orders.member("k2", [8]), lines.member("k2", [41])], anchor=lines.uri)
    assert orders.ids() == [1, 2, 3, 7, 8]
    assert lines.ids() == [10, 20, 30, 40, 41]


def test_a_publication_whose_tables_are_not_named_is_passed_over(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7]), lines.member("k", [40])]
    killed(lambda: publish_all(members, anchor=orders.uri), "published lines", "before")
    other = LakeTable(lines.path.with_name("other"))
    other.fill([1])
    later = [lines.member("k2", [41]), other.member("k2", [2])]
    publish_all(later, anchor=other.uri, open_table=lambda _uri: None)
    assert lines.ids() == [10, 20, 30, 41]
    publish_all(members, anchor=orders.uri)
    assert lines.ids() == [10, 20, 30, 40, 41]


def test_a_publication_passes_over_one_that_is_older_than_keys(orders: LakeTable, lines: LakeTable) -> None:
    """Nobody has ended it for a month, and the table forgets keys after a week."""
    killed(
        lambda: publish_all([orders.member("k", [7]), lines.member("k", [40])], anchor=orders.uri), "published lines", "before"
    )
    other = LakeTable(lines.path.with_name("other"))
    other.fill([1])
    with forgetful(lines):
        after = [lines.member("k2", [41]), other.member("k2", [2])]
        publish_all(after, anchor=other.uri, open_table=lambda _uri: None)
    assert lines.ids() == [10, 20, 30, 41]


def test_settle_ends_what_is_found_and_opens_only_what_is_named(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7]), lines.member("k", [40])]
    killed(lambda: publish_all(members, anchor=orders.uri), "published lines", "before")
    (found,) = open_publications(lines.log())
    assert found.anchor == orders.uri
    assert found.tables == (orders.uri, lines.uri)
    assert publication_states(lines.log()) == {found.publication: 0}
    assert publication_states(orders.log()) == {found.publication: 1}
    with pytest.raises(PublicationPendingException) as error:
        settle(lines.log(), found.publication, lambda _uri: None, patience=0.0)
    assert error.value.tables == (orders.uri, lines.uri)
    result = settle(lines.log(), found.publication, DeltaLog.for_table, patience=0.0)
    assert result.outcome == "published"
    assert lines.ids() == [10, 20, 30, 40]
    assert open_publications(lines.log()) == []


@pytest.mark.parametrize("decided", [False, True])
def test_an_intent_on_a_table_that_was_replaced_since_ends(orders: LakeTable, lines: LakeTable, decided: bool) -> None:
    """``CREATE OR REPLACE TABLE`` keeps the log, with the intent in it, and gives the table another id."""
    members = [orders.member("k", [7]), lines.member("k", [40])]
    killed(lambda: publish_all(members, anchor=orders.uri), f"published {'lines' if decided else 'orders'}", "before")
    lines.replace()
    asked = []

    def meet(publication: str) -> bool:
        asked.append(publication)
        assert len(asked) < 5, "the commit asks again and again"
        return settle_named([orders.log(), lines.log()], publication, patience=0.0) is not None

    single = lines.member("single", [50])
    policy = CommitPolicy(intents=IntentRule(meet=meet))
    publish(lines.log(), single.handle, single.staged, attempt=new_attempt(), policy=policy)
    assert (orders.ids(), lines.ids()) == ([1, 2, 3], [50])
    assert open_publications(lines.log()) == []


def test_a_publication_ends_one_on_a_table_that_was_replaced_since(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7]), lines.member("k", [40])]
    killed(lambda: publish_all(members, anchor=orders.uri), "published orders", "before")
    lines.replace()
    publish_all([orders.member("k2", [8]), lines.member("k2", [41])], anchor=orders.uri)
    assert (orders.ids(), lines.ids()) == ([1, 2, 3, 8], [41])
    assert open_publications(lines.log()) == []


def test_intents_of_an_anchor_that_is_gone_end_and_its_worker_does_not_publish(orders: LakeTable, lines: LakeTable) -> None:
    """The anchor would have been created by the publication."""
    fresh = LakeTable(lines.path.with_name("fresh"))
    members = [fresh.member("k", [7]), lines.member("k", [40])]
    killed(lambda: publish_all(members, anchor=fresh.uri), "published fresh", "before")
    (found,) = open_publications(lines.log())
    shutil.rmtree(fresh.path / "_delta_log")
    assert settle(fresh.log(), found.publication, DeltaLog.for_table, patience=0.0).outcome == "refused"
    assert open_publications(lines.log()) == []
    with pytest.raises(TransactionAbortedException):
        publish_all(members, anchor=fresh.uri)
    assert lines.ids() == [10, 20, 30]


def test_an_end_that_the_log_does_not_show_is_waited_for(orders: LakeTable, lines: LakeTable) -> None:
    killed(
        lambda: publish_all([orders.member("k", [7]), lines.member("k", [40])], anchor=orders.uri), "published orders", "before"
    )
    single = lines.member("single", [50])
    policy = CommitPolicy(intents=IntentRule(patience=0.3, meet=lambda _publication: True))
    publish(lines.log(), single.handle, single.staged, attempt=new_attempt(), policy=policy)
    assert lines.ids() == [10, 20, 30, 50]


def test_a_plan_that_was_altered_is_not_followed(orders: LakeTable, lines: LakeTable) -> None:
    from airflow_delta.exceptions import ManifestException

    members = [orders.member("k", [7]), lines.member("k", [40])]
    killed(lambda: publish_all(members, anchor=orders.uri), "published lines", "before")
    (plan,) = orders.path.glob("staged/*/publication-????????????????.json")
    plan.write_text(plan.read_text().replace(str(lines.path), str(lines.path.with_name("other"))))
    (found,) = open_publications(lines.log())
    with pytest.raises(ManifestException):
        settle(orders.log(), found.publication, DeltaLog.for_table, patience=0.0)


class TestIntentsThatTheNewestChecksumDoesNotHave:
    """Each commit meets them."""

    @pytest.fixture
    def announced(self, orders: LakeTable, lines: LakeTable) -> LakeTable:
        """A table with the open intent of a publication that nobody works on."""
        members = [orders.member("k", [7]), lines.member("k", [40])]
        killed(lambda: publish_all(members, anchor=orders.uri), "published orders", "before")
        return lines

    def met(self, table: LakeTable, key: str) -> list[str]:
        """Append as a task of its own; return the publications that the commit meets."""
        found: list[str] = []

        def meet(publication: str) -> bool:
            found.append(publication)
            return False

        single = table.member(key, [50])
        policy = CommitPolicy(intents=IntentRule(meet=meet))
        publish(table.log(), single.handle, single.staged, attempt=new_attempt(), policy=policy)
        return found

    def check(self, table: LakeTable) -> None:
        """Check also that the first commit tells the next ones, in its checksum."""
        (publication,) = (found.publication for found in open_publications(table.log()))
        assert self.met(table, "one") == [publication]
        newest = table.path / "_delta_log" / f"{table.log().update().version:020}.crc"
        known = msgspec.json.decode(newest.read_bytes(), type=VersionChecksum).open_intents or []
        assert [txn.app_id for txn in known] == [f"{INTENT_APP}{publication}"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CheckpointReader, "transactions_of", None)
            assert self.met(table, "two") == [publication]

    def test_more_transactions_than_a_checksum_lists(self, orders: LakeTable, lines: LakeTable) -> None:
        keys = [Transaction(f"app{number}", 1) for number in range(MAX_OWN_SET_TRANSACTIONS)]
        deltalake.write_deltalake(
            lines.uri, rows([50]), mode="append", commit_properties=deltalake.CommitProperties(app_transactions=keys)
        )
        members = [orders.member("k", [7]), lines.member("k", [40])]
        killed(lambda: publish_all(members, anchor=orders.uri), "published orders", "before")
        self.check(lines)

    def test_a_checkpoint_of_another_engine(self, announced: LakeTable) -> None:
        """Nobody counts the files, so there is no checksum after it; the checkpoint is opened for the metadata anyway."""
        announced.append([60])
        deltalake.DeltaTable(announced.uri).create_checkpoint()
        (publication,) = (found.publication for found in open_publications(announced.log()))
        assert [self.met(announced, key) for key in ("one", "two")] == [[publication], [publication]]

    @pytest.mark.parametrize("ours_before", [True, False])
    def test_a_checksum_of_another_engine(self, announced: LakeTable, ours_before: bool) -> None:
        """Delta Spark lists no transactions if there are more than a hundred."""
        log = announced.path / "_delta_log"
        ours = log / f"{announced.log().update().version:020}.crc"
        theirs = json.loads(ours.read_text())
        for name in ("setTransactions", "airflowDelta"):
            theirs.pop(name, None)
        commit = log / f"{announced.append([60]):020}.json"
        commit.write_text(commit.read_text().replace('{"commitInfo":{', '{"commitInfo":{"txnId":"theirs",'))
        commit.with_suffix(".crc").write_text(json.dumps({**theirs, "txnId": "theirs"}))
        if not ours_before:
            for checksum in log.glob("*.crc"):
                if checksum.stem <= ours.stem:
                    checksum.unlink()
            deltalake.DeltaTable(announced.uri).create_checkpoint()
            announced.append([61])
        self.check(announced)

    def test_keys_of_its_age_have_expired(self, announced: LakeTable) -> None:
        with forgetful(announced):
            self.check(announced)
            announced.log().checkpoint()
            for checksum in (announced.path / "_delta_log").glob("*.crc"):
                checksum.unlink()
            assert len(open_publications(announced.log())) == 1

    @pytest.mark.parametrize(
        ("intent", "state", "left"), [(1, None, 1), (1, 1, 0), (9, 1, 2), (1, 9, 2), (None, 1, 0), (9, None, 1)]
    )
    def test_an_intent_expires_with_its_end(self, intent: int | None, state: int | None, left: int) -> None:
        times = {f"{INTENT_APP}p": intent, f"{STATE_APP}p": state}
        txns = [SetTransaction(app_id=name, version=1, last_updated=time) for name, time in times.items() if time is not None]
        key = SetTransaction(app_id="key", version=1, last_updated=9)
        old = [SetTransaction(app_id="old", version=1, last_updated=time) for time in (5, None)]
        assert unexpired([*txns, *old, key], 5) == [*txns[:left], key]

    def test_an_intent_that_has_ended_is_not_met(self, announced: LakeTable) -> None:
        (found,) = open_publications(announced.log())
        settle(announced.log(), found.publication, DeltaLog.for_table, patience=0.0)
        announced.append([60])
        deltalake.DeltaTable(announced.uri).create_checkpoint()
        assert self.met(announced, "one") == []


class TestAClockThatIsWrong:
    """What a worker claims about the time of its intent and of its plan counts for nothing."""

    @pytest.fixture(params=[-3600, 3600], ids=["behind", "ahead"])
    def hour(self, request: pytest.FixtureRequest) -> float:
        """Seconds by which the clock is wrong of the worker that put the intents."""
        return float(request.param)

    @pytest.fixture
    def announced(self, orders: LakeTable, lines: LakeTable, hour: float) -> LakeTable:
        real = time.time
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.time", lambda: real() + hour)
            members = [orders.member("k", [7]), lines.member("k", [40])]
            killed(lambda: publish_all(members, anchor=orders.uri), "published orders", "before")
        return lines

    def commit(self, table: LakeTable, key: str) -> float:
        """Commit as one that waits a second; return how long it took."""
        single = table.member(key, [50])
        began = time.monotonic()
        policy = CommitPolicy(intents=IntentRule(patience=1.0))
        publish(table.log(), single.handle, single.staged, attempt=new_attempt(), policy=policy)
        return time.monotonic() - began

    def test_a_fresh_intent_is_waited_for_once(self, announced: LakeTable) -> None:
        assert self.commit(announced, "one") >= 1.0
        waited = []
        with pytest.MonkeyPatch.context() as patch:
            sleep_by(patch, waited.append)
            self.commit(announced, "two")
        assert waited == []

    def test_a_fresh_one_is_not_refused(self, announced: LakeTable, orders: LakeTable) -> None:
        (found,) = open_publications(announced.log())
        logs = [orders.log(), announced.log()]
        assert settle_named(logs, found.publication, patience=60.0) is None
        ended = settle_named(logs, found.publication, patience=60.0, waited=60.0)
        assert ended is not None
        assert ended.outcome == "refused"

    def test_one_that_the_store_has_had_for_days_is_not_waited_for(self, announced: LakeTable, orders: LakeTable) -> None:
        long_ago = time.time() - 3 * 24 * 3600
        for table in (orders, announced):
            for path in table.path.rglob("*"):
                os.utime(path, (long_ago, long_ago))
        (found,) = open_publications(announced.log())
        began = time.monotonic()
        self.commit(announced, "one")
        assert settle(orders.log(), found.publication, DeltaLog.for_table, patience=30.0).outcome == "refused"
        assert time.monotonic() - began < 20
