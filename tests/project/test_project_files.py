"""The files around the package: the lock, the registry's description, links and names that must stay true."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from airflow.sdk import BaseOperator

from airflow_delta import operators
from airflow_delta.get_provider_info import get_provider_info

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text().splitlines()
REGISTRY = yaml.safe_load((ROOT / ".airflow-registry.yaml").read_text())


def normalised(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", requirement)[0]).lower()


# -- the lock -----------------------------------------------------------------------------------------------------------------


def test_the_lock_is_only_exact_versions():
    """No index, no path, no host: whoever installs says where packages come from."""
    pin = re.compile(r"[a-z0-9-]+==[0-9][A-Za-z0-9.!+]*( ; [a-z_]+ [^;@]+)?")
    assert [line for line in LOCK if not pin.fullmatch(line)] == []


def test_the_lock_has_every_dependency():
    wanted = [
        *PYPROJECT["project"]["dependencies"],
        *(extra for extras in PYPROJECT["project"]["optional-dependencies"].values() for extra in extras),
        *PYPROJECT["dependency-groups"]["dev"],
        *PYPROJECT["build-system"]["requires"],
        "wheel",  # the project is installed without build isolation
    ]
    assert {normalised(item) for item in wanted} - {normalised(line) for line in LOCK} == set()


def test_pyspark_and_its_client_are_of_one_version():
    """Both wheels install the same files."""
    versions = {line.partition("==")[2] for line in LOCK if line.startswith(("pyspark==", "pyspark-client=="))}
    assert len(versions) == 1


# -- the registry's description -----------------------------------------------------------------------------------------------


def named(group: str) -> set[str]:
    return {entry["module"] for entry in REGISTRY[group]}


def test_the_registry_lists_what_the_provider_has():
    info = get_provider_info()
    assert REGISTRY["package-name"] == info["package-name"]
    modules = {path.rpartition(".")[0] for path in named("operators")}
    assert modules == {module for group in info["operators"] for module in group["python-modules"]}
    assert {entry["module"] for entry in REGISTRY["hooks"]} == {entry["hook-class-name"] for entry in info["connection-types"]}
    assert {entry["module"] for entry in REGISTRY["task-decorators"]} == {
        entry["class-name"] for entry in info["task-decorators"]
    }


def test_the_registry_lists_every_operator():
    """All that a Dag author can use: neither abstract, nor without anything to execute."""
    found = set()
    for module in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}."):
        for name, kind in vars(importlib.import_module(module.name)).items():
            if inspect.isclass(kind) and kind.__module__ == module.name and issubclass(kind, BaseOperator):
                usable = not inspect.isabstract(kind) and kind.execute is not BaseOperator.execute
                found |= {f"{module.name}.{name}"} if usable else set()
    assert named("operators") == found


@pytest.mark.parametrize("path", sorted(named("operators") | named("hooks") | named("task-decorators")))
def test_what_the_registry_names_exists(path):
    module, _, name = path.rpartition(".")
    assert getattr(importlib.import_module(module), name).__doc__


# -- all files of the project -------------------------------------------------------------------------------------------------


def project_files() -> list[Path]:
    """Text files that are, or would be, committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no git checkout")
    paths = [ROOT / line for line in done.stdout.splitlines()]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:1024]]


# Written so that this file does not hold them.
BANNED = {
    "a folder of one machine": re.compile(r"(?<![\w.])/(?:work|root|home/\w+)/\w"),
    "a temporary folder by name": re.compile(r"(?<![\w.$])/tmp/(?:spec|bash_jobs)"),
    "a package index": re.compile("pypi" + r"\.org|files\.python" + r"hosted|registry\.npm" + r"js|repo1?\.maven", re.IGNORECASE),
    "an index option": re.compile(r"--(?:extra-)?index-" + r"url\b(?! )|--find-" + "links[ =]"),
    # Python before 3.11.5 matches one wrongly, and what a predicate calls is found by a regular expression.
    "a possessive quantifier on a group": re.compile(r"\)[*+?]" + r"\+(?!\+)(?=[)`'\"|\\]|$)"),
    "an unfinished place": re.compile(r"\b(?:TO" + "DO|FIX" + "ME|XX" + r"X)\b"),
}


@pytest.mark.parametrize("what", BANNED)
def test_no_file_holds(what):
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in project_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if BANNED[what].search(line)
    ]
    assert found == []


def documents() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".md"]


def test_links_between_documents_lead_somewhere():
    links = [(path, target) for path in documents() for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())]
    inner = [(path, target) for path, target in links if "://" not in target and not target.startswith("{")]  # a value in code
    assert [f"{path.relative_to(ROOT)}: {target}" for path, target in inner if not (path.parent / target).exists()] == []


def test_the_commands_that_documents_name_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {target for path in documents() for target in re.findall(r"`make ([a-z-]+)", path.read_text())} <= targets
