"""What is published: one wheel with the provider and nothing else, an sdist that builds it, one version everywhere."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import airflow_delta
from support.building import build
from support.places import tracked

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
PROVIDER = ROOT / "provider"
PACKAGE = PROVIDER / "airflow_delta"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """Sdist, and the wheel that is built from it, in a folder of their own."""
    return build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="session")
def wheel(built) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


def dist_info(wheel: zipfile.ZipFile, name: str) -> str:
    return wheel.read(f"airflow_provider_delta-{PROJECT['version']}.dist-info/{name}").decode()


def package_files() -> set[str]:
    """Return the files of the package in this tree, as a distribution names them."""
    return {path.relative_to(PROVIDER).as_posix() for path in tracked(PACKAGE)}


def test_the_wheel_is_pure_and_named_after_the_project(built):
    (path,) = built.glob("*.whl")
    assert path.name == f"airflow_provider_delta-{PROJECT['version']}-py3-none-any.whl"


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    """Modules, types, and what the pages are made of: what is not in the wheel, no user has."""
    wanted = package_files()
    assert {Path(name).suffix for name in wanted} >= {".py", ".pyi", ".html", ".css", ".js", ".svg"}
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert sorted(wanted - files) == [], "only in the tree: setup.cfg must name them"
    assert sorted(files - wanted) == [], "only in the wheel"


def test_the_wheel_carries_the_licence_and_the_entry_point(wheel):
    assert "Apache License" in dist_info(wheel, "licenses/LICENSE")
    expected = (
        "[airflow.plugins]\ndelta_tables = airflow_delta.plugins.delta_tables:DeltaTablesPlugin\n\n"
        "[apache_airflow_provider]\nprovider_info = airflow_delta.get_provider_info:get_provider_info"
    )
    assert dist_info(wheel, "entry_points.txt").strip() == expected


def test_the_metadata_name_what_is_needed(wheel):
    metadata = Parser().parsestr(dist_info(wheel, "METADATA"))
    assert metadata["Name"] == "airflow-provider-delta"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    declared = {Requirement(line) for line in PROJECT["dependencies"]}
    assert {found for line in metadata.get_all("Requires-Dist") if (found := Requirement(line)).marker is None} == declared
    assert set(metadata.get_all("Provides-Extra")) == {"spark", "connect", "hdfs", "openlineage", "testing"}


def test_pyspark_and_its_client_are_held_together():
    """Both wheels install the same files: whoever installs an extra gets one version of both, and a pandas that PySpark takes."""
    extras = {
        name: {Requirement(line).name: Requirement(line).specifier for line in lines}
        for name, lines in PROJECT["optional-dependencies"].items()
    }
    spark, connect = extras["spark"], extras["connect"]
    assert set(spark) == {"pyspark", "pyspark-client", "pandas"}
    assert set(connect) == {"pyspark-client", "pandas"}
    # No range ties two packages together: what pip finds as the newest of one need not exist of the other.
    (pin,) = spark["pyspark"]
    assert pin.operator == "=="
    assert spark["pyspark"] == spark["pyspark-client"]
    assert pin.version in connect["pyspark-client"]
    assert spark["pandas"] == connect["pandas"]
    assert "2.2.2" not in spark["pandas"]
    assert "3.0.0" in spark["pandas"], "Airflow's constraints have pandas 3"


def test_the_sdist_holds_what_building_needs_and_no_tests(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "setup.cfg", "README.md", "LICENSE", "CHANGELOG.md", "provider/airflow_delta/__init__.py"} <= names
    assert sorted({f"provider/{name}" for name in package_files()} - names) == [], "only in the tree"
    strangers = {name.split("/")[0] for name in names} & {"tests", "dags_examples", "benchmarks", "docs", ".ci", "Makefile"}
    assert not strangers


def test_one_version_everywhere():
    assert PROJECT["version"] == airflow_delta.__version__ == importlib.metadata.version("airflow-provider-delta")
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_the_installed_wheel_is_found_by_airflow(built, tmp_path):
    """In an environment with the wheel instead of the sources: Airflow lists the provider, its connection type and decorator."""
    (path,) = built.glob("*.whl")
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", path], check=True, timeout=120)
    # Everything else comes from this environment, after the wheel; its .pth with the sources is not read.
    installed = f"{subprocess.check_output([python, '-c', 'import site; print(site.getsitepackages()[0])'], text=True).strip()}"
    packages = os.pathsep.join([installed, str(Path(pytest.__file__).parents[1])])
    question = """
import json, airflow_delta
from airflow.providers_manager import ProvidersManager
found = ProvidersManager()
found.initialize_providers_hooks()
found.initialize_providers_taskflow_decorator()
print("answer " + json.dumps([
    airflow_delta.__file__, found.providers["airflow-provider-delta"].version, "delta" in found.hooks,
    "delta_stage" in found.taskflow_decorators,
]))
"""
    home = {"AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PYTHONPATH": packages}
    output = subprocess.check_output([python, "-c", question], env=os.environ | home, text=True, timeout=240)
    (answer,) = [line for line in output.splitlines() if line.startswith("answer ")]
    file, version, hook, decorator = json.loads(answer.removeprefix("answer "))
    assert Path(file).is_relative_to(environment)
    assert (version, hook, decorator) == (PROJECT["version"], True, True)


# -- what registries read -----------------------------------------------------------------------------------------------------

REGISTRY_KEYS = {"package-name", "display-name", "description", "logo", "docs-url", "source-url"}
REGISTRY_LISTS = {"operators", "sensors", "triggers", "hooks", "transfers", "notifiers", "task-decorators", "other"}


def test_the_registry_file_keeps_to_its_form():
    registry = yaml.safe_load((ROOT / ".airflow-registry.yaml").read_text(encoding="utf-8"))
    assert set(registry) <= REGISTRY_KEYS | REGISTRY_LISTS
    assert {"package-name", "display-name", "description", "docs-url", "source-url"} <= set(registry)
    assert registry["package-name"] == PROJECT["name"]
    assert registry["docs-url"] == PROJECT["urls"]["Documentation"]
    for name in REGISTRY_LISTS & set(registry):
        for entry in registry[name]:
            assert set(entry) == {"module", "description"}, f"{name}: {entry}"
            assert re.fullmatch(r"airflow_delta(\.\w+)+", entry["module"])
            assert entry["description"].endswith(".")
            assert len(entry["description"]) < 120
        modules = [entry["module"] for entry in registry[name]]
        assert len(modules) == len(set(modules)), f"{name} names something twice"


# -- the lowest versions ------------------------------------------------------------------------------------------------------


def test_the_lowest_lock_has_the_lowest_versions():
    """`make test-lowest` runs on what the metadata claim: of each direct dependency the version that its bound names."""
    lock = (ROOT / "requirements-lowest.lock").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0]: line.partition("==")[2].partition(" ;")[0] for line in lock}
    wanted = [Requirement(line) for line in PROJECT["dependencies"]]
    # The extra `spark` pins its versions; the lowest that a session may have is that of `connect`.
    extras = {name: lines for name, lines in PROJECT["optional-dependencies"].items() if name != "spark"}
    wanted += [Requirement(line) for lines in extras.values() for line in lines]
    assert pinned["pyspark"] == pinned["pyspark-client"]
    for requirement in wanted:
        (bound,) = [item.version for item in requirement.specifier if item.operator == ">="]
        assert Version(pinned[requirement.name]) == Version(bound), requirement


# -- in an environment of its own ---------------------------------------------------------------------------------------------


class PlainAirflow:
    """A virtual environment with the wheel and what it needs, and nothing of this one."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON", "VIRTUAL_ENV"))}
        self.env = kept | {"AIRFLOW_HOME": str(folder / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        venv.create(folder / "venv", with_pip=True)
        # Versions as this project locks them: what is tested is the wheel, not what was published somewhere this morning.
        self.run("-m", "pip", "install", "-q", "--constraint", str(ROOT / "requirements.lock"), str(wheel), timeout=1500)

    def run(self, *arguments: str, timeout: int = 240) -> str:
        command = [str(self.python), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def airflow(self, *arguments: str) -> list[dict[str, str]]:
        """Return what a command of Airflow lists."""
        output = self.run("-W", "ignore", "-m", "airflow", *arguments, "-o", "json")
        answer: list[dict[str, str]] = json.loads(output[output.index("[") :])
        return answer

    def ask(self, code: str) -> object:
        """Return what ``answer`` is after the code."""
        output = self.run("-W", "ignore", "-c", f"{code}\nimport json\nprint('answer ' + json.dumps(answer))")
        (line,) = [line for line in output.splitlines() if line.startswith("answer ")]
        return json.loads(line.removeprefix("answer "))


@pytest.fixture(scope="session")
def plain(built, tmp_path_factory) -> PlainAirflow:
    (path,) = built.glob("*.whl")
    return PlainAirflow(tmp_path_factory.mktemp("plain"), path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_plain_airflow_lists_the_provider(plain):
    (info,) = plain.airflow("providers", "get", "airflow-provider-delta")
    assert PROJECT["version"] in info.values()
    assert "delta_tables" in {plugin["name"] for plugin in plain.airflow("plugins")}
    hooks = {hook["connection_type"]: hook for hook in plain.airflow("providers", "hooks")}
    assert hooks["delta"]["class"] == "airflow_delta.hooks.delta.DeltaHook"
    assert hooks["delta"]["conn_id_attribute_name"] == "delta_conn_id"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_connection_form_is_complete(plain):
    """Fields and labels come from the description alone: the API server imports no hook for them."""
    behaviour, fields, imported = plain.ask(
        """
import sys
from airflow.providers_manager import ProvidersManager
manager = ProvidersManager()
manager.initialize_providers_hooks()
behaviour = manager._field_behaviours["delta"]  # the public property imports the hooks of all providers
fields = sorted(name for name in manager._connection_form_widgets if name.startswith("extra__delta__"))
answer = [behaviour, fields, "airflow_delta.hooks.delta" in sys.modules]
"""
    )
    assert set(behaviour["relabeling"]) == {"host", "login", "password"}
    assert {"port", "schema"} <= set(behaviour["hidden_fields"])
    names = "adls_conn_id aws_conn_id base_path gcp_conn_id other_locations spark_credentials spark_packages storage_options"
    assert fields == [f"extra__delta__{name}" for name in [*names.split(), "wasb_conn_id"]]
    assert not imported


IMPORT_ALL = """
import importlib, pkgutil, sys
import airflow_delta
failed = {}
for module in pkgutil.walk_packages(airflow_delta.__path__, "airflow_delta."):
    try:
        importlib.import_module(module.name)
    except Exception as error:
        failed[module.name] = repr(error)
answer = [failed, len([name for name in sys.modules if name.startswith("airflow_delta.")])]
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_module_can_be_imported_without_pyspark(plain):
    """Airflow's Spark provider brings PySpark's client; who has taken it away can still import the rest.

    Only what runs on Spark imports it; only the facets need a package that the wheel does not: Airflow's OpenLineage provider
    imports them.
    """
    plain.run("-m", "pip", "uninstall", "-q", "-y", "pyspark-client")
    try:
        failed, imported = plain.ask(IMPORT_ALL)
    finally:
        plain.run("-m", "pip", "install", "-q", "--constraint", str(ROOT / "requirements.lock"), "pyspark-client", timeout=600)
    known = ("openlineage", "[testing]", "No module named 'pyspark'")
    assert {name: error for name, error in failed.items() if not any(reason in error for reason in known)} == {}
    needing = ("airflow_delta.tasks.openlineage", "airflow_delta.testing", "airflow_delta.spark.")
    assert [name for name in failed if not name.startswith(needing)] == []
    assert imported > 250


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_typed_dag_passes_the_strict_check(plain):
    """As a user's project has it: mypy --strict over their own Dag, types of this package from its wheel."""
    (plain.folder / "user_dag.py").write_text((HERE / "user_dag.py").read_text())
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(plain.python), "user_dag.py"]
    done = subprocess.run(command, cwd=plain.folder, env=plain.env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    # The check is one: what is wrong is found.
    wrong = (
        (HERE / "user_dag.py")
        .read_text()
        .replace('table="orders"', "table_name='orders'")
        .replace("version: int", "version: str")
        .replace("retention_hours=", "retention_hour=")
        .replace('max_commit_attempts="5"', "max_commit_attempts=[5]")
    )
    (plain.folder / "user_dag.py").write_text(wrong)
    done = subprocess.run(command, cwd=plain.folder, env=plain.env, capture_output=True, text=True, timeout=900, check=False)
    assert "call-arg" in done.stdout
    assert "assignment" in done.stdout
    assert 'Unexpected keyword argument "retention_hour" for "DeltaVacuumOperator"' in done.stdout
    assert 'Argument "max_commit_attempts" to "DeltaVacuumOperator" has incompatible type' in done.stdout


NEWEST = """
import json, os, sys
from importlib.metadata import version
from airflow_delta.tasks.spark.installed import check_pyspark
check_pyspark()
from pyspark.sql import SparkSession
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.start.begin import begin
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_stage
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.log import DeltaLog
from airflow_delta.spark import stage_dataframe
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
log = DeltaLog.for_table("newest")
handle = begin(log, transaction_key="key")
stage = open_stage(log, handle, task_id="stage", attempt="1")
request = plan_stage(stage)
staged = collect_stage(stage, request, stage_dataframe(spark, spark.range(3), request))
result = publish(log, handle, [staged], attempt="1")
frame = spark.createDataFrame(spark.range(2).toPandas())
versions = [version(name) for name in ("pyspark", "pyspark-client", "pandas")]
answer = [result.version, log.update().num_files > 0, frame.count(), *versions]
print("answer " + json.dumps(answer))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_spark_extra_with_the_newest_versions_of_the_day(plain, built):
    """What `pip install airflow-provider-delta[spark]` brings to an Airflow today works together, and says so by its silence.

    The last to use the environment: the versions of the others are locked.
    """
    (path,) = built.glob("*.whl")
    plain.run("-m", "pip", "install", "-q", "--upgrade", "--upgrade-strategy", "eager", f"{path}[spark]", timeout=1500)
    java = subprocess.check_output([sys.executable, str(ROOT / "dags_examples" / "demo" / "java.py")], text=True).strip()
    command = [
        str(plain.python),
        "-W",
        "error",
        "-W",
        "default::DeprecationWarning",
        "-W",
        "default::ResourceWarning",
        "-W",  # what a user's own toPandas() says; ours are silent (decisions.md)
        "ignore:PySpark does not yet fully support pandas:FutureWarning",
        "-W",
        "ignore:The copy keyword is deprecated",
        "-c",
        NEWEST,
    ]
    env = plain.env | {"JAVA_HOME": java, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, cwd=plain.folder, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("answer ")]
    version, has_files, rows, pyspark, client, pandas = json.loads(line.removeprefix("answer "))
    assert (version, has_files, rows, pyspark) == (0, True, 2, client)
    assert Version(pandas).major >= 3
    assert "pandas" not in done.stderr
    plain.run("-m", "pip", "check")
