"""What an installation has and does: the package and its pages from the wheel, the quick start as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from installed.installation import PIP_BY_UV, ROOT, Installation, uv_environment
from support.documents import blocks_of, shell
from support.environments import clean_environment
from support.places import tracked

QUICK_START = ROOT / "docs" / "quick-start.md"
WHERE = "import airflow_delta; print(airflow_delta.__file__)"


def test_the_command_of_the_readme_installs_every_file(installation: Installation) -> None:
    """Nothing comes from the tree: neither by the path nor by an editable installation."""
    package = Path(installation.run(str(installation.python), "-c", WHERE).strip()).parent
    assert package.parent.name == "site-packages"
    assert package.is_relative_to(installation.home)
    folder = ROOT / "provider" / "airflow_delta"
    missing = [str(path.relative_to(folder)) for path in tracked(folder) if not (package / path.relative_to(folder)).is_file()]
    assert missing == []
    assert "airflow-provider-delta" in installation.run("airflow", "providers", "list")


def test_the_pages_by_http(installation: Installation) -> None:
    said = installation.test("-n", "2", "--dist", "loadfile", "-m", "not browser and not slow", "tests/ui")
    assert int(re.findall(r"(\d+) passed", said)[-1]) > 200


def test_a_page_in_the_browser(installation: Installation) -> None:
    """On a server and with Dag runs of the installation."""
    said = installation.test("-m", "browser", "tests/ui/test_browser.py", "-k", "test_from_the_list_to_the_dag_run")
    assert "1 passed" in said


def test_the_quick_start_as_written(wheels: Path, tmp_path: Path) -> None:
    """All blocks of the quick start in one shell, in an empty folder; what it prints is what the text says it prints."""
    folder = tmp_path / "newcomer"
    folder.mkdir()
    # The wheel of this tree, and versions that are known to work together; a newcomer's python3 is this one.
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").symlink_to(Path(sys.executable).resolve())
    env = clean_environment(
        tmp_path,
        **uv_environment(wheels),
        UV_CONSTRAINT=str(ROOT / "requirements.lock"),
        PATH=f"{programs}:/usr/local/bin:/usr/bin:/bin",
    )
    script = PIP_BY_UV + shell(list(blocks_of(QUICK_START))) + f"\npython -c '{WHERE}'\n"
    done = subprocess.run(["bash"], input=script, cwd=folder, env=env, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    pattern = r"version (\d+), (\d+) rows"
    promised = re.findall(f"`{pattern}`", QUICK_START.read_text(encoding="utf-8"))
    assert len(promised) == 5
    assert re.findall(f"^{pattern}", done.stdout, re.MULTILINE) == promised
    assert "the run failed" in done.stdout
    assert Path(done.stdout.splitlines()[-1]).is_relative_to(folder / ".venv")
