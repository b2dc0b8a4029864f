"""Which modules stay light: a task is a process of its own, and a Dag file is parsed every few seconds. ``make lint`` runs this.

A module is heavy if it imports at its top, directly or through others, what takes long to load. Heavy modules import freely at
their top. Light ones reach them by a door (``engine``, ``log.heavy``, ``transaction.heavy``), whose table of names this
does not follow: what a door names is loaded when it is used.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "provider" / "airflow_delta"
HEAVY = ("deltalake", "numpy", "obstore", "pandas", "polars", "pyarrow", "pyspark", "sqlglot")

# What start, a plan, the commit of a blind append, a sensor and the list of transactions import.
LIGHT = (
    "contract",
    "log.delta_log",
    "spark.errors",
    "spark.package",
    "table.commit.publish",
    "table.observe.commit_summary",
    "table.observe.watch",
    "table.stage.stage_view",
    "table.stage.write.plan",
    "table.start.begin",
    "table.state.open_transactions",
    "transaction.commit.start_transaction",
    "transaction.delta_log",
)

# What Dag files, the scheduler, every airflow command and a test's own process import.
OF_AIRFLOW = (
    "airflow_internals.tasks",
    "assets",
    "cli.definition",
    "dag_checks",
    "decorators",
    "get_provider_info",
    "hooks",
    "links",
    "notifications",
    "operators",
    "plugins",
    "retry_policies",
    "sensors",
    "task_groups",
    "tasks",
    "testing.lake",
    "testing.runs",
    "triggers",
)
# Where OpenLineage is installed, its listener imports this once a task starts.
LATER = ("tasks.openlineage.facets",)
ENGINE = ("log", "publication", "spark", "table", "transaction")
# Values and errors of the engine that parameters of operators are made of.
VALUES = (
    "log.actions.intents",
    "log.storage.base",
    "log.storage.committer",
    "log.storage.file_names",
    "log.storage.credentials",
    "log.storage.endpoints",
    "log.storage.errors",
    "log.storage.identity",
    "log.storage.object_input",
    "log.storage.options",
    "log.storage.whole_reads",
    "log.table_definition",
    "spark.connectors",
    "spark.errors",
    "spark.package",
    "table.operations.maintenance",
    "table.state.previews",
    "transaction.intents",
    "transaction.conflict_detection",
)


def is_for_types(node: ast.stmt) -> bool:
    """Tell whether a statement is for type checkers only."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports_at_the_top(body: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run when a module is imported."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ClassDef)):
            blocks = [] if is_for_types(node) else [node.body]
            blocks += [getattr(node, "orelse", []), getattr(node, "finalbody", [])]
            for block in [*blocks, *(handler.body for handler in getattr(node, "handlers", []))]:
                yield from imports_at_the_top(block)


def lazy_faces(package: Path) -> dict[str, dict[str, str]]:
    """Return, of each module that loads its names on demand, the home of each name: its stub says it."""
    found = {}
    for path in sorted(package.rglob("*.pyi")):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        nodes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
        found[name] = {alias.name: node.module or "" for node in nodes for alias in node.names}
    return found


def graph(package: Path) -> dict[str, set[str]]:
    """Return what each module loads when it is imported: modules of the package, and other packages by their first name."""
    trees = {}
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    if not trees:
        raise ValueError(f"{package} has no module.")
    faces, loads = lazy_faces(package), {}
    for name, tree in trees.items():
        named: set[str] = set()
        for node in imports_at_the_top(tree.body):
            if isinstance(node, ast.Import):
                named.update(alias.name for alias in node.names)
                continue
            module = node.module or ""
            named.add(module)
            for alias in node.names:
                named.add(faces.get(module, {}).get(alias.name, f"{module}.{alias.name}"))
        loaded: set[str] = set()
        for target in named:
            parts = target.split(".")
            if parts[0] != package.name:
                loaded.add(parts[0])
                continue
            loaded.update(known for end in range(1, len(parts) + 1) if (known := ".".join(parts[:end])) in trees)
        loads[name] = loaded - {name}
    return loads


def is_in(name: str, rooms: Iterable[str], package: str) -> bool:
    """Tell whether a module is one of some rooms, or in one."""
    return any(f"{name}.".startswith(f"{package}.{room}.") for room in rooms)


def chain(loads: dict[str, set[str]], start: str, ends: Iterable[str]) -> list[str]:
    """Return how a module reaches one of others; empty if it does not."""
    ends, before = set(ends), {start: ""}
    todo = [start]
    for name in todo:
        if name in ends:
            way = [name]
            while before[way[-1]]:
                way.append(before[way[-1]])
            return way[::-1]
        for target in sorted(loads.get(name, ())):
            if target not in before:
                before[target] = name
                todo.append(target)
    return []


def faults(package: Path = PACKAGE) -> list[str]:
    """Return, of each light module that is not, how it reaches something heavy."""
    loads = graph(package)
    root = package.name
    engine = [name for name in loads if is_in(name, ENGINE, root) and name.count(".") > 1 and not is_in(name, VALUES, root)]
    engine = [name for name in engine if not any(other.startswith(f"{name}.") for other in loads)]  # a package's face is empty
    found = []
    for name in sorted(loads):
        if is_in(name, LIGHT, root) and (way := chain(loads, name, HEAVY)):
            found.append(f"must stay light: {' -> '.join(way)}")
        of_airflow = is_in(name, OF_AIRFLOW, root) and not is_in(name, LATER, root)
        if of_airflow and (way := chain(loads, name, [*HEAVY, *engine])):
            found.append(f"is imported with every Dag file: {' -> '.join(way)}")
    return found


def main() -> int:
    """Print what is heavy and must not be."""
    found = faults()
    print("\n".join(found), file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
