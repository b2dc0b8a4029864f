"""The trigger: one event for a deferred sensor, a stream of them for a watcher, and where a watcher goes on after a restart."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger

from airflow_delta.assets.delta import commits_of_events, delta_asset_uri
from airflow_delta.exceptions import (
    CredentialsUnavailableException,
    DeltaIllegalArgumentException,
    DeltaLogCorruptedException,
    DeltaTableNotFoundException,
)
from airflow_delta.table.observe.watch import Watermark
from airflow_delta.triggers import watching as module
from airflow_delta.triggers.delta import DeltaTableVersionTrigger
from support import tables as by_hand
from support.state_store import StateStore

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "table"


@pytest.fixture(autouse=True)
def _events_are_handed_over_at_once(monkeypatch):
    monkeypatch.setattr(module, "HANDED_OVER", 0.0)


def trigger(path, store=None, **kwargs) -> DeltaTableVersionTrigger:
    made = DeltaTableVersionTrigger(str(path), **{"poll_interval": 0.01, **kwargs})
    made.asset_state_store = store
    return made


class Watching:
    """A watcher at work in an event loop."""

    def __init__(self, trigger) -> None:
        self._events = trigger.run()

    async def next(self, count: int = 1) -> list[dict]:
        """Return what is told of so many commits, in as many events as it takes."""
        told: list[dict] = []
        while len(told) < count:
            payload = (await asyncio.wait_for(anext(self._events), 120)).payload
            told += payload.get("commits", [payload])
        assert len(told) == count
        return told

    async def nothing(self, seconds: float = 0.1) -> None:
        waiting = asyncio.ensure_future(anext(self._events))
        done, _ = await asyncio.wait([waiting], timeout=seconds)
        assert not done
        waiting.cancel()
        await asyncio.wait([waiting])

    async def stop(self) -> None:
        await self._events.aclose()


def wait_once(made) -> dict:
    async def run():
        events = [event.payload async for event in made.run()]
        (event,) = events
        return event

    return asyncio.run(asyncio.wait_for(run(), 20))


class TestWatcher:
    def test_every_version_in_order(self, path):
        by_hand.create_table(path, partition_columns=["part"])
        for version in (1, 2, 3):
            file = by_hand.add(f"{version}.parquet", part="x", stats='{"numRecords":5}')
            by_hand.write_commit(path, version, by_hand.info("WRITE", read_version=0 if version == 2 else None), file)

        async def run():
            watching = Watching(trigger(path, after_version=0))
            events = await watching.next(3)
            await watching.stop()
            return events

        events = asyncio.run(run())
        assert [event["version"] for event in events] == [1, 2, 3]
        first = events[0]
        assert first["dedupe_key"] == f"{by_hand.TABLE_ID}/1"
        assert (first["observed_version"], first["operation"], first["num_records"]) == (3, "WRITE", 5)
        assert (first["table"], first["table_identity"], first["partitions"]) == (str(path), by_hand.TABLE_ID, [{"part": "x"}])
        assert isinstance(first["timestamp"], int)
        assert [event["read_version"] for event in events] == [None, 0, None]
        assert json.loads(json.dumps(events)) == events

    def test_what_was_there_before_is_no_event(self, path):
        by_hand.table_with_commits(path, 3)

        async def run():
            watching = Watching(trigger(path, StateStore()))
            first = asyncio.ensure_future(watching.next())
            await asyncio.sleep(0.2)
            by_hand.write_commit(path, 4, by_hand.info("OPTIMIZE"), by_hand.add("4.parquet", data_change=False))
            by_hand.append(path, 5)
            (event,) = await first
            await watching.stop()
            return event

        assert asyncio.run(run())["version"] == 5

    def test_the_state_follows_the_events(self, path):
        """Not before the yield, nor right after it: an event that was yielded may still be lost with the triggerer."""
        by_hand.table_with_commits(path, 2)
        store = StateStore()

        async def run():
            watching = Watching(trigger(path, store, after_version=0))
            await watching.next(2)
            assert store.versions == [0]  # where it begins, at once
            await watching.nothing()
            assert store.versions == [2]

        asyncio.run(run())

    def test_events_of_the_last_moments_come_again_after_a_restart(self, path, monkeypatch):
        monkeypatch.setattr(module, "HANDED_OVER", 3600.0)
        by_hand.table_with_commits(path, 2)
        store = StateStore()

        async def run(count):
            watching = Watching(trigger(path, store, after_version=0))
            events = await watching.next(count)
            await watching.stop()
            return events

        first = asyncio.run(run(2))
        by_hand.append(path, 3)
        second = asyncio.run(run(3))
        assert [event["version"] for event in second] == [1, 2, 3]
        assert {event["dedupe_key"] for event in first} < {event["dedupe_key"] for event in second}

    def test_a_restart_goes_on_where_it_was(self, path):
        by_hand.table_with_commits(path, 2)
        store = StateStore()

        async def run(more):
            watching = Watching(trigger(path, store, after_version=0))
            events = await watching.next(more)
            await watching.nothing()
            return [event["version"] for event in events]

        assert asyncio.run(run(2)) == [1, 2]
        by_hand.append(path, 3)
        assert asyncio.run(run(1)) == [3]

    def test_the_first_version_is_kept_before_anything_happens(self, path):
        by_hand.table_with_commits(path, 2)
        store = StateStore()

        async def look():
            watching = asyncio.ensure_future(Watching(trigger(path, store)).nothing(60))
            while not store.versions and not watching.done():
                await asyncio.sleep(0.01)
            watching.cancel()
            await asyncio.wait([watching])

        asyncio.run(look())
        assert store.versions == [2]
        by_hand.append(path, 3)  # while no triggerer runs

        async def run():
            (event,) = await Watching(trigger(path, store)).next()
            return event["version"]

        assert asyncio.run(run()) == 3

    def test_the_first_version_stays_the_first_while_it_cannot_be_kept(self, path, monkeypatch):
        by_hand.table_with_commits(path, 2)
        made, failed = trigger(path, StateStore()), []
        remember = made._remember

        async def fails_at_first(seen):
            failed.append(seen)
            if len(failed) == 1:
                by_hand.append(path, 3)
                raise TimeoutError("no answer")
            await remember(seen)

        monkeypatch.setattr(made, "_remember", fails_at_first)

        async def run():
            (event,) = await Watching(made).next()
            return event["version"]

        assert asyncio.run(run()) == 3

    def test_a_table_that_comes_and_goes(self, path):
        store = StateStore()

        async def run():
            watching = Watching(trigger(path, store))
            first = asyncio.ensure_future(watching.next())
            while not store.versions:  # it has seen that there is none
                await asyncio.sleep(0.01)
            by_hand.create_table(path, by_hand.add("0.parquet"))
            (event,) = await first
            second = asyncio.ensure_future(watching.next())
            await asyncio.sleep(0.1)
            by_hand.commit_path(path, 0).unlink()
            by_hand.create_table(path, by_hand.add("new.parquet"), id="another")
            (other,) = await second
            await watching.stop()
            return event["dedupe_key"], other["dedupe_key"]

        assert asyncio.run(run()) == (f"{by_hand.TABLE_ID}/0", "another/0")

    def test_many_versions_at_once(self, path):
        by_hand.table_with_commits(path, 250)

        async def run():
            watching = Watching(trigger(path, StateStore(), after_version=-1, poll_interval=0.01))
            events = await watching.next(251)
            await watching.stop()
            return [event["version"] for event in events]

        assert asyncio.run(run()) == list(range(251))

    def test_it_lives_on_after_an_error(self, path):
        by_hand.table_with_commits(path, 1)

        async def run():
            watching = Watching(trigger(path, StateStore(), after_version=0, poll_interval=0.1))
            await watching.next()
            by_hand.commit_path(path, 2).write_bytes(b'{"add":')
            second = asyncio.ensure_future(watching.next())
            await asyncio.sleep(0.2)
            assert not second.done()
            by_hand.commit_path(path, 2).unlink()
            by_hand.append(path, 2)
            (event,) = await second
            await watching.stop()
            return event["version"]

        assert asyncio.run(run()) == 2

    def test_an_error_that_does_not_pass_ends_it(self, path, monkeypatch):
        by_hand.table_with_commits(path, 1)
        look, looked = DeltaTableVersionTrigger._look_further, []
        monkeypatch.setattr(DeltaTableVersionTrigger, "_look_further", lambda self, seen: looked.append(seen) or look(self, seen))

        async def run():
            watching = Watching(trigger(path, StateStore(), after_version=0, poll_interval=0.01))
            await watching.next()
            by_hand.commit_path(path, 2).write_bytes(b'{"add":')
            looked.clear()
            await watching.next()

        with pytest.raises(DeltaLogCorruptedException):
            asyncio.run(run())
        assert len(looked) in (5, 6)  # the event before it may have been handed over in the middle of a look

    def test_a_table_that_is_gone_ends_it(self, path):
        """One that comes again is another table; nobody may ever create it."""
        by_hand.table_with_commits(path, 1)
        store = StateStore()

        async def run():
            watching = Watching(trigger(path, store, after_version=0))
            await watching.next()
            shutil.rmtree(path)
            await watching.next()

        with pytest.raises(DeltaTableNotFoundException, match=f"{by_hand.TABLE_ID}.* was there at version 1 and is gone"):
            asyncio.run(asyncio.wait_for(run(), 20))

        async def again():  # as the triggerer does, which is told of the table in its place
            watching = Watching(trigger(path, store, after_version=0))
            waiting = asyncio.ensure_future(watching.next())
            by_hand.create_table(path, by_hand.add("new.parquet"), id="another")
            (event,) = await waiting
            await watching.stop()
            return event["dedupe_key"]

        assert asyncio.run(again()) == "another/0"

    def test_a_mistake_in_the_code_ends_it(self, path, monkeypatch):
        by_hand.table_with_commits(path, 1)
        monkeypatch.setattr(DeltaTableVersionTrigger, "_look_further", lambda self, seen: seen.nothing)
        with pytest.raises(AttributeError):
            asyncio.run(Watching(trigger(path, StateStore(), after_version=0)).next())

    def test_it_waits_for_a_storage_that_does_not_answer(self, path, monkeypatch):
        by_hand.table_with_commits(path, 1)
        look, failed = DeltaTableVersionTrigger._look_further, []

        def fails_at_first(self, seen):
            failed.append(seen)
            if len(failed) < 9:
                raise TimeoutError("no answer")
            return look(self, seen)

        monkeypatch.setattr(DeltaTableVersionTrigger, "_look_further", fails_at_first)

        async def run():
            watching = Watching(trigger(path, StateStore(), after_version=0))
            (event,) = await watching.next()
            await watching.stop()
            return event["version"]

        assert asyncio.run(run()) == 1

    def test_versions_that_were_cleaned_up_are_passed_over(self, path):
        by_hand.table_with_commits(path, 12)
        by_hand.write_checkpoint_by_hand(path, 10, [by_hand.protocol(), by_hand.metadata()])
        for version in range(8):
            by_hand.commit_path(path, version).unlink()

        async def run():
            watching = Watching(trigger(path, StateStore(), after_version=3))
            events = await watching.next(5)
            await watching.stop()
            return [event["version"] for event in events]

        assert asyncio.run(run()) == [8, 9, 10, 11, 12]

    def test_the_state_keeps_up_with_a_busy_table(self, path, monkeypatch):
        """Each look finds something newer than what has just been handed over."""
        monkeypatch.setattr(module, "HANDED_OVER", 0.2)
        by_hand.create_table(path)
        store = StateStore()

        async def run():
            watching = Watching(trigger(path, store, after_version=0, poll_interval=0.02))
            for version in range(1, 31):
                by_hand.append(path, version)
                await watching.next()
                await asyncio.sleep(0.02)
            await watching.stop()

        asyncio.run(run())
        assert 0 < store.versions[0] < 30

    def test_another_table_whose_first_versions_are_gone(self, path):
        by_hand.table_with_commits(path, 20)
        store = StateStore()

        async def run(count):
            watching = Watching(trigger(path, store, after_version=19))
            events = await watching.next(count)
            await watching.nothing()
            return [event["dedupe_key"] for event in events]

        assert asyncio.run(run(1)) == [f"{by_hand.TABLE_ID}/20"]
        for version in range(21):
            by_hand.commit_path(path, version).unlink()
        by_hand.create_table(path, id="another")
        for version in range(1, 13):
            by_hand.append(path, version)
        by_hand.write_checkpoint_by_hand(path, 10, [by_hand.protocol(), by_hand.metadata(id="another")])
        for version in range(8):
            by_hand.commit_path(path, version).unlink()
        assert asyncio.run(run(5)) == [f"another/{version}" for version in range(8, 13)]
        assert asyncio.run(run(0)) == []

    def test_a_hole_in_the_log_is_passed_over(self, path):
        by_hand.table_with_commits(path, 12)
        by_hand.write_checkpoint_by_hand(path, 10, [by_hand.protocol(), by_hand.metadata()])
        by_hand.commit_path(path, 5).unlink()

        async def run():
            watching = Watching(trigger(path, StateStore(), after_version=3))
            events = await watching.next(8)
            await watching.nothing()
            return [event["version"] for event in events]

        assert asyncio.run(run()) == [4, 6, 7, 8, 9, 10, 11, 12]

    def test_a_log_of_which_only_a_checkpoint_is_left_after_it(self, path):
        by_hand.table_with_commits(path, 10)
        by_hand.write_checkpoint_by_hand(path, 10, [by_hand.protocol(), by_hand.metadata()])
        for version in range(11):
            by_hand.commit_path(path, version).unlink()

        async def run():
            watching = Watching(trigger(path, StateStore(), after_version=4))
            await watching.nothing()

        asyncio.run(run())
        made = trigger(path, after_version=4)
        assert made._look_further(Watermark(4)) == ([], Watermark(10, by_hand.TABLE_ID))

    def test_one_trigger_of_several_assets_fires_nothing(self, path):
        by_hand.table_with_commits(path, 2)

        async def run():
            await Watching(trigger(path, StateStore("one", "other"), after_version=0)).next()

        with pytest.raises(DeltaIllegalArgumentException, match="Give the trigger of each asset its own label="):
            asyncio.run(run())


class TestDeferral:
    def test_one_event(self, path):
        by_hand.table_with_commits(path, 3)
        event = wait_once(trigger(path, after_version=1, single_event=True))
        assert (event["status"], event["commit"]["version"], event["commit"]["observed_version"]) == ("success", 2, 3)

    def test_a_version(self, path):
        by_hand.table_with_commits(path, 3)
        assert wait_once(trigger(path, version=2, single_event=True))["commit"]["version"] == 2

    def test_without_a_version_it_waits_for_what_comes_after_the_present(self, path):
        by_hand.table_with_commits(path, 3)

        async def run():
            events = Watching(trigger(path, single_event=True))
            waiting = asyncio.ensure_future(events.next())
            await asyncio.sleep(0.2)
            by_hand.append(path, 4)
            ((event,),) = (await waiting,)
            return event["commit"]["version"]

        assert asyncio.run(run()) == 4

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"after_version": -1, "partitions": "id = 1"}, "DeltaIllegalArgumentException"),
            ({"after_version": -1, "partitions": "nope = 1"}, "PredicateException"),
        ],
    )
    def test_an_error_is_an_event(self, path, arguments, error):
        by_hand.table_with_commits(path, 3)
        event = wait_once(trigger(path, single_event=True, **arguments))
        assert (event["status"], event["error"]) == ("error", error)

    def test_a_storage_that_fails_for_a_moment_is_asked_again(self, path, monkeypatch):
        by_hand.table_with_commits(path, 1)
        made = trigger(path, after_version=0, single_event=True)
        look, failures = made._look_once, iter([OSError("one"), CredentialsUnavailableException("two")])

        def flaky(seen):
            if (error := next(failures, None)) is not None:
                raise error
            return look(seen)

        monkeypatch.setattr(made, "_look_once", flaky)
        assert wait_once(made)["commit"]["version"] == 1

    @pytest.mark.parametrize("waits_for", [{}, {"version": 9}, {"after_version": 1, "table_id": by_hand.TABLE_ID}])
    def test_a_table_that_is_gone_is_an_event(self, path, waits_for):
        by_hand.table_with_commits(path, 1)

        async def run():
            waiting = asyncio.ensure_future(Watching(trigger(path, single_event=True, **waits_for)).next())
            await asyncio.sleep(0.2)
            shutil.rmtree(path)
            return (await asyncio.wait_for(waiting, 20))[0]

        event = asyncio.run(run())
        assert (event["status"], event["error"]) == ("error", "DeltaTableNotFoundException")


@pytest.mark.s3
class TestObjectStore:
    @pytest.fixture
    def lake(self, s3_lake):
        """The client of a bucket to which there is a connection."""
        return s3_lake.client

    def test_a_watcher(self, lake, path):
        def put(version):
            name = by_hand.commit_path("t", version)
            lake.put_object(Bucket="lake", Key=str(name), Body=by_hand.commit_path(path, version).read_bytes())

        by_hand.table_with_commits(path, 4)
        for version in range(4):
            put(version)
        made = trigger("t", StateStore(), delta_conn_id="lake", after_version=0)

        async def run():
            watching = Watching(made)
            events = await watching.next(3)
            more = asyncio.ensure_future(watching.next())
            await asyncio.sleep(0.3)
            put(4)
            events += await more
            await watching.stop()
            return events

        events = asyncio.run(run())
        assert [event["version"] for event in events] == [1, 2, 3, 4]
        assert {event["table"] for event in events} == {"s3://lake/t"}
        # A look that finds nothing new is one question to the store.
        store, asked = made._open()[made.tables[0]].store, []
        for name in ("read", "read_many", "read_range", "head", "list_from"):
            original = getattr(store, name)
            setattr(
                store,
                name,
                lambda *args, _of=original, _name=name, **kwargs: asked.append((_name, *args[:1])) or _of(*args, **kwargs),
            )
        matches, _ = made._look_further(Watermark(4, by_hand.TABLE_ID))
        assert (matches, [name for name, of in asked if of]) == ([], ["list_from"])


class TestIdentity:
    def test_serialised_and_made_again(self, path):
        made = DeltaTableVersionTrigger(str(path), operation=("WRITE", "MERGE"), partitions="part = 'x'", label="l")
        classpath, kwargs = made.serialize()
        assert classpath == f"{DeltaTableVersionTrigger.__module__}.{DeltaTableVersionTrigger.__qualname__}"
        again = DeltaTableVersionTrigger(**json.loads(json.dumps(kwargs)))
        assert again.serialize() == (classpath, kwargs)
        assert again.state_key == made.state_key

    def test_equal_triggers_are_one_to_airflow(self, path):
        """Also after a round through the database, or each parse would start the watcher anew."""
        from airflow.models.trigger import Trigger

        made = [DeltaTableVersionTrigger(str(path), operation=given) for given in ("WRITE", ["WRITE"], ("WRITE",))]
        stored = Trigger._decrypt_kwargs(Trigger.encrypt_kwargs(made[0].serialize()[1]))
        assert (
            len(
                {BaseEventTrigger.hash(*one.serialize()) for one in made}
                | {BaseEventTrigger.hash(made[0].serialize()[0], stored)}
            )
            == 1
        )

    def test_a_label_tells_them_apart(self, path):
        one, other = (DeltaTableVersionTrigger(str(path), label=label) for label in ("a", "b"))
        assert BaseEventTrigger.hash(*one.serialize()) != BaseEventTrigger.hash(*other.serialize())
        assert one.state_key != other.state_key

    def test_the_state_does_not_depend_on_how_often_it_looks(self, path):
        assert DeltaTableVersionTrigger(str(path), poll_interval=5).state_key == DeltaTableVersionTrigger(str(path)).state_key

    def test_a_watcher_takes_it(self, path):
        made = DeltaTableVersionTrigger(str(path))
        asset = Asset(uri=delta_asset_uri(str(path)), watchers=[AssetWatcher(name="w", trigger=made)])
        assert asset.watchers[0].trigger is made
        assert not made.trigger_queue_inherited_from_task
        assert DeltaTableVersionTrigger(str(path), single_event=True).trigger_queue_inherited_from_task

    def test_what_a_consumer_makes_of_its_events(self, path):
        payloads = [{"version": version, "dedupe_key": f"id/{version}"} for version in (2, 1, 2)]
        events = [type("Event", (), {"extra": {"from_trigger": True, "payload": payload}}) for payload in payloads]
        assert [commit["version"] for commit in commits_of_events(events)] == [1, 2]
