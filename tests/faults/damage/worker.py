"""Try damages in a process of its own: ``python -m faults.damage.worker CASE SEED FIRST LAST``. A line of JSON for each.

The process measures itself, and ends by itself: after twenty seconds of CPU for one damage, or two minutes of waiting.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import logging
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_delta.exceptions import DeltaError
from faults.damage.cases import CASES, RIGHT, Case
from faults.damage.damage import apply, copy, draw

LIBC = ctypes.CDLL(None)
MEGABYTE = 1 << 20
ADDRESS_SPACE = 8 << 30


def memory(field: str) -> int:
    """Return a figure of this process in bytes: ``VmRSS``, or ``VmHWM``, the most since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def measured(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run ``work`` and add CPU seconds and the memory that it took on top of what was there."""
    gc.collect()
    LIBC.malloc_trim(0)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again
    used = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + 21, resource.RLIM_INFINITY))
    faulthandler.dump_traceback_later(120, exit=True)
    try:
        found = work()
    finally:
        faulthandler.cancel_dump_traceback_later()
    return {**found, "cpu": round(time.process_time() - used, 3), "megabytes": round((memory("VmHWM") - before) / MEGABYTE, 1)}


def attempt(case: Case) -> dict[str, Any]:
    """Look at a damaged folder and return how it went."""
    try:
        return {"outcome": case.judge()}
    except DeltaError as error:
        return {"outcome": "refused", "error": type(error).__name__}
    except AssertionError as error:
        return {"outcome": "wrong", "error": str(error)[:2000]}
    except Exception:
        return {"outcome": "untyped", "error": traceback.format_exc()[-3000:]}


def main(name: str, seed: str, first: int, last: int) -> None:
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="damage") as folder:
        # Handles and reports name the table by its path, so each copy is where the original was built.
        live, original = Path(folder) / "live", Path(folder) / "original"
        live.mkdir()
        case = CASES[name](live)
        live.rename(original)
        files = [path.as_posix() for path in case.targets]
        for number in (-1, *range(first, last)):
            shutil.rmtree(live, ignore_errors=True)
            copy(original, live)
            damage = None if number < 0 else draw(number, files, f"{name}:{seed}")
            changed = damage is not None and apply(live, damage)
            print(f"damage {number}: {damage}", file=sys.stderr, flush=True)
            found = measured(lambda: attempt(case))
            if damage is None:  # loads what is loaded once
                assert found["outcome"] == RIGHT, found
                continue
            print(json.dumps({"number": number, "damage": str(damage), "changed": changed, **found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
