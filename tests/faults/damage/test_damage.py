"""Damaged tables: a typed error or the right rows, never other rows, and never at a cost that the file does not explain.

Judged by what the undamaged table held. The lines of the log format carry no checksum of their own: a changed digit that leaves a
line valid shows only against the version's checksum file, so the judge reads as a careful reader does, with ``validate_checksum``
(these are counted apart). What nothing in the format can tell is counted apart as well, or not tried: a deleted newest commit
(the version before is read), a commit copied to the next version (it is a commit), one deletion vector file in the place of
another with vectors of the same sizes, and a letter in a line, or the line of a key, of a table with more files and keys than a
checksum lists.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from faults.damage.cases import CASES
from faults.damage.damage import draw

TESTS = Path(__file__).parents[2]
NUMBERS = {"markers": (25, 300), "large files": (60, 600)}
"""How many damages, by default and in a long run; of the other cases as below."""
OTHERS = (100, 600)
MEGABYTES, CPU_SECONDS = 50, 2.0


def run(case: str, seed: str, count: int) -> list[dict[str, Any]]:
    """Try damages in a process of its own, which ends itself when one takes too long."""
    command = [sys.executable, "-m", "faults.damage.worker", case, seed, "0", str(count)]
    env = os.environ | {"PYTHONPATH": str(TESTS), "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(command, env=env, cwd=TESTS, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, f"seed {seed}: ended with {done.returncode} after {done.stderr[-4000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("case", CASES)
def test_damage(case: str, is_long: bool, seed: int, figures: Any) -> None:
    count = NUMBERS.get(case, OTHERS)[is_long]
    found = run(case, str(seed), count)
    assert [damage["number"] for damage in found] == list(range(count))
    outcomes = Counter(damage["outcome"] for damage in found)
    wrong = [damage for damage in found if damage["outcome"] in ("wrong", "untyped")]
    costly = [damage for damage in found if damage["megabytes"] > MEGABYTES or damage["cpu"] > CPU_SECONDS]
    figures(
        f"damage-{case.lower().replace(' ', '-')}",
        seed=seed,
        tried=count,
        failed=len(wrong) + len(costly),
        outcomes=dict(outcomes),
        most_megabytes=max(damage["megabytes"] for damage in found),
        most_cpu_seconds=max(damage["cpu"] for damage in found),
    )
    assert not wrong, f"seed {seed}: {wrong[:3]}"
    assert not costly, f"seed {seed}: {costly[:3]}"
    assert sum(damage["changed"] for damage in found) > count / 2, outcomes
    assert outcomes["refused"] or case == "markers", outcomes  # of markers, the undamaged ones always tell


def test_the_same_seed_draws_the_same_damage() -> None:
    files = ["a.json", "b.json", "c.crc"]
    drawn = [[draw(number, files, seed) for number in range(50)] for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
