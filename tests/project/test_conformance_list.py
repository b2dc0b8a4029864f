"""The list of conformance: everything that it names exists, and nothing that it must name is missing."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
LIST = TESTS / "conformance" / "README.md"

# What the pages name, in Delta's spelling.
MEMBERS = {
    "OptimisticTransactionImpl": """
        clock deltaLog snapshot readVersion commit commitImpl commitIfNeeded commitLarge performCdcMetadataCheck
        performCdcColumnMappingCheck doCommitRetryIteratively checkForConflicts getPrettyPartitionMessage postCommit prepareCommit
        registerPostCommitHook runPostCommitHooks getNextAttemptVersion getOperationMetrics commitInfo CommitStats doCommit
        lastCommitVersionInSession writeCommitFile checkAndRetry verifyNewMetadata newProtocol withGlobalConfigDefaults txnVersion
        setNewProtocolWithFeaturesEnabledByMetadata getUserMetadata postCommitHooks newMetadata readFiles readPredicates committed
        readTxn snapshotMetadata readWholeTable updateMetadataForNewTable metadata canUpdateMetadata updateMetadata hasWritten
        updateMetadataInternal filterFiles lockCommitIfEnabled isCommitLockEnabled isPartialWriteVisible isBlindAppend handleError
        """,
    "OptimisticTransaction": "startTransaction withNewTransaction active setActive clearActive getActive",
    "Concurrency control": """
        ConcurrentAppendException ConcurrentDeleteReadException ConcurrentDeleteDeleteException MetadataChangedException
        ConcurrentTransactionException ProtocolChangedException WriteSerializable
        """,
}
AREAS = {"transaction", "conflicts", "metadata", "features", "log", "post-commit hooks", "retry"}


@dataclass(frozen=True)
class Line:
    """A row of one of the list's tables."""

    number: int
    section: str
    cells: dict[str, str]


def lines() -> Iterator[Line]:
    section, header = "", []
    for number, text in enumerate(LIST.read_text(encoding="utf-8").splitlines(), 1):
        if text.startswith("## "):
            section = text[3:]
        if not text.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if not header:
            header = cells
        elif set(text) - set("|-"):
            assert len(cells) == len(header), f"{LIST.name}:{number} has {len(cells)} cells, expected {len(header)}"
            yield Line(number, section, dict(zip(header, cells, strict=True)))


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


LINES = list(lines())
HELD = [line for line in LINES if "test" in line.cells]


def resolve(name: str) -> object:
    """Find a module, a class, a function or an attribute below ``airflow_delta``."""
    parts = name.split(".")
    module: ModuleType | None = None
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(["airflow_delta", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        break
    if module is None:
        raise LookupError(f"no module of {name}")
    found: Any = module
    for part in parts[length:]:
        if inspect.isclass(found) and not hasattr(found, part) and f"self.{part}" in _sources(found):
            return part
        found = getattr(found, part)
    return found


@functools.cache
def _sources(kind: type) -> str:
    return "".join(inspect.getsource(one) for one in kind.__mro__ if one.__module__.startswith("airflow_delta"))


@functools.cache
def defined(path: Path) -> frozenset[str]:
    """What a test module defines at its top: functions, classes with their tests, tables. Of data: the tables."""
    if path.suffix == ".toml":
        return frozenset(tomllib.loads(path.read_text(encoding="utf-8")))
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name, body=body):
                names |= {name, *(f"{name}::{inner.name}" for inner in body if isinstance(inner, ast.FunctionDef))}
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return frozenset(names)


def line_id(line: Line) -> str:
    return str(line.number)


@pytest.mark.parametrize("line", HELD, ids=line_id)
def test_counterparts_can_be_imported(line: Line) -> None:
    names = quoted(line.cells["counterpart"])
    assert names, "an item without a counterpart"
    for name in names:
        resolve(name)


@pytest.mark.parametrize("line", HELD, ids=line_id)
def test_tests_exist(line: Line) -> None:
    path: Path | None = None
    names = quoted(line.cells["test"])
    assert names, "an item without a test"
    for name in names:
        file, _, item = name.partition("::")
        path = TESTS / file if file else path
        assert path is not None
        assert path.is_file(), name
        if not item:
            continue
        assert item in defined(path), name
        if path.suffix == ".py" and not item.split("::")[-1].startswith("test"):
            text = path.read_text(encoding="utf-8")
            assert len(re.findall(rf"\b{re.escape(item)}\b", text)) > 1, f"no test uses the table {name}"


@pytest.mark.parametrize("page", MEMBERS)
def test_every_member_of_a_page_is_listed(page: str) -> None:
    items = " ".join(line.cells["item"] for line in LINES if line.section == page)
    missing = [name for name in MEMBERS[page].split() if not re.search(rf"\b{name}\b", items)]
    assert missing == []


def test_every_area_is_listed() -> None:
    assert {line.cells["area"] for line in LINES if line.section == "By area"} == AREAS


def test_the_list_can_fail() -> None:
    """What the checks rest on notices what is not there."""
    with pytest.raises(AttributeError):
        resolve("transaction.prepare.no_such_function")
    with pytest.raises(LookupError):
        resolve("no_such_package.module")
    assert "test_that_nobody_wrote" not in defined(TESTS / "conformance" / "test_conflicts.py")
    assert "no_such_table" not in defined(TESTS / "conformance" / "conflicts.toml")
    assert len(HELD) > 90
