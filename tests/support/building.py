"""Distributions of this tree, built from a copy of it: a build writes into the folder that it builds from."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MADE = (".git", ".venv", ".cache", ".demo", ".*_cache", ".hypothesis", ".coverage*", "build", "dist", "*.egg-info", "__pycache__")


def build(folder: Path, *options: str) -> Path:
    """Build into ``folder / "dist"``, which is returned; without options: an sdist, and the wheel from it."""
    source, out = folder / "source", folder / "dist"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*MADE))
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out
