"""What travels to a cluster: one zip, and a job that has nothing else of ours."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import py4j
import pyarrow.parquet as pq
import pyspark
import pytest

from airflow_delta import private_directory
from airflow_delta.contract.options import REQUEST_PROPERTY
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.spark.package import application_path, build_package, package_bytes
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.stage.write.job_runs import put_request, read_report
from support.job_spark import job_environment, job_python
from support.table import Table

JOB = """
import sys
from pyspark.sql import SparkSession
from airflow_delta.spark import delta_stage

spark = SparkSession.builder.getOrCreate()
stage = delta_stage(spark)
stage.write(spark.sql("SELECT 1L AS id, 'a' AS p" if sys.argv[1] == "good" else "SELECT 'x' AS id"))
import airflow_delta
assert ".zip" in airflow_delta.__file__, airflow_delta.__file__
for name in ("airflow", "pyarrow", "msgspec", "sqlglot", "obstore", "tenacity", "airflow_delta.log", "airflow_delta.table"):
    assert name not in sys.modules, name
    try:
        __import__(name)
    except ImportError:
        continue
    raise AssertionError(name + " can be imported: this environment proves nothing")
"""


def test_the_zip_holds_what_spark_needs_and_nothing_else(tmp_path):
    path = build_package(str(tmp_path))
    names = zipfile.ZipFile(path).namelist()
    modules = {"__init__.py", "__init__.pyi", "lazy.py", "lazy_patterns.py", "light_dataclasses.py", "masking.py", "version.py"}
    assert {name.split("/")[1] for name in names} == modules | {"contract", "exceptions", "spark"}
    assert "airflow_delta/spark/stage.py" in names
    assert {name for name in names if not name.endswith(".py")} == {
        "airflow_delta/__init__.pyi",
        "airflow_delta/spark/__init__.pyi",
    }


def test_the_zip_is_python_3_10(tmp_path):
    """What some services still have: its syntax and that of its patterns here, its library where jobs run on it."""
    with zipfile.ZipFile(build_package(str(tmp_path))) as package:
        for name in package.namelist():
            tree = ast.parse(package.read(name), name, feature_version=(3, 10))
            texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
            newer = [text for text in texts if re.search(r"(?<!\\)[*+?}]\+|\(\?>", text)]
            assert not newer, f"{name}: quantifiers that take no step back, and atomic groups, are of Python 3.11: {newer}"


@pytest.mark.spark
@pytest.mark.depends("jobs")
def test_every_module_of_the_zip_can_be_imported_where_jobs_run(tmp_path):
    path = build_package(str(tmp_path))
    names = [
        name.removesuffix(".py").removesuffix("/__init__") for name in zipfile.ZipFile(path).namelist() if name.endswith(".py")
    ]
    modules = sorted({name.replace("/", ".") for name in names} - {"airflow_delta.spark.package"})  # which the worker runs
    assert "airflow_delta.spark.application" in modules
    script = "import sys, importlib; [importlib.import_module(name) for name in sys.argv[1:]]; print(len(sys.argv[1:]))"
    environment = {**job_environment(tmp_path), "PYTHONPATH": path}
    done = subprocess.run([job_python(), "-c", script, *modules], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == str(len(modules)), done.stderr[-2000:]


def test_the_zip_is_built_once_and_is_the_same_every_time(tmp_path):
    path = Path(build_package(str(tmp_path)))
    before = path.stat()
    assert build_package(str(tmp_path)) == str(path)
    assert path.stat().st_ino == before.st_ino
    assert package_bytes() == path.read_bytes()
    path.write_bytes(b"damaged")
    assert Path(build_package(str(tmp_path))).read_bytes() == package_bytes()


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A home, and a shared temporary directory, for the directory of this user."""
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir(mode=0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    private_directory._of_this_process.cache_clear()
    yield tmp_path
    private_directory._of_this_process.cache_clear()


def test_the_zip_lies_in_the_cache_of_the_user(places, monkeypatch):
    cache = Path(build_package()).parent
    assert cache == places / "home" / ".cache" / "airflow-delta"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # is ignored
    assert Path(build_package()).parent == cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(places / "xdg"))
    assert Path(build_package()).parent == places / "xdg" / "airflow-delta"


@pytest.mark.parametrize("home", ["/proc/none", "/dev/null", "file", "~"])
def test_where_there_is_no_home(places, monkeypatch, home):
    (places / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache" if home == "~" else "")
    monkeypatch.setenv("HOME", str(places / home) if home == "file" else home)
    assert Path(build_package()).parent == places / "tmp" / f"airflow-delta-{os.getuid()}"


TAKEN = {
    "a file": lambda path: path.write_text("x"),
    "a dangling link": lambda path: path.symlink_to("/nowhere/at/all"),
    "a link to a directory": lambda path: path.symlink_to(path.parent.parent),
    "a directory that others write to": lambda path: (path.mkdir(), path.chmod(0o777)),
}


@pytest.mark.parametrize("how", TAKEN)
def test_a_name_that_others_have_taken_is_passed_over(places, monkeypatch, how):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    monkeypatch.setenv("HOME", "/dev/null")
    TAKEN[how](places / "tmp" / f"airflow-delta-{os.getuid()}")
    path = Path(build_package())
    assert path.parent.parent == places / "tmp"
    assert path.parent.name != f"airflow-delta-{os.getuid()}"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert build_package() == str(path)


@pytest.fixture
def submit(tmp_path):
    """Run spark-submit with a Python that has PySpark and nothing else."""
    site = tmp_path / "site"
    site.mkdir()
    for module in (pyspark, py4j):
        (site / module.__name__).symlink_to(Path(module.__file__).parent)
    python = tmp_path / "bare-python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    python.chmod(0o755)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    home = Path(pyspark.__file__).parent
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK", "PYTHON", "AIRFLOW"))}
    environment |= {"PYTHONPATH": str(site), "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    environment |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}

    def spark_submit(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(home / "bin" / "spark-submit"), "--master", "local[1]", "--conf", "spark.ui.enabled=false", *arguments]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    def run(request: StageRequest, *arguments: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "table" / request.directory / "request.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(request.to_dict()))
        asked = f"{REQUEST_PROPERTY}={request.path}/request.json"
        return spark_submit("--py-files", build_package(str(tmp_path / "zip")), "--conf", asked, str(job), *arguments)

    run.spark_submit = spark_submit
    return run


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_without_our_packages_stages_through_spark_submit(submit, tmp_path):
    request = StageRequest(
        transaction_id="t1",
        table=f"file://{tmp_path}/table",
        read_version=-1,
        stage="s",
        task_id="s",
        attempt="1-a",
        directory="staged/t1/s/1-a",
        partition_columns=("p",),
    )
    done = submit(request, "good")
    assert done.returncode == 0, done.stderr[-3000:]
    attempt = tmp_path / "table" / request.directory
    [part] = (attempt / "reports").glob("*/part-*")
    report = StageReport.from_dict(json.loads(part.read_text()))
    assert (report.transaction_id, report.stage, report.attempt, report.error_class) == ("t1", "s", "1-a", None)
    [file] = (attempt / report.directories[0]).rglob("*.parquet")
    assert file.parent.name == "p=a"
    assert pq.ParquetFile(file).read().to_pylist() == [{"id": 1}]


@pytest.mark.slow
@pytest.mark.spark
def test_a_job_that_fails_leaves_its_typed_error(submit, tmp_path):
    fields = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
    request = StageRequest(
        transaction_id="t1",
        table=f"file://{tmp_path}/table",
        read_version=3,
        stage="s",
        task_id="s",
        attempt="1-b",
        directory="staged/t1/s/1-b",
        schema_string=json.dumps({"type": "struct", "fields": fields}),
    )
    done = submit(request, "bad")
    assert done.returncode != 0
    [part] = (tmp_path / "table" / request.directory / "reports").glob("*/part-*")
    report = StageReport.from_dict(json.loads(part.read_text()))
    assert report.error_class == "SchemaMismatchException"
    assert "column id: expected bigint, got string" in report.error_message


@pytest.mark.slow
@pytest.mark.spark
def test_the_application_alone_is_enough_and_run_twice_it_stages_once(submit, tmp_path):
    """With nothing but two arguments, as services run it; below a path that would be a pattern."""
    table = Table(tmp_path / "a [lake]" / "table")
    handle = table.begin()
    table.publish(handle, table.stage_rows(handle, [1, 2, 3]))
    handle = table.begin()
    view = table.view(handle)
    work = plan_delete(view, predicate="id = 2")
    place = table.path / work.request.directory
    uri = put_request(table.log(), work.request)
    application = shutil.copy(application_path(), place / "application.py")
    package = shutil.copy(build_package(str(tmp_path / "zip")), place / "package.zip")
    given = ["--delta-request", uri, "--delta-package", f"{work.request.path}/{Path(package).name}"]
    for runs in (1, 2):
        done = submit.spark_submit(application, *given)
        assert done.returncode == 0, done.stderr[-3000:]
        assert ("is already staged by another run of this job" in done.stdout) is (runs == 2)
        assert len(list((place / "reports").iterdir())) == 1
        report = read_report(table.log(), work.request)
        assert {path.name.split("-")[0] for path in place.iterdir() if path.is_dir() and path.name != "reports"} == {
            name.split("-")[0] for name in (*report.directories, *report.copied_directories)
        }
    table.publish(handle, work.collect(work.request, report))
    assert table.rows() == [(1,), (3,)]
