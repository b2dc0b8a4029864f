"""The parts of `make demo` that have to be right for its verdict to mean something."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import guard
import java
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import source
import verdict
from deltalake import DeltaTable, write_deltalake
from place import Place

ROOT = Path(__file__).parents[2]
GUARD = ROOT / "dags_examples" / "demo" / "guard.py"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")

# -- no process outlives the driver -------------------------------------------------------------------------------------------

# A command as Airflow's scheduler is one: a child in the same group, and a grandchild in a session of its own whose parent is
# gone, which ignores SIGTERM. Each writes its process id.
FAMILY = """
import os, signal, sys, time
def note(name):
    with open(os.path.join(sys.argv[1], name), "w") as file:
        file.write(str(os.getpid()))
if os.fork() == 0:
    note("child")
    time.sleep(600)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note("orphan")
        time.sleep(600)
    os._exit(0)
note("parent")
time.sleep(600)
"""

# A driver that starts the guard and a command through it, and is then at work until somebody ends it.
DRIVER = """
import json, subprocess, sys, time
guard, directory, family = sys.argv[1:]
child = subprocess.Popen([sys.executable, guard], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
command = {"name": "family", "argv": [sys.executable, "-c", family, directory], "log": directory + "/log"}
child.stdin.write(json.dumps(command).encode() + b"\\n")
child.stdin.flush()
open(directory + "/guard", "w").write(str(child.pid))
time.sleep(600)
"""


def read_pids(directory: Path, names: tuple[str, ...]) -> list[psutil.Process]:
    deadline = time.monotonic() + 240
    while not all((directory / name).exists() and (directory / name).read_text() for name in names):
        assert time.monotonic() < deadline, sorted(path.name for path in directory.iterdir())
        time.sleep(0.05)
    return [psutil.Process(int((directory / name).read_text())) for name in names]


@pytest.mark.slow
@linux_only
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_however_the_driver_ends_nothing_is_left(tmp_path, number):
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(GUARD), str(tmp_path), FAMILY], stderr=subprocess.DEVNULL)
    processes = read_pids(tmp_path, ("guard", "parent", "child", "orphan"))
    assert all(process.is_running() for process in processes)
    driver.send_signal(number)
    driver.wait(timeout=120)
    _, alive = psutil.wait_procs(processes, timeout=240)
    assert alive == []


def test_the_guard_tells_which_command_ended(tmp_path):
    process = subprocess.Popen([sys.executable, GUARD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    for name, code in (("good", 0), ("bad", 3)):
        argv = [sys.executable, "-c", f"print({name!r}); raise SystemExit({code})"]
        process.stdin.write(json.dumps({"name": name, "argv": argv, "log": str(tmp_path / name)}).encode() + b"\n")
    process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert sorted((answer["name"], answer["code"]) for answer in answers) == [("bad", 3), ("good", 0)]
    assert (tmp_path / "bad").read_text() == "bad\n"
    process.stdin.close()
    assert process.wait(timeout=120) == 0
    process.stdout.close()


def test_prctl_is_not_called_elsewhere(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 1) is False


# -- what is compared ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def january() -> pa.Table:
    arrow = {"integer": pa.int32(), "string": pa.string(), "timestamp": pa.timestamp("us", tz="UTC")}
    columns = {name: pa.array([1, 1, None], pa.int64()).cast(arrow[kind]) for name, kind in source.COLUMNS.items()}
    columns["month"] = pa.array([1, 1, 1], pa.int32())
    return pa.table(columns)


def test_the_source_is_the_whole_package(tmp_path):
    source.write_months(tmp_path)
    found = source.contents_of_source()
    assert list(found) == list(source.MONTHS)
    assert sum(month.rows for month in found.values()) == 336_776
    for month, content in found.items():
        with (tmp_path / f"flights-2013-{month:02}.csv").open() as lines:
            assert sum(1 for _ in lines) == content.rows + 1


def test_the_checksum_does_not_see_order_or_types(january):
    turned = january.take([2, 0, 1])
    wide = january.set_column(0, "year", january["year"].cast(pa.int64()))
    assert source.contents(january) == source.contents(turned) == source.contents(wide)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.slice(1),
        lambda table: pa.concat_tables([table, table.slice(0, 1)]),
        lambda table: table.take([0, 2, 2]),  # as many rows, one twice and one missing
        lambda table: table.set_column(3, "dep_time", pa.array([2, 1, None], pa.int32())),
        lambda table: table.set_column(3, "dep_time", pa.array([1, None, None], pa.int32())),
        lambda table: table.set_column(18, "time_hour", pa.array([2, 1, None], pa.timestamp("us", tz="UTC"))),
    ],
    ids=["a row less", "a row twice", "a row for another", "a value", "a null", "a time"],
)
def test_the_checksum_sees(january, change):
    assert source.contents(january) != source.contents(change(january))


@pytest.fixture(scope="module")
def year(tmp_path_factory) -> Path:
    """The table as it should be, written by delta-rs: a version for each month."""
    path = tmp_path_factory.mktemp("year") / "table"
    flights = source.read_source()
    for month in source.MONTHS:
        write_deltalake(path, flights.filter(pc.equal(flights["month"], month)), partition_by=["month"], mode="append")
    return path


def wrong_months(table: Path) -> list[str]:
    return [row[0] for good, row in verdict.compare(Place(str(table))) if not good]


def test_the_verdict_accepts_the_year(year):
    assert wrong_months(year) == []
    assert verdict.look(Place(str(year))).complete
    assert verdict.look(Place(str(year))).unlisted == set()


@pytest.mark.parametrize("month", [1, 12])
def test_the_verdict_finds_a_month_that_is_there_twice(year, tmp_path, month):
    table = shutil.copytree(year, tmp_path / "table")
    rows = DeltaTable(table).to_pyarrow_table(filters=[("month", "=", month)])
    write_deltalake(table, rows, mode="append")
    assert wrong_months(table) == [f"2013-{month:02}"]


def test_the_verdict_finds_a_changed_value_and_a_missing_month(year, tmp_path):
    table = shutil.copytree(year, tmp_path / "table")
    DeltaTable(table).update({"dep_delay": "dep_delay + 1"}, predicate="month = 4 AND flight = 1545")
    DeltaTable(table).delete("month = 7")
    assert wrong_months(table) == ["2013-04", "2013-07"]
    assert not verdict.look(Place(str(table))).complete
    assert verdict.look(Place(str(table))) != verdict.look(Place(str(year)))


# -- Java ---------------------------------------------------------------------------------------------------------------------


def fake_java(home: Path, version: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    path.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "no-commands"))


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("25.0.2", 25), ("1.8.0_392", 8), ("21", 21), ("25-ea", 25)])
def test_versions_of_java(tmp_path, version, major):
    assert java.version_of(fake_java(tmp_path, version) / "bin" / "java") == major


def test_what_is_not_java_has_no_version(tmp_path):
    assert java.version_of(tmp_path / "java") == 0


@pytest.mark.usefixtures("bare")
def test_the_machines_java_comes_first(monkeypatch, tmp_path):
    named, found = fake_java(tmp_path / "named", "21.0.1"), fake_java(tmp_path / "found", "17.0.1")
    monkeypatch.setenv("PATH", str(found / "bin"))
    assert java.java_home() == found
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java.java_home() == named


@pytest.mark.usefixtures("bare")
def test_an_old_java_is_passed_over(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.20")))
    assert java.java_home() == ROOT / ".cache" / "java"


@pytest.mark.usefixtures("bare")
def test_without_any_java_it_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(java, "home_from_package", lambda _: None)
    assert java.main() == 1
    assert "apt-get install openjdk-17-jre-headless" in capsys.readouterr().err


def test_the_packages_java_starts_with_what_spark_asks_of_it(tmp_path):
    home = java.home_from_package(tmp_path / "a home")
    command = home / "bin" / "java"
    assert command.stat().st_mode & stat.S_IXUSR
    asked = ["--add-modules=jdk.incubator.vector", "-Dtold=with a space", "-XshowSettings:properties", "-version"]
    done = subprocess.run([command, *asked], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "told = with a space" in done.stderr


# -- the Dag ------------------------------------------------------------------------------------------------------------------


def test_the_folder_of_the_demo_is_one_dag(tmp_path):
    """The driver beside the Dag is ignored, and the Dag can be read without the demo's environment."""
    script = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
print("answer " + json.dumps([sorted(bag.dags), bag.import_errors, bag.dags["flights_demo"].task_ids]))
"""
    env = os.environ | {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    output = subprocess.check_output([sys.executable, "-c", script, str(GUARD.parent)], env=env, text=True, timeout=120)
    (answer,) = [line for line in output.splitlines() if line.startswith("answer ")]
    dags, errors, tasks = json.loads(answer.removeprefix("answer "))
    assert (dags, errors) == (["flights_demo"], {})
    assert sorted(tasks) == [f"flights.{name}" for name in ("abort", "audit", "commit", "start", "transform", "watcher")]


# -- Spark on that Java -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_runs_on_the_packages_java(tmp_path):
    home = java.home_from_package(tmp_path / "java")
    script = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(10).write.parquet(OUT)
print("rows", spark.read.parquet(OUT).count())
spark.stop()
""".replace("OUT", repr(str(tmp_path / "out")))
    env = os.environ | {"JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=600)
    assert "rows 10" in done.stdout, done.stderr[-3000:]
