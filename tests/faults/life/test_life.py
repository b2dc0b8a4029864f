"""Whatever happens to the runs on a table, in any order: it holds what a naive model says, and no try ends as it must not."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from faults.life.machine import Life

SEQUENCES, STEPS = 300, 30
LONG, EACH = 10_000, 250
"""Sequences of a long run, and of one process of it: hypothesis grows slower with what it has tried."""
PROCESSES = 2
TESTS = Path(__file__).parents[2]


def try_life(sequences: int, seed: int, *, only: str | None = None, **more: Any) -> None:
    """Try so many sequences; the first that shows a fault is shrunk and raised.

    :param only: kind of their Dags.
    """
    machine = hypothesis.seed(seed)(type("Life", (Life,), {"only": only}))
    options: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    options |= {"report_multiple_bugs": False, "print_blob": True, "stateful_step_count": STEPS}
    run_state_machine_as_test(machine, settings=settings(max_examples=sequences, **options, **more))


def try_apart(sequences: int, seed: int) -> None:
    """Try so many sequences in a process of their own, which ends at once: threads of native libraries may abort its end."""
    code = f"import os; from faults.life.test_life import try_life; try_life({sequences}, {seed}); os._exit(0)"
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"seed {seed}:\n{ended.stderr[-6000:]}"


def test_runs_leave_what_they_must(is_long, seed, figures):
    if not is_long:
        sequences = int(os.environ.get("LIFE_SEQUENCES", SEQUENCES))
        try_life(sequences, seed)
        figures("life_of_a_run", tried=sequences, failed=0, seed=seed)
        return
    with ThreadPoolExecutor(PROCESSES) as pool:
        parts = [pool.submit(try_apart, EACH, seed + part) for part in range(LONG // EACH)]
    wrong = [str(part.exception()) for part in parts if part.exception()]
    figures("life_of_a_run", tried=LONG, failed=len(wrong), seed=seed)
    assert not wrong, "\n\n".join(wrong)
