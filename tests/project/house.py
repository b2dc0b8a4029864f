"""How the package is cut into modules: nothing of it may grow worse than it is. ``make lint`` runs this beside import-linter.

import-linter keeps the floors and refuses circles, imports inside functions and for types included. Here is what it does not
count: names that two modules define, names of Delta and tags that a second module spells, features that the core names, imports
inside functions, modules imported under the name of another idea, names imported twice, errors that are not made by what they
are about, large modules. Of the tests: modules of tests that others import, since what tests share is in a module of its own.
``house.json`` has the most that is allowed of each; ``--lower`` writes today's numbers where they are lower. None is raised: a
name is changed, a module split instead.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "provider" / "airflow_delta"
TESTS = Path(__file__).parents[1]
CEILINGS = Path(__file__).with_name("house.json")
LARGE = 600
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def parsed(package: Path) -> dict[str, tuple[int, ast.Module]]:
    """Return the number of lines and the syntax tree of each module, by its path below the package."""
    texts = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    if not texts:
        raise ValueError(f"{package} has no module.")
    return {name: (text.count("\n"), ast.parse(text)) for name, text in texts.items()}


def double_names(modules: dict[str, tuple[int, ast.Module]]) -> dict[str, list[str]]:
    """Return the public classes and functions that several modules define, with these modules."""
    homes: dict[str, list[str]] = defaultdict(list)
    for name, (_, tree) in modules.items():
        for public in sorted({node.name for node in tree.body if isinstance(node, (*_FUNCTION, ast.ClassDef))}):
            if not public.startswith("_"):
                homes[public].append(name)
    return {name: found for name, found in sorted(homes.items()) if len(found) > 1}


def imports_in_functions(tree: ast.AST, *, inside: bool = False) -> Iterator[str]:
    """Yield the package that each import statement inside a function names."""
    for node in ast.iter_child_nodes(tree):
        if inside and isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif inside and isinstance(node, ast.Import):
            yield node.names[0].name.partition(".")[0]
        yield from imports_in_functions(node, inside=inside or isinstance(node, _FUNCTION))


NAMES = ("contract/delta_names.py", "contract/tags.py")
"""The modules that own names which the log has. ``masking`` is below them, and has the prefixes of its own."""


def names_spelled_again(modules: dict[str, tuple[int, ast.Module]]) -> Iterator[str]:
    """Yield the texts of a module that spell a name of one of :data:`NAMES`, but for docstrings."""
    owned = {
        node.value.value
        for name in NAMES
        if name in modules
        for node in modules[name][1].body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }
    for name, (_, tree) in modules.items():
        if name not in (*NAMES, "masking.py"):
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in owned:
                    yield f"{name}:{node.lineno}: {node.value}"


CORE = ("log", "transaction", *(f"table/{room}" for room in ("start", "stage", "commit", "abort", "state", "read")))
"""Rooms that know rules, and no feature of ours that relies on them (docs/decisions.md, 268)."""
FEATURES = re.compile(
    r"publications?(?![a-z])|catalog|unity|partition_?event|copy_?into|new_rows|source_?position|file_?load|table\.positions",
    re.IGNORECASE,
)
DELTAS = frozenset({"CATALOG_MANAGED", "catalog_table", "catalogTable"})
"""Delta's own names: a table feature, and a parameter of an operation."""


def features_in_core(modules: dict[str, tuple[int, ast.Module]]) -> Iterator[str]:
    """Yield where a module of the core names a feature: in an import or a name, and publications in a text as well."""
    for module, (_, tree) in modules.items():
        if not module.removesuffix(".py").startswith(CORE):
            continue
        for node in ast.walk(tree):
            # What a node calls something by: id, attr, arg, name, asname, module.
            names = [value for field, value in ast.iter_fields(node) if isinstance(value, str) and field != "value"]
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = re.findall(r"publications?", node.value)
            for name in names:
                if FEATURES.search(name) and name not in DELTAS:
                    yield f"{module}:{getattr(node, 'lineno', 0)}: {name}"


SAME_IDEA = frozenset({"to_array", "table_protocol", "protocols", "publications", "schemas", "airflow_tasks", "rows_of"})
"""Other names that modules are imported under, since a variable has theirs."""


def foreign_names(package: Path, tree: ast.AST) -> Iterator[str]:
    """Yield the modules of the package that are imported under the name of another idea."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package.name:
            for alias in node.names:
                is_module = (package.parent / node.module.replace(".", "/") / f"{alias.name}.py").exists()  # type: ignore[union-attr]
                if is_module and alias.asname not in (None, alias.name, *SAME_IDEA):
                    yield f"{alias.name} as {alias.asname}"


def imported_twice(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module imports both at run time and for types."""
    at_run_time = {(node.module, alias.name) for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    for block in tree.body:
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test):
            for node in block.body:
                if isinstance(node, ast.ImportFrom):
                    yield from (alias.name for alias in node.names if (node.module, alias.name) in at_run_time)


_OWNERS = ("table", "uri", "root")  # handle.table, log.uri, store.root


def errors_by_hand(tree: ast.AST) -> Iterator[int]:
    """Yield the lines where an error is told a table that an object holds, instead of ``object.error(Kind, ...)``."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(("Exception", "Error")):
            continue
        given = {word.arg: word.value for word in node.keywords}
        table = given.get("table")
        # An error that is about another's commit names the winner's version.
        if isinstance(table, ast.Attribute) and table.attr in _OWNERS and "winning_version" not in given:
            yield node.lineno


def imported_tests(tests: Path) -> Iterator[str]:
    """Yield where a module imports a module of tests."""
    homes = {path.relative_to(tests).with_suffix("").as_posix().replace("/", ".") for path in tests.rglob("test_*.py")}
    for name, (_, tree) in parsed(tests).items():
        package = name.split("/")[:-1]
        for node in ast.walk(tree):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                above = package[: len(package) + 1 - node.level] if node.level else []
                module = ".".join([*above, *([node.module] if node.module else [])])
                found = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            yield from (f"{name}:{node.lineno}: {home}" for home in found if home in homes)


def measured(package: Path) -> dict[str, list[str]]:
    """Return what is counted, item by item."""
    modules = parsed(package)
    lazy = [(name, target) for name, (_, tree) in modules.items() for target in imports_in_functions(tree)]
    return {
        "double_names": [f"{name}: {', '.join(found)}" for name, found in double_names(modules).items()],
        "names_spelled_again": list(names_spelled_again(modules)),
        "foreign_names": [f"{name}: {found}" for name, (_, tree) in modules.items() for found in foreign_names(package, tree)],
        "features_in_core": list(features_in_core(modules)),
        "imported_twice": [f"{name}: {found}" for name, (_, tree) in modules.items() for found in imported_twice(tree)],
        "imports_in_functions_own": [name for name, target in lazy if target == package.name],
        "imports_in_functions_others": [f"{name}: {target}" for name, target in lazy if target != package.name],
        "errors_by_hand": [f"{name}:{line}" for name, (_, tree) in modules.items() for line in errors_by_hand(tree)],
        f"modules_over_{LARGE}_lines": [f"{name}: {lines} lines" for name, (lines, _) in modules.items() if lines > LARGE],
    }


def main(arguments: list[str]) -> int:
    """Compare with the ceilings; ``--lower`` lowers them, and the name of a measure lists what it counts."""
    found = {**measured(PACKAGE), "imported_tests": list(imported_tests(TESTS))}
    ceilings = json.loads(CEILINGS.read_text(encoding="utf-8"))
    if "--lower" in arguments:
        lower = {name: min(len(items), ceilings.get(name, len(items))) for name, items in found.items()}
        CEILINGS.write_text(json.dumps(lower, indent=2) + "\n", encoding="utf-8")
        return 0
    for name in found.keys() & set(arguments):
        print("\n".join(found[name]))
    failed = [
        f"{name}: {len(items)}, allowed are {ceilings[name]}" for name, items in found.items() if len(items) > ceilings[name]
    ]
    for line in failed:
        print(f"{line} ({CEILINGS.name}); python {Path(__file__).name} {line.partition(':')[0]} lists them", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
