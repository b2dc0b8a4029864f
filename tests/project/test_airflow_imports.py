"""What this package imports of Airflow: what Airflow declares public, and the rest in one room that says what it waits for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.places import files

PACKAGE = Path(__file__).parents[2] / "provider" / "airflow_delta"
ROOM = PACKAGE / "airflow_internals"

PUBLIC = {
    "airflow.sdk",
    "airflow.sdk.bases.decorator",  # operators of decorators
    "airflow.sdk.definitions.asset",  # BaseAsset, to which handlers of providers are given
    "airflow.sdk.definitions.deadline",  # BaseDeadlineReference, which airflow.sdk of the floor does not name
    "airflow.sdk.exceptions",
    "airflow.sdk.lineage",
    "airflow.sdk.log",
    "airflow.sdk.plugins_manager",
    "airflow.sdk.types",
    # Extension points.
    "airflow.listeners",
    "airflow.task.priority_strategy",
    "airflow.triggers.base",
}
"""Modules of the Task SDK's documentation, and those of which plugins, triggers and listeners are made."""


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module":
            for argument in node.args:
                if isinstance(argument, ast.Constant):
                    yield node.lineno, str(argument.value)


def test_nothing_private_is_imported_outside_of_its_room():
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in files(PACKAGE, "**/*.py")
        if ROOM not in path.parents
        for line, name in imports(path)
        if (name == "airflow" or name.startswith("airflow.")) and name not in PUBLIC
        if not name.startswith("airflow.providers.")
    ]
    assert found == []


@pytest.mark.parametrize("path", files(ROOM, "[!_]*.py"), ids=lambda path: path.stem)
def test_each_private_import_says_what_it_waits_for(path):
    text = path.read_text()
    tree = ast.parse(text)
    if "Waits for:" in (ast.get_docstring(tree) or ""):
        return
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert functions
    assert [node.name for node in functions if "Waits for:" not in (ast.get_docstring(node) or "")] == []
