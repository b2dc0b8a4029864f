"""Write what ``make test-faults-long`` tried into benchmarks/RESULTS.md: ``python tests/faults/report.py``."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "build" / "faults"
PAGE = ROOT / "benchmarks" / "RESULTS.md"
BEGIN, END = "<!-- figures: make test-faults-long -->", "<!-- end of the figures -->"
COUNTED = ("tried", "failed")
OF_A_RUN = ("seed", "shown")
PACKAGES = ("apache-airflow", "pyarrow", "obstore", "deltalake", "duckdb", "polars")


def group_of(name: str) -> str:
    """Return the part of the suite to which figures belong: ``crash points, DELETE`` is one of the crash points."""
    return name.split(",")[0].split("-")[0].replace("_", " ")


def rows(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each part: how much was tried, what failed, and its other numbers, added up."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for name, values in figures.items():
        groups.setdefault(group_of(name), []).append(values)
    lines = []
    for group, found in sorted(groups.items()):
        counts = [str(_total(found, name)) if any(name in values for values in found) else "-" for name in COUNTED]
        others = {key: None for values in found for key in values if key not in (*COUNTED, *OF_A_RUN)}
        more = ", ".join(f"{key.replace('_', ' ')}: {_shown(found, key)}" for key in others)
        seeds = sorted({str(values["seed"]) for values in found if "seed" in values})
        lines.append(f"| {group} | {counts[0]} | {counts[1]} | {more} | {', '.join(seeds)} |")
    return lines


def _total(found: Iterable[Mapping[str, Any]], key: str) -> float:
    return sum(values.get(key, 0) for values in found)


def _shown(found: list[Mapping[str, Any]], key: str) -> Any:
    values = [figures[key] for figures in found if key in figures]
    if all(isinstance(value, int) for value in values):
        return sum(values)
    if all(isinstance(value, (int, float)) for value in values):
        return max(values)
    if all(isinstance(value, dict) for value in values) and all(isinstance(n, int) for value in values for n in value.values()):
        names = sorted({name for value in values for name in value})
        return "; ".join(f"{name} {sum(value.get(name, 0) for value in values)}" for name in names)
    if len(values) == 1 and isinstance(values[0], dict):
        return "; ".join(f"{name} {value}" for name, value in values[0].items())
    return values[0] if all(value == values[0] for value in values) else values


def section(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table, with the versions it was made with."""
    head = "| what | tried | failed | figures | seed |\n|---|---|---|---|---|"
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"{head}\n" + "\n".join(rows(figures)) + f"\n\nWith Python {platform.python_version()}, {packages}.\n"


def write(page: Path, table: str) -> None:
    """Replace the table of the page.

    :raises ValueError: if the page has no place for it.
    """
    before, found, rest = page.read_text().partition(BEGIN)
    _old, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"{page} has no lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{after}")


def main() -> None:
    figures = {path.stem: json.loads(path.read_text()) for path in sorted(FIGURES.glob("*.json"))}
    if not figures:
        sys.exit(f"{FIGURES} has no figures. Run make test-faults-long")
    write(PAGE, section(figures))


if __name__ == "__main__":
    main()
