"""Histories of concurrent transactions, with faults in the store and processes killed, judged from log and notes alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.shared.runners import run_at_once

TESTS = Path(__file__).parents[2]
KEPT = TESTS.parent / "build" / "faults" / "histories"
RUNNERS = 2

REFUSALS = (
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentDeleteDeleteException",
    "ConcurrentTransactionException",
    "MetadataChangedException",
)
ENDS = ("committed", "failed", "killed", "unknown", "nothing", "killed, and committed")


def run(directory: Path, *arguments: list[str]) -> list[dict[str, Any]]:
    """Run a runner with each of the arguments, all at once; return what they found."""
    return run_at_once("faults.history.runner", *(["--directory", str(directory), *more] for more in arguments))


def test_every_history_is_serial(tmp_path: Path, is_long: bool, seed: int, figures: Callable[..., None]) -> None:
    count = 10_000 if is_long else 200
    each = ["--seed", str(seed), "--count", str(count // RUNNERS)]
    found = run(tmp_path, *([*each, "--first", str(number * count // RUNNERS)] for number in range(RUNNERS)))
    wrong = {line["history"]: line["wrong"] for line in found if line["wrong"]}
    counts = sum((Counter(line["counts"]) for line in found), Counter[str]())
    ends = {end: counts[end] for end in ENDS}
    figures(
        "histories",
        tried=len(found),
        failed=len(wrong),
        seed=seed,
        commits=counts["commits"],
        transactions=sum(counts[end] for end in ENDS[:-1]),
        refused=sum(counts[error] for error in REFUSALS),
        killed=counts["killed"],
        killed_and_committed=counts["killed, and committed"],
        unknown=counts["unknown"],
    )
    for name in wrong:
        shutil.copytree(tmp_path / name, KEPT / name, dirs_exist_ok=True)
    assert not wrong, f"FAULTS_SEED={seed}, kept in {KEPT} for faults/history/judge.py: {json.dumps(wrong, indent=1)}"
    assert len(found) == count
    happened = {**ends, **{name: counts[name] for name in (*REFUSALS, "table:Serializable", "table:WriteSerializable")}}
    assert all(happened.values()), f"not everything happened: {happened}"


def test_a_broken_rule_is_noticed(tmp_path: Path, seed: int, figures: Callable[..., None]) -> None:
    found = run(tmp_path, ["--seed", str(seed), "--count", "80", "--mutations"])
    tried = list(dict.fromkeys(line["mutation"] for line in found))
    survivors = sorted(set(tried) - {line["mutation"] for line in found if line["wrong"]})
    figures("history_mutations", tried=len(tried), failed=len(survivors), histories=len(found), seed=seed)
    assert tried
    assert not survivors, f"FAULTS_SEED={seed}: no history was wrong although {survivors}"


@pytest.mark.parametrize("module", ["faults.history.judge", "faults.history.log", "faults.history.refusals"])
def test_the_judge_does_not_know_the_engine(module: str) -> None:
    code = f"import sys, {module}; print([name for name in sys.modules if name.startswith(('airflow', 'pyarrow', 'deltalake'))])"
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == "[]\n"
