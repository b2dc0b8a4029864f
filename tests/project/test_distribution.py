"""What is published: one wheel with the provider and nothing else, an sdist that builds it, one version everywhere."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import airflow_delta

ROOT = Path(__file__).parents[2]
PROVIDER = ROOT / "provider"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """Sdist, and the wheel that is built from it, in a folder of their own."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


@pytest.fixture(scope="session")
def wheel(built) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


def dist_info(wheel: zipfile.ZipFile, name: str) -> str:
    return wheel.read(f"airflow_provider_delta-{PROJECT['version']}.dist-info/{name}").decode()


def test_the_wheel_is_pure_and_named_after_the_project(built):
    (path,) = built.glob("*.whl")
    assert path.name == f"airflow_provider_delta-{PROJECT['version']}-py3-none-any.whl"


def test_the_wheel_holds_every_module_of_the_package_and_nothing_else(wheel):
    sources = {str(path.relative_to(PROVIDER)) for path in (PROVIDER / "airflow_delta").rglob("*.py")}
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert files == sources | {"airflow_delta/py.typed"}


def test_the_wheel_carries_the_licence_and_the_entry_point(wheel):
    assert "Apache License" in dist_info(wheel, "licenses/LICENSE")
    expected = "[apache_airflow_provider]\nprovider_info = airflow_delta.get_provider_info:get_provider_info"
    assert dist_info(wheel, "entry_points.txt").strip() == expected


def test_the_metadata_name_what_is_needed(wheel):
    metadata = Parser().parsestr(dist_info(wheel, "METADATA"))
    assert metadata["Name"] == "airflow-provider-delta"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    declared = {Requirement(line) for line in PROJECT["dependencies"]}
    assert {found for line in metadata.get_all("Requires-Dist") if (found := Requirement(line)).marker is None} == declared


def test_the_sdist_holds_what_building_needs_and_no_tests(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "setup.cfg", "README.md", "LICENSE", "CHANGELOG.md", "provider/airflow_delta/__init__.py"} <= names
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
