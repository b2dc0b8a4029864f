"""Histories of concurrent transactions on real rows: a version holds what its transaction makes of the rows before it.

The level of conflict detection is mostly ``rows``. Model, reader and judge know nothing of how the engine decides.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.rows.histories import AFTER_COMPACTION
from faults.shared.runners import run_at_once

TESTS = Path(__file__).parents[2]
KEPT = TESTS.parent / "build" / "faults" / "row-histories"
RUNNERS = 2

OPERATIONS = (
    "append", "delete", "update", "merge", "replace", "replace_partitions", "replace_using", "look", "optimize", "restate",
    "restore",
)  # fmt: skip
HOW = ("statistics", "keys", "rows", "moved", "dropped")
REFUSALS = ("ConcurrentAppendException", "ConcurrentDeleteReadException", "ConcurrentDeleteDeleteException")


def run(directory: Path, *arguments: list[str], module: str = "faults.rows.histories") -> list[dict[str, Any]]:
    """Run a process with each of the arguments, all at once, each in its directory; return what they found."""
    directories = [["--directory", str(directory / str(number))] for number in range(len(arguments))]
    return run_at_once(module, *(where + more for where, more in zip(directories, arguments, strict=True)))


def test_every_version_holds_the_rows_of_a_serial_order(
    tmp_path: Path, is_long: bool, seed: int, figures: Callable[..., None]
) -> None:
    count = 10_000 if is_long else 100
    each = ["--seed", str(seed), "--count", str(count // RUNNERS)]
    found = run(tmp_path, *([*each, "--first", str(number * count // RUNNERS)] for number in range(RUNNERS)))
    wrong = [line for line in found if line["wrong"]]
    counts = sum((Counter(line["counts"]) for line in found), Counter[str]())
    figures(
        "row_histories",
        tried=len(found),
        failed=len(wrong),
        seed=seed,
        commits=counts["commits"],
        refused=counts["refused"],
        refused_needlessly=counts["needless"],
        refused_after_compactions=sum(number for key, number in counts.items() if key.startswith(f"needless:{AFTER_COMPACTION}")),
        commits_that_delta_refuses=counts["resolved"],
        how={how: counts[f"resolved:{how}"] for how in HOW},
    )
    for line in wrong:
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / f"{line['history']}.json").write_text(json.dumps(line, indent=1))
    shown = "\n\n".join("\n".join([line["history"], *line["wrong"], *line["shrunk"]]) for line in wrong[:3])
    assert not wrong, f"FAULTS_SEED={seed}, kept in {KEPT}: {[line['history'] for line in wrong]}\n{shown}"
    assert len(found) == count
    needless = {key: counts[key] for key in (f"needless:{AFTER_COMPACTION}:rows", "needless:optimize:rows") if counts[key]}
    assert not needless, f"FAULTS_SEED={seed}: compactions, or others because of them, were refused without need: {needless}"
    happened = {f"committed:{kind}" for kind in OPERATIONS} | {f"resolved:{how}" for how in HOW} | set(REFUSALS)
    missed = sorted(happened - set(+counts))
    assert len(missed) <= (0 if is_long else 1), f"FAULTS_SEED={seed}: not everything happened: {missed}"  # one is rare


def test_processes_that_put_at_once_leave_the_rows_of_a_serial_order(
    tmp_path: Path, is_long: bool, seed: int, figures: Callable[..., None]
) -> None:
    count = 1000 if is_long else 20
    found = run(tmp_path, ["--seed", str(seed), "--count", str(count)], module="faults.rows.processes")
    wrong = [line for line in found if line["wrong"]]
    counts = sum((Counter(line["counts"]) for line in found), Counter[str]())
    names = {"commits": "commits", "refused": "refused", "resolved": "resolved", "lost_races": "lost a race"}
    figures("row_processes", tried=count, failed=len(wrong), seed=seed, **{name: counts[key] for name, key in names.items()})
    shown = "\n\n".join("\n".join([line["history"], *line["wrong"], *line["steps"]]) for line in wrong[:3])
    assert not wrong, f"FAULTS_SEED={seed}: {[line['history'] for line in wrong]}\n{shown}"
    assert len(found) == count
    assert all(counts[key] for key in names.values()), f"FAULTS_SEED={seed}: {counts}"


def test_a_broken_rule_is_noticed(tmp_path: Path, seed: int, figures: Callable[..., None]) -> None:
    each = ["--seed", str(seed), "--count", "500", "--mutations"]
    found = run(tmp_path, *([*each, "--part", f"{number}/{RUNNERS}"] for number in range(RUNNERS)))
    tried = list(dict.fromkeys(line["mutation"] for line in found))
    survivors = sorted(set(tried) - {line["mutation"] for line in found if line["wrong"]})
    figures("row_mutations", tried=len(tried), failed=len(survivors), histories=len(found), seed=seed)
    assert tried
    assert not survivors, f"FAULTS_SEED={seed}: no history was wrong although {survivors}"


@pytest.mark.parametrize("module", ["faults.rows.model", "faults.rows.reader", "faults.rows.draws"])
def test_the_judge_does_not_know_the_engine(module: str) -> None:
    code = f"import sys, {module}; print([name for name in sys.modules if name.startswith(('airflow', 'deltalake'))])"
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == "[]\n"
