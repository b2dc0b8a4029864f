"""Whatever happens to the runs on a table, in any order: it holds what a naive model says, and no try ends as it must not."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults.life.tries import try_life

SEQUENCES = 300
LONG, EACH = 10_000, 250
"""Sequences of a long run, and of one process of it: hypothesis grows slower with what it has tried."""
PROCESSES = 2
TESTS = Path(__file__).parents[2]


def try_apart(sequences: int, seed: int) -> None:
    """Try so many sequences in a process of their own, which ends at once: threads of native libraries may abort its end."""
    code = f"import os; from faults.life.tries import try_life; try_life({sequences}, {seed}); os._exit(0)"
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
