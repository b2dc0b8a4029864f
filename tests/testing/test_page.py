"""The page about tests of Dags, copied and pasted into an empty folder, with the package from its wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile

import pytest

from support.building import ROOT, build
from support.documents import blocks_of, shell

PAGE = ROOT / "docs" / "how-to" / "testing.md"


@pytest.mark.slow
@pytest.mark.airflow
@pytest.mark.timeout(1500)
def test_the_page_as_written(tmp_path):
    (wheel,) = build(tmp_path / "build", "--wheel").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    folder = tmp_path / "project"
    (folder / "dags").mkdir(parents=True)
    script = shell([block for block in blocks_of(PAGE) if block.kind in ("bash", "python")])
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON", "PYTEST"))}
    env |= {"PYTHONPATH": str(tmp_path / "installed"), "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{env['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=1400, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"\b5 passed", done.stdout)


def test_the_page_lists_the_points():
    from airflow_delta.testing import POINTS

    rows = re.findall(r'^- `"(.+?)"`: ', PAGE.read_text(), re.MULTILINE)
    assert rows == list(POINTS)
