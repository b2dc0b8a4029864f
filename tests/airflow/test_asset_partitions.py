"""Airflow's partitions of an asset: keys of Dag runs, which our events carry and our keys can be made of."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from support.dag_runs import run_to_end, scheduler_dag
from support.readers import rows

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_database")]

DAGS = """
from datetime import date, datetime
import pyarrow as pa
from airflow.sdk import DAG, PartitionedAssetTimetable, PartitionedAtRuntime, StartOfMonthMapper, task
from airflow_delta import delta_transaction
from airflow_delta.assets.delta import commits_of_events, delta_asset

ORDERS, REPORTS = {folder!r} + "/orders", {folder!r} + "/reports"
DAILY = {folder!r} + "/daily"
ASSET, DAY, CHANGED = delta_asset(ORDERS), delta_asset(DAILY), delta_asset({folder!r} + "/changed")
ALWAYS = dict(start_date=datetime(2026, 1, 1), catchup=False, is_paused_upon_creation=False)

with DAG("partition_producer", schedule=PartitionedAtRuntime(), **ALWAYS):
    with delta_transaction("txn", table=ORDERS, transaction_key="orders/{{{{ dag_run.partition_key }}}}"):
        @task.delta_stage(engine="arrow")
        def load(dag_run):
            return pa.table({{"region": [dag_run.partition_key]}})
        load()

with DAG("partition_several", schedule=None, **ALWAYS):
    @task(outlets=[ASSET])
    def tell(*, outlet_events):
        outlet_events[ASSET].add_partitions(["north", "south"])
    tell()

with DAG("partition_consumer", schedule=PartitionedAssetTimetable(assets=ASSET), **ALWAYS):
    with delta_transaction("txn", table=REPORTS, transaction_key="reports/{{{{ dag_run.partition_key }}}}"):
        @task.delta_stage(engine="arrow")
        def report(dag_run, triggering_asset_events):
            (commit,) = commits_of_events(triggering_asset_events[ASSET])
            return pa.table({{"region": [dag_run.partition_key], "version": [commit["version"]]}})
        report()

with DAG("partition_by_day", schedule=PartitionedAtRuntime(), **ALWAYS):
    key = "{{{{ dag_run.conf['days'] | join }}}}"
    with delta_transaction("txn", table=DAILY, partition_by="day", transaction_key=key, key_check="off", partition_events=True):
        @task.delta_stage(engine="arrow")
        def days(dag_run):
            days = [date.fromisoformat(day) for day in dag_run.conf["days"]]
            return pa.table({{"day": days, "number": [day.day for day in days]}})
        days()

with DAG("partition_of_day", schedule=PartitionedAssetTimetable(assets=DAY), **ALWAYS):
    @task
    def read(dag_run, triggering_asset_events):
        (commit,) = commits_of_events(triggering_asset_events[DAY])
        return [dag_run.partition_key, commit["version"], commit["num_partition_keys"]]
    read()

by_month = PartitionedAssetTimetable(
    assets=CHANGED, default_partition_mapper=StartOfMonthMapper(input_format="%Y-%m-%d")
)
with DAG("partition_by_month", schedule=by_month, **ALWAYS):
    @task
    def sum_up(dag_run):
        return dag_run.partition_key
    sum_up()

with DAG("partition_any_day", schedule=[DAY], **ALWAYS):
    @task
    def never_mind():
        pass
    never_mind()

with DAG("partition_of_none", schedule=[ASSET], **ALWAYS):
    @task
    def never():
        pass
    never()
"""


class Scheduler:
    """Makes runs with a partition key as Airflow's scheduler does, and runs them."""

    def __init__(self, folder: Path) -> None:
        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

        self.folder = folder
        path = folder / "partitions.py"
        path.write_text(DAGS.format(folder=str(folder)))
        self.bag = DagBag(dag_folder=str(path))
        assert not self.bag.import_errors
        DagBundlesManager().sync_bundles_to_db()
        sync_bag_to_db(self.bag, "tests", None)

    def run(self, dag_id: str, run_id: str, key: str | None = None, **conf: Any) -> str:
        """Run a Dag by hand; return the state of the run."""
        from airflow.sdk.timezone import utcnow
        from airflow.utils.session import create_session
        from airflow.utils.types import DagRunTriggeredByType, DagRunType

        with create_session() as session:
            dag_run = scheduler_dag(self.bag.dags[dag_id]).create_dagrun(
                run_id=run_id,
                run_after=utcnow(),
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state="running",
                partition_key=key,
                conf=conf,
                session=session,
            )
            return self._to_end(dag_run, session)

    def run_what_is_due(self, dag_id: str = "partition_consumer") -> list[tuple[str, str, str]]:
        """Make the runs that events with keys are for, and run those of a Dag; return Dag, key and state of each."""
        from airflow.jobs.job import Job
        from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            SchedulerJobRunner(job=Job())._create_dagruns_for_partitioned_asset_dags(session)
            session.commit()
            queued = select(DagRun.id).where(DagRun.state == "queued", DagRun.dag_id == dag_id)
            due = session.scalars(queued.order_by(DagRun.partition_key)).all()
        return [self._run_due(dag_run_id) for dag_run_id in due]

    def _run_due(self, dag_run_id: int) -> tuple[str, str, str]:
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session

        with create_session() as session:
            dag_run = session.get_one(DagRun, dag_run_id)
            of = (dag_run.dag_id, dag_run.partition_key)
            return (*of, self._to_end(dag_run, session))

    def _to_end(self, dag_run: Any, session: Any) -> str:
        dag = self.bag.dags[dag_run.dag_id]
        dag_run.dag = scheduler_dag(dag)
        dag_run.verify_integrity(session=session, dag_version_id=dag_run.created_dag_version_id)
        run_to_end(dag_run, dag, session)
        return str(dag_run.state)

    @staticmethod
    def events() -> list[tuple[str, str | None]]:
        """Dag and partition key of the events so far, oldest first."""
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            ours = select(AssetEvent).where(AssetEvent.source_dag_id.like("partition_%"))
            found = session.scalars(ours.order_by(AssetEvent.id))
            return [(event.source_dag_id, event.partition_key) for event in found]


@pytest.fixture(scope="module")
def scheduler(airflow_database: None, tmp_path_factory: pytest.TempPathFactory) -> Scheduler:
    return Scheduler(tmp_path_factory.mktemp("partitions"))


def test_a_partition_goes_through_the_dags(scheduler: Scheduler) -> None:
    from airflow.models.asset import AssetDagRunQueue
    from airflow.utils.session import create_session
    from sqlalchemy import select

    assert scheduler.run("partition_producer", "one", "eu") == "success"
    assert scheduler.events() == [("partition_producer", "eu")]
    assert scheduler.run_what_is_due() == [("partition_consumer", "eu", "success")]
    assert rows(f"{scheduler.folder}/reports") == [{"region": "eu", "version": 0}]

    # Another run of the same partition is the same work: its event is about the same commit, and neither Dag publishes again.
    assert scheduler.run("partition_producer", "two", "eu") == "success"
    assert scheduler.run_what_is_due() == [("partition_consumer", "eu", "success")]
    assert [len(rows(f"{scheduler.folder}/{name}")) for name in ("orders", "reports")] == [1, 1]

    assert scheduler.run("partition_producer", "three", "us") == "success"
    assert scheduler.run_what_is_due() == [("partition_consumer", "us", "success")]
    assert sorted(row["region"] for row in rows(f"{scheduler.folder}/orders")) == ["eu", "us"]
    assert sorted((row["region"], row["version"]) for row in rows(f"{scheduler.folder}/reports")) == [("eu", 0), ("us", 1)]

    # A run without a key has no identity here; and an event with one is not for Dags without partitions.
    assert scheduler.run("partition_producer", "four") == "failed"
    with create_session() as session:
        waiting = session.scalars(select(AssetDagRunQueue).where(AssetDagRunQueue.target_dag_id == "partition_of_none")).all()
        assert waiting == []


def test_several_keys_of_a_task_of_ones_own(scheduler: Scheduler) -> None:
    before = len(scheduler.events())
    assert scheduler.run("partition_several", "five") == "success"
    assert sorted(key for _, key in scheduler.events()[before:]) == ["north", "south"]


def test_a_commit_tells_the_partitions_that_it_changed(scheduler: Scheduler) -> None:
    """One event for each, besides the table's own; a retry of a commit that was written emits the same."""
    from airflow.models.asset import AssetDagRunQueue
    from airflow.utils.session import create_session
    from sqlalchemy import select

    days = ["2026-11-24", "2026-11-25"]

    def keys(since: int) -> list[str | None]:
        return sorted((key for _, key in scheduler.events()[since:]), key=str)

    before = len(scheduler.events())
    assert scheduler.run("partition_by_day", "days", days=days) == "success"
    assert keys(before) == [*days, None]
    assert scheduler.run_what_is_due("partition_of_day") == [("partition_of_day", day, "success") for day in days]
    with create_session() as session:  # the table's own event is for Dags without partitions
        waiting = select(AssetDagRunQueue).where(AssetDagRunQueue.target_dag_id == "partition_any_day")
        assert len(session.scalars(waiting).all()) == 1

    # Another run of the same transaction key finds the commit of the first, and says what the log says of it.
    before = len(scheduler.events())
    assert scheduler.run("partition_by_day", "again", days=days) == "success"
    assert keys(before) == [*days, None]

    # In a run of a partition, the table's event has its key already.
    before = len(scheduler.events())
    assert scheduler.run("partition_by_day", "one", "2026-11-26", days=["2026-11-26"]) == "success"
    assert keys(before) == ["2026-11-26"]


def test_aliases_have_no_partitions() -> None:
    from airflow.sdk import DAG, AssetAlias

    from airflow_delta import delta_transaction
    from airflow_delta.exceptions import DeltaIllegalArgumentException

    for options in ({"table": "/lake/t", "outlets": [AssetAlias("any")]}, {"table": "/lake/{{ params.t }}"}):
        with DAG("of_alias", schedule=None), pytest.raises(DeltaIllegalArgumentException, match="partition_events"):
            delta_transaction("txn", partition_events=True, **options)


def test_backfill_of_what_has_changed(
    scheduler: Scheduler, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of a Dag for partitions that another engine changed, by the mapper of the Dag; only shown, then made."""
    from airflow.cli import cli_parser

    changed = f"{scheduler.folder}/changed"
    days = [date(2026, 2, 27), date(2026, 2, 28), date(2026, 3, 1)]
    for some in (days, days[:2]):
        rows = pa.table({"day": some, "number": [day.day for day in some]})
        deltalake.write_deltalake(changed, rows, mode="append", partition_by=["day"])
    parser = cli_parser.get_parser()

    def runs(*options: str, dag_id: str = "partition_by_month", table: str = changed) -> list[dict[str, Any]]:
        args = parser.parse_args(["delta", "backfill", table, "--dag", dag_id, "-o", "json", *options])
        args.func(args)
        return json.loads(capsys.readouterr().out.splitlines()[-1])  # after what Airflow says of a configuration without secrets

    february = {"dag": "partition_by_month", "partition_key": "2026-02", "versions": [0, 1], "run_id": None}
    march = {"dag": "partition_by_month", "partition_key": "2026-03", "versions": [0], "run_id": None}
    assert runs("--since=-1") == [february, march]
    assert runs("--since=0") == [{**february, "versions": [1]}]
    assert runs("--since=1") == []
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "delta", "host": str(scheduler.folder)}))
    assert runs("--since=-1", "--conn-id=lake", table="changed") == [february, march]  # the Dag names it by its location
    (made,) = runs("--since=0", "--go")
    assert scheduler.run_what_is_due("partition_by_month") == [("partition_by_month", "2026-02", "success")]
    assert made["run_id"].startswith("manual__")
    # Of a Dag that listens to another asset, the keys are as they are.
    assert [run["partition_key"] for run in runs("--since=0", dag_id="partition_of_day")] == ["2026-02-27", "2026-02-28"]
    for dag_id, problem in (("partition_of_none", "have no partition keys"), ("nowhere", "no Dag 'nowhere'")):
        with pytest.raises(SystemExit, match=problem):
            runs("--since=0", dag_id=dag_id)
    with pytest.raises(SystemExit, match=r"changes more than 1 partitions. Raise --max-keys, give a coarser --key, or begin"):
        runs("--since=0", "--max-keys=1")
    far = f"{scheduler.folder}/far"
    deltalake.write_deltalake(far, pa.table({"day": pa.array([3_000_000], pa.int32()).cast(pa.date32())}))
    with pytest.raises(SystemExit, match="has a value of 'day' that Python cannot hold"):
        runs("--since=-1", "--key={day:%Y-%m}", table=far)
