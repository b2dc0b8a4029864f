"""Runs tasks in forked processes: ``python -m faults.crash.host`` reads what to run as lines of JSON and answers how it ended.

The engine is loaded once, and nothing of it has been used when a task's process is forked.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


class Host:
    """The process that forks the others."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT / "provider"), str(ROOT / "tests")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.crash.host"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": path, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )  # fmt: skip

    def run(self, work: Path, scenario: str, task: str, *, kill_at: int | None = None, try_number: int = 1) -> int:
        """Run a task and return its wait status; its output is in ``log.txt``, the points that it reached in ``trail.json``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"work": str(work), "scenario": scenario, "task": task, "kill_at": kill_at, "try_number": try_number}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def main() -> None:
    _load_everything()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _task(**json.loads(line))
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


def _load_everything() -> None:
    """Load what tasks load, so that each does not do it again."""
    import pyarrow.compute
    import pyarrow.dataset
    import pyarrow.parquet  # noqa: F401

    import airflow_delta

    for room in ("log", "transaction", "table", "contract", "streaming", "publication"):
        for module in pkgutil.walk_packages([str(Path(airflow_delta.__file__).parent / room)], f"airflow_delta.{room}."):
            importlib.import_module(module.name)


def _task(work: str, scenario: str, task: str, kill_at: int | None, try_number: int) -> None:
    from faults.crash.points import Points
    from faults.crash.run import Run, watch
    from faults.crash.scenarios import SCENARIOS
    from faults.crash.tasks import clean

    place = Path(work)
    log = os.open(place / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    chosen = SCENARIOS[scenario]
    code = 1
    try:
        points = Points(kill_at)
        watch(points, remote=chosen.remote)
        own: dict[str, Any] = {"prepare": chosen.prepare, "sweep": clean(retention_hours=1)}
        run = Run(place, points, try_number=try_number)
        (own | chosen.tasks)[task](run)
        points.reach("the end")
        (place / "trail.json").write_text(json.dumps(points.trail))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
