"""Who waits for a publication, asks for versions that belong together, or settles one: sensor, trigger, hook, command line."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time import task_runner
from deltalake import DeltaTable, write_deltalake

from airflow_delta import exceptions
from airflow_delta.cli import commands
from airflow_delta.cli.definition import get_delta_cli_commands
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.sensors.publication import DeltaPublicationSensor
from airflow_delta.triggers.delta import DeltaTableVersionTrigger
from airflow_delta.triggers.next_publication import next_publication
from airflow_delta.triggers.publication import DeltaPublicationTrigger
from support.publications import AFTER, BEFORE, NAMES, Killed, World, kill_at_an_entry, world_of_three_tables  # noqa: F401
from support.running_tasks import context, kept
from support.state_store import StateStore

pytestmark = pytest.mark.usefixtures("outside_of_the_task_runner")


def tables_of(world: World) -> list[str]:
    return [world.table(name) for name in NAMES]


@pytest.fixture
def half(world, killed_at):
    """A publication that is decided, and that the last table lacks."""
    handles = world.begin()
    killed_at(5)
    with pytest.raises(Killed):
        world.commit(handles, world.stage(handles))
    killed_at(None)
    return world


class TestSensor:
    def sensor(self, world, **kwargs) -> DeltaPublicationSensor:
        return DeltaPublicationSensor(task_id="wait", tables=tables_of(world), **kwargs)

    def test_waits_for_all_tables(self, half):
        sensor = self.sensor(half, after_version=0)
        running = context(sensor)
        assert not sensor.poke(running)
        half.tries = 1
        half.abort([half.run(f"{name}.start") for name in NAMES], states={"p.commit": "failed"})
        found = sensor.poke(running)
        assert found
        assert set(found.xcom_value) == {"publication", "versions", "table_uris"}
        assert list(found.xcom_value["versions"]) == tables_of(half)
        assert all(half.rows()[name] == AFTER[name] for name in NAMES)

    def test_what_was_there_before_is_not_new(self, world):
        world.publish()
        sensor = self.sensor(world)
        assert not sensor.poke(context(sensor))
        assert kept()[DeltaPublicationSensor.state_key]["version"] > 0
        assert self.sensor(world, after_version=-1).poke(context(sensor))

    def test_a_retry_keeps_what_it_has_seen(self, world):
        first = self.sensor(world)
        assert not first.poke(context(first))
        world.publish()
        again = self.sensor(world)
        assert again.poke(context(again, try_number=2))

    def test_single_commits_are_no_publication(self, world):
        sensor = self.sensor(world)
        running = context(sensor)
        assert not sensor.poke(running)
        for table in tables_of(world):
            write_deltalake(table, pa.table({"id": pa.array([5], pa.int64())}), mode="append")
        assert not sensor.poke(running)

    def test_deferred(self, world):
        sensor = self.sensor(world, deferrable=True)
        with pytest.raises(TaskDeferred) as deferred:
            sensor.execute(context(sensor))
        path, arguments = deferred.value.trigger.serialize()
        assert (path, arguments["tables"]) == ("airflow_delta.triggers.publication.DeltaPublicationTrigger", tables_of(world))
        result = world.publish()
        event = asyncio.run(first_event(DeltaPublicationTrigger(**{**arguments, "poll_interval": 0.1})))
        assert sensor.execute_complete({}, event)["publication"] == result["publication"]

    @pytest.mark.parametrize("tables", [[], ["a", "a"], [""]])
    def test_tables_that_make_no_sense(self, tables):
        sensor = DeltaPublicationSensor(task_id="wait", tables=tables)
        with pytest.raises(exceptions.DeltaIllegalArgumentException, match="each once"):
            sensor.poke(context(sensor))

    def test_a_first_look_that_fails_silently(self, world, monkeypatch):
        def fail(*_):
            raise OSError("for a moment")

        monkeypatch.setattr("airflow_delta.hooks.delta.DeltaHook.get_log", fail)
        with pytest.raises(OSError, match="for a moment"):
            self.sensor(world, deferrable=True).execute(context(self.sensor(world)))
        sensor = self.sensor(world, deferrable=True, silent_fail=True, after_version=3)
        with pytest.raises(TaskDeferred) as deferred:
            sensor.execute(context(sensor))
        assert deferred.value.trigger.after_version == 3
        never = self.sensor(world, deferrable=True, never_fail=True)
        with pytest.raises(AirflowSkipException):
            never.execute(context(never))


@pytest.mark.parametrize("tables", [["lake/t/staged/1/_preview"], ["orders", "lake/t/staged/1/_preview"]])
def test_previews_are_no_tables_to_wait_for(tables):
    sensor = DeltaPublicationSensor(task_id="wait", tables=tables)
    with pytest.raises(exceptions.DeltaIllegalArgumentException, match="not a table to wait for"):
        sensor.execute(context(sensor))
    with pytest.raises(exceptions.DeltaIllegalArgumentException, match="not a table to wait for"):
        DeltaPublicationTrigger(tables)
    with pytest.raises(exceptions.DeltaIllegalArgumentException, match="not a table to wait for"):
        DeltaTableVersionTrigger(tables[-1])


async def first_event(trigger) -> dict:
    async for event in trigger.run():
        return event.payload
    raise AssertionError("no event")


class TestTrigger:
    def test_a_watcher_reports_each_and_goes_on_after_a_restart(self, world):
        store = StateStore()

        def trigger():
            made = DeltaPublicationTrigger(tables_of(world), after_version=0, poll_interval=0.1)
            made.asset_state_store = store
            return made

        published = [world.publish()["publication"]]
        assert asyncio.run(first_event(trigger()))["publication"] == published[0]
        # The triggerer may have died before it passed the event on.
        assert asyncio.run(first_event(trigger()))["publication"] == published[0]

    def test_an_event_that_was_passed_on_is_not_repeated(self, world, monkeypatch):
        monkeypatch.setattr("airflow_delta.triggers.watching.HANDED_OVER", 0.0)
        store = StateStore()
        first = world.publish()["publication"]

        def trigger():
            made = DeltaPublicationTrigger(tables_of(world), after_version=0, poll_interval=0.1)
            made.asset_state_store = store
            return made

        async def watch(seen):
            async for event in trigger().run():
                seen.append(event.payload["publication"])

        async def watched(done, looks=1200) -> list[str]:
            seen: list[str] = []
            watching = asyncio.create_task(watch(seen))
            for _ in range(looks):
                await asyncio.sleep(0.05)
                if done(seen):
                    break
            watching.cancel()
            return seen

        def kept() -> int:
            values = [value for value in task_runner.SUPERVISOR_COMMS.values.values() if "table_id" in value]
            return max((value["version"] for value in values), default=-1)

        assert asyncio.run(watched(lambda seen: seen and kept() > 0)) == [first]
        assert asyncio.run(watched(lambda seen: seen, looks=40)) == []

    def of_all(self, world, count: int) -> list[str]:
        """Return the first publications that a watcher reports."""

        async def watch() -> list[str]:
            seen: list[str] = []
            made = DeltaPublicationTrigger(tables_of(world), after_version=0, poll_interval=0.05)
            async for event in made.run():
                seen.append(event.payload["publication"])
                if len(seen) == count:
                    break
            return seen

        return asyncio.run(asyncio.wait_for(watch(), 20))

    def test_one_whose_key_has_expired_on_a_table_holds_up_no_other(self, world):
        """With retentions that differ, the first table still has commits of publications that another one has forgotten."""
        first = world.publish()["publication"]
        other = DeltaTable(world.table(NAMES[1]))
        other.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 0 days"})
        assert self.of_all(world, 1) == [first]

    def test_one_from_before_a_table_was_created_again_holds_up_no_other(self, world):
        world.publish()
        for commit in (world.lake / NAMES[0] / "_delta_log").glob("*.json"):
            os.utime(commit, (time.time() - 3600,) * 2)
        shutil.rmtree(world.lake / NAMES[1])
        write_deltalake(world.table(NAMES[1]), pa.table({"id": pa.array([0], pa.int64())}))
        later = World(world.lake, run_id="later").publish()["publication"]
        assert self.of_all(world, 1) == [later]

    def test_a_table_that_is_gone_ends_a_watcher(self, world):
        """As one of versions: after five looks, since it may be on its way back."""
        world.publish()
        trigger = DeltaPublicationTrigger(tables_of(world), after_version=0, poll_interval=0.01)

        async def watch():
            async for _ in trigger.run():
                shutil.rmtree(tables_of(world)[0])

        with pytest.raises(exceptions.DeltaTableNotFoundException, match="is gone"):
            asyncio.run(asyncio.wait_for(watch(), 60))

    def test_a_watcher_waits_for_a_storage_that_does_not_answer(self, world, monkeypatch):
        published = world.publish()["publication"]
        failed = iter(range(8))

        def fails_at_first(logs, seen):
            if next(failed, None) is not None:
                raise TimeoutError("no answer")
            return next_publication(logs, seen)

        monkeypatch.setattr("airflow_delta.triggers.publication.next_publication", fails_at_first)
        trigger = DeltaPublicationTrigger(tables_of(world), after_version=0, poll_interval=0.01)
        assert asyncio.run(asyncio.wait_for(first_event(trigger), 60))["publication"] == published

    def test_two_assets_with_one_trigger(self, world):
        trigger = DeltaPublicationTrigger(tables_of(world), after_version=0, poll_interval=0.01)
        trigger.asset_state_store = StateStore("one", "other")
        with pytest.raises(exceptions.DeltaIllegalArgumentException, match="Several assets share one trigger"):
            asyncio.run(first_event(trigger))

    def test_an_error_is_the_tasks(self, world):
        trigger = DeltaPublicationTrigger(["a name"], delta_conn_id="delta_default", poll_interval=0.1, single_event=True)
        event = asyncio.run(first_event(trigger))
        assert (event["status"], event["error"]) == ("error", "DeltaIllegalArgumentException")


def run_cli(capsys, *arguments: str) -> dict | list:
    """Run a command in this process, and return its JSON."""
    from airflow.cli.cli_parser import get_parser

    args = get_parser().parse_args(["delta", *arguments, "-o", "json"])
    args.func(args)
    return json.loads(capsys.readouterr().out)


class TestCommandLine:
    def test_versions_and_settle(self, half, capsys):
        tables = tables_of(half)
        before = run_cli(capsys, "versions", *tables)
        assert list(before["versions"]) == tables
        ((publication, names),) = before["held_back"].items()
        assert len(names) == 2
        (settled,) = run_cli(capsys, "settle", *tables)
        assert (settled["publication"], settled["outcome"]) == (publication, "published")
        assert half.rows() == AFTER
        assert run_cli(capsys, "versions", *tables)["held_back"] == {}
        assert run_cli(capsys, "settle", *tables) == []

    def test_an_undecided_one_is_refused(self, world, killed_at, capsys):
        handles = world.begin()
        killed_at(3)
        with pytest.raises(Killed):
            world.commit(handles, world.stage(handles))
        killed_at(None)
        (settled,) = run_cli(capsys, "settle", *tables_of(world), "--patience", "0")
        assert settled["outcome"] == "refused"
        assert world.rows() == BEFORE

    def test_an_error_controls_no_terminal(self, half, capsys):
        """It names tables as another one's log calls them."""
        with pytest.raises(SystemExit, match="cannot be settled") as error:
            run_cli(capsys, "settle", tables_of(half)[-1], "--patience", "0")
        hostile = exceptions.PublicationPendingException(f"{error.value}\x1b[2J")
        assert "\x1b" not in commands.error_line(hostile)

    def test_the_commands_are_there(self):
        (group,) = get_delta_cli_commands()
        assert {"versions", "settle"} <= {command.name for command in group.subcommands}


def test_a_link_settles_the_table_behind_it(half, tmp_path):
    links = []
    for name in NAMES:
        link = tmp_path / f"link to {name}"
        link.symlink_to(half.table(name))
        links.append(str(link))
    DeltaHook().get_versions(links, settle=True)
    assert half.rows() == AFTER
