"""Processes of one test that run at once and print a line of JSON for each thing they try."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2]


def run_at_once(module: str, *arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Run a module with each of the arguments, all at once; return what they print, in their order."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", module]
    runners = [
        subprocess.Popen([*command, *more], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for more in arguments
    ]
    try:
        with ThreadPoolExecutor(len(runners)) as threads:  # a pipe that nobody reads stops who writes
            outputs = list(threads.map(subprocess.Popen.communicate, runners))
    finally:
        for runner in runners:
            runner.kill()
    for runner, (_, errors) in zip(runners, outputs, strict=True):
        assert runner.returncode == 0, errors[-4000:]
    return [json.loads(line) for output, _ in outputs for line in output.splitlines()]
