"""Every path, glob and name in the project's settings matches something: one that matches nothing checks or ships nothing."""

from __future__ import annotations

import configparser
import importlib
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import conftest
from project.ci_sections import sections
from support.places import ROOT, files, some, tracked
from versions import run as versions

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOOLS = PYPROJECT["tool"]
PACKAGE = ROOT / "provider" / "airflow_delta"


def alternatives(pattern: str) -> list[str]:
    """Return what a pattern with ``{a,b}`` stands for."""
    found = re.fullmatch(r"(.*?)\{(.*?)\}(.*)", pattern)
    return [text for one in found[2].split(",") for text in alternatives(found[1] + one + found[3])] if found else [pattern]


def patterns() -> Iterator[tuple[str, str, str]]:
    """Return where a pattern is written, the folder that it is below, and the pattern."""
    for pattern in TOOLS["ruff"]["lint"]["per-file-ignores"]:
        yield from (("ruff's per-file-ignores", "", one) for one in alternatives(pattern))
    for option in ("include", "omit"):
        yield from ((f"coverage's {option}", "", one) for one in TOOLS["coverage"]["run"][option])
    for line in (ROOT / "MANIFEST.in").read_text().splitlines():
        command, *names = line.split()
        if command != "global-exclude":  # what is made by running the project
            yield from (("MANIFEST.in", "", f"{name}/**/*" if command == "prune" else name) for name in names)
    yield from (("license-files", "", one) for one in [*PYPROJECT["project"]["license-files"], PYPROJECT["project"]["readme"]])
    pytest_paths = [*TOOLS["pytest"]["ini_options"]["testpaths"], *TOOLS["pytest"]["ini_options"]["pythonpath"]]
    for place in [*TOOLS["ruff"]["src"], TOOLS["mypy"]["mypy_path"], *pytest_paths]:
        yield "a folder of pyproject.toml", "", f"{place}/**/*.py"
    for place in re.findall(r"(?<![\w/])(?:tests|benchmarks|dags_examples|docs)/[\w/.-]*\w", (ROOT / "Makefile").read_text()):
        yield "Makefile", "", place if Path(place).suffix else f"{place}/**/*.*"
    (folder,) = re.findall(r"--ignore=(tests/\w+/)", (ROOT / "Makefile").read_text())
    (names,) = re.findall(r"--ignore=tests/\w+/,([\w. ]+)\)", (ROOT / "Makefile").read_text())
    yield from (("Makefile's LOWEST_TESTS", "", f"{folder}{name}") for name in names.split())
    for place in [place for places in conftest.DEPENDS.values() for place in places]:
        yield "DEPENDS in tests/conftest.py", "tests", place if place.endswith(".py") else f"{place}/**/*.py"


@pytest.mark.parametrize(("where", "folder", "pattern"), some(sorted(set(patterns())), "settings"), ids=str)
def test_a_pattern_matches_a_file(where, folder, pattern):
    assert files(ROOT / folder, pattern.removesuffix("**") + ("**/*" if pattern.endswith("**") else "")), where


def package_data() -> list[str]:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    assert settings["options.packages.find"]["where"] == settings["options"]["package_dir"].split("=")[1].strip() == "provider"
    assert list(settings["options.package_data"]) == ["*"]
    return settings["options.package_data"]["*"].split()


@pytest.mark.parametrize("pattern", package_data())
def test_package_data_are_in_a_package(pattern):
    packages = {path.parent for path in files(PACKAGE, "**/__init__.py")}
    some((path for package in packages for path in package.glob(pattern)), pattern)


def rooms() -> Iterator[tuple[str, str]]:
    table = tomllib.loads((ROOT / ".ci" / "sections.toml").read_text())
    for name, section in [("everything", table["everything"]), *table["sections"].items()]:
        yield from ((f"section {name}", one) for room in section.get("rooms", []) for one in alternatives(room))
    for name, places in versions.known()["rooms"].items():
        yield from ((f"cells about {name}", place) for place in places)


def test_a_room_has_a_file():
    """A room that was moved would never again run its section."""
    paths = [path.relative_to(ROOT).as_posix() for path in tracked(ROOT)]
    lost = [f"{where}: {room}" for where, room in some(rooms(), "rooms") if not sections.touches([room], paths)]
    assert lost == []


def test_modules_of_the_import_contracts_exist():
    """A contract about a module that is not there holds always."""
    named = set()
    options = ("source_modules", "forbidden_modules", "protected_modules", "allowed_importers", "ancestors", "containers")
    for contract in some(TOOLS["importlinter"]["contracts"], "contracts"):
        for option in options:
            named.update(contract.get(option, []))
        layers = [name.strip() for layer in contract.get("layers", []) for name in layer.split("|")]
        named.update(f"{container}.{name}" for container in contract.get("containers", []) for name in layers)
    assert len(named) > 100
    assert sorted(name for name in named if importlib.util.find_spec(name) is None) == []


def test_what_is_banned_and_what_has_no_types_is_there():
    for name in some(TOOLS["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"], "banned-api"):
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
    for name in TOOLS["mypy"]["packages"]:
        assert importlib.util.find_spec(name), name
    sources = "\n".join(path.read_text() for path in files(PACKAGE, "**/*.py"))
    modules = [name.removesuffix(".*") for override in TOOLS["mypy"]["overrides"] for name in override["module"]]
    imported = r"^\s*(from|import) {}\b"
    unused = [
        name for name in some(modules, "overrides") if not re.search(imported.format(re.escape(name)), sources, re.MULTILINE)
    ]
    assert unused == [], "mypy is told of modules that nothing imports"
