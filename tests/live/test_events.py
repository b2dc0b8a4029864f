"""Runs that commits start: by asset events, by a watched table; sensors; and a person who answers."""

from __future__ import annotations

from datetime import UTC, datetime

from live.runs import Live, Run

COMMIT = "txn.commit"


def test_runs_started_by_events(live: Live) -> None:
    """Each version of the producer reaches the consumer once; the consumer's runs have no logical date, and can be run again."""
    produced, consumed = live.table("produced"), live.table("consumed")
    uri = produced.asset
    months = [f"2013-{number:02}" for number in range(1, 5)]
    live.finish([live.trigger("producer", month=month) for month in months])
    assert sorted(event["version"] for event in live.events(uri)) == [0, 1, 2, 3]

    def read() -> list[dict]:
        return [commit for run in live.runs_of("consumer") if run.state == "success" for commit in run.xcom("read")]

    # Of several commits at one moment, Airflow may hand over the last ones only together with a later one.
    later = live.trigger("producer", month="2013-05").wait()
    live.until(
        lambda: {commit["version"] for commit in read()} >= {0, 1, 2, 3}, "the consumer saw all versions", explain=later.explain
    )
    runs = live.finish(live.runs_of("consumer"))
    versions = [commit["version"] for commit in read()]
    assert sorted(versions) in ([0, 1, 2, 3], [0, 1, 2, 3, 4])
    assert {month for commit in read() if commit["version"] < 4 for month in commit["months"]} == set(months)
    assert {run.logical_date for run in runs} == {None}
    assert {run.run_type for run in runs} == {"asset_triggered"}
    # One transaction for each run, by its run id; run again as a whole, it finds itself in the log.
    assert consumed.stages() == {run.run_id: [(-1, 1)] for run in runs}
    version = consumed.version
    runs[0].clear_all()
    runs[0].wait_for_task(COMMIT, "success", tries=2)
    runs[0].wait()
    assert runs[0].xcom(COMMIT)["committedBefore"]
    assert consumed.version == version


def test_an_event_that_comes_again(live: Live) -> None:
    """A commit task that is run again emits the event of its version again: consumers know it by its key."""
    table = live.table("event-again")
    run = live.trigger("load", table=str(table)).wait()
    run.clear(COMMIT)
    run.wait_for_task(COMMIT, "success", tries=2)
    run.wait()
    first, second = run.events()
    assert (first["committed_before"], second["committed_before"]) == (False, True)
    assert first["dedupe_key"] == second["dedupe_key"]


def test_a_watched_table(live: Live) -> None:
    """Another engine writes; the triggerer is killed and started again in between: every version has its event."""
    table = live.table("watched")
    uri = table.asset

    def told() -> set[int]:
        return {commit["version"] for commit in commits()}

    def commits() -> list[dict]:
        return [commit for event in live.events(uri) for commit in event["payload"].get("commits", [event["payload"]])]

    for month in range(1, 4):
        table.append(f"2013-{month:02}")
    live.until(lambda: told() == {0, 1, 2}, "the watcher told of the first versions", explain=lambda: str(live.events(uri)))

    live.airflow.kill("triggerer")
    for month in range(4, 7):
        table.append(f"2013-{month:02}")
    live.airflow.start_again("triggerer")
    live.until(lambda: told() == set(range(6)), "the watcher told of all versions", explain=lambda: str(live.events(uri)))
    table.append("2013-07")
    live.until(lambda: told() == set(range(7)), "the watcher goes on", explain=lambda: str(live.events(uri)))

    # At least once: what comes twice has the same key.
    keys = {(commit["version"], commit["dedupe_key"]) for commit in commits()}
    assert len(keys) == 7

    def seen() -> set[int]:
        return {version for run in live.runs_of("watcher") if run.state == "success" for version in run.xcom("seen")}

    # What is told while the Dag is at max_active_runs, Airflow hands over only with the next event.
    def seen_with_the_next_commit() -> bool:
        if (
            not seen() >= set(range(7))
            and max(told()) == table.version
            and all(run.state == "success" for run in live.runs_of("watcher"))
        ):
            table.append("2013-08")
        return seen() >= set(range(7))

    live.until(seen_with_the_next_commit, "the Dag of the watched table saw all versions")


def test_sensors_in_vain(live: Live) -> None:
    """A deferred sensor whose time is up fails at once, without a retry, or is skipped."""
    run = live.trigger("in_vain", awaited=str(live.table("never-written"))).wait("failed")
    assert (run.state_of("fails"), run.tries_of("fails")) == ("failed", 1)
    assert run.state_of("is_skipped") == "skipped"


# -- Dags of the documentation as they are, with a real Spark in the worker ---------------------------------------------------


def test_example_events(live: Live) -> None:
    """The producer's commit starts the consumer, which copies the changes of exactly that version."""
    for dag_id in ("delta_events_consumer", "delta_events_producer"):
        live.unpause(dag_id)
    live.trigger("delta_events_producer").wait()
    live.until(lambda: live.runs_of("delta_events_consumer"), "the consumer of the example was started")
    (consumer,) = live.finish(live.runs_of("delta_events_consumer"))
    changes = live.table("order_changes")
    assert changes.version == 0
    assert len(changes.rows()) == 10
    assert {(row["change"], row["version"]) for row in changes.rows()} == {("insert", 0)}

    # The same event again, as after a clear of the producer's commit: nothing is added.
    consumer.clear_all()
    consumer.wait_for_task("copy.version.commit", "success", map_index=0, tries=2)
    consumer.wait()
    assert changes.version == 0


def test_example_approval(live: Live) -> None:
    """The commit waits for an answer, which comes over the REST API: approved runs publish, rejected ones leave nothing."""
    prices = live.table("price_list")
    live.unpause("delta_approval")
    run = live.trigger("delta_approval", date=datetime(2026, 1, 1, tzinfo=UTC))
    asked(run)
    assert prices.version == -1
    run.answer("price_list.approve", "Reject")
    run.wait()
    assert run.state_of("price_list.commit") == "skipped"
    assert prices.version == -1
    # The schedule has made a run, too, which waits for its answer.
    assert not [file for file in prices.staged_files() if run.xcom("price_list.start")["transactionId"] in file]

    run.clear_all()
    run.wait_for_task("price_list.write", "success", tries=2)
    asked(run)
    run.answer("price_list.approve", "Approve")
    run.wait()
    assert prices.version == 0
    assert len(prices.rows()) == 100


def asked(run: Run) -> None:
    """Wait until the run waits for an answer."""
    run.wait_for_task("price_list.approve", "awaiting_input", "deferred")
    run.wait_until_left("price_list.approve")
