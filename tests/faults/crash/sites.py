"""The places in the provider from which something outside of the process is changed, found in its source."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from faults.crash.points import PROVIDER, STORES
from faults.shared.layers import EFFECTS
from support.places import files

OF_SYSTEM = {
    "os": ("rmdir", "unlink", "remove", "rename", "replace", "link", "symlink", "mkdir", "makedirs", "truncate", "removedirs"),
    "shutil": ("rmtree", "move", "copy", "copyfile", "copytree", "copy2"),
}
OF_AIRFLOW = ("set", "delete", "xcom_push")
"""Of a task's state store, and of a task instance."""

ENGINE = ("log", "transaction", "table", "publication")
"""Where `put` and `delete` of any receiver count."""


@dataclass(frozen=True, order=True)
class Site:
    """A call that has an effect.

    :param file: relative to the provider.
    """

    file: str
    function: str
    method: str
    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.file}::{self.function}: {self.method}"

    def holds(self, reached: str) -> bool:
        file, _, line = reached.rpartition(":")
        return file == self.file and self.first <= int(line) <= self.last


def sites() -> list[Site]:
    """Return every call with an effect on a table, and every change of a file system that does not go through a store.

    What runs on a cluster (``spark/``) writes by Spark alone.
    """
    found = []
    for path in files(PROVIDER, "**/*.py"):
        if str(path) in STORES or PROVIDER / "spark" in path.parents:
            continue
        found += _of_file(path)
    return found


def _of_file(path: Path) -> list[Site]:
    file, found = str(path.relative_to(PROVIDER)), []

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        if isinstance(node, ast.Call) and (method := _effect(node, file)) is not None:
            found.append(Site(file, function, method, node.lineno, node.end_lineno or node.lineno))
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(path.read_text()), "")
    return found


def _effect(call: ast.Call, file: str) -> str | None:
    if not isinstance(call.func, ast.Attribute):
        return None
    method, receiver = call.func.attr, ast.unparse(call.func.value)
    if method in OF_SYSTEM.get(receiver, ()):
        return f"{receiver}.{method}"
    if receiver.split(".")[-1].strip("_").endswith("store") and method in (*EFFECTS, *OF_AIRFLOW):
        return method
    if method in ("put_if_absent", "put_file", "delete_tree", "xcom_push", "write_bytes", "write_text", "touch"):
        return method
    return method if method in ("put", "delete") and file.split("/")[0] in ENGINE else None
