"""An environment with the wheel, and a folder with the tests and without the sources, so that nothing comes from the tree."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from support.environments import clean_environment
from versions import run as versions

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "tests" / "versions" / "constraints"
TOOLS = ("deltalake", "playwright", "psutil", "pytest", "pytest-timeout", "pytest-xdist")
"""What the tests of the pages need beside what the wheel brings; in the versions of the lock."""


def readme_command() -> str:
    """Return the command of README's section "Install"."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Install\n")[2]
    lines = [line[4:] for line in text.partition("\n## ")[0].splitlines() if line.startswith("    ")]
    assert lines, "README's section Install has no command"
    return "\n".join(lines)


def with_stored_constraints(command: str) -> tuple[str, str]:
    """Return a command with the stored copy of Airflow's constraints in the place of their URL, and the Python they are for.

    Only a package index is sure to be in reach.
    """
    url, airflow, python = re.findall(r"(https://\S+/constraints-([\w.]+)/constraints-(3\.\d+)\.txt)", command)[0]
    file = CONSTRAINTS / f"constraints-{airflow}-{python}.txt"
    assert file.is_file(), f"{file} is missing: README's constraints have to be stored there"
    return command.replace(url, str(file)), python


def uv_environment(wheels: Path) -> dict[str, str]:
    """Return the variables by which uv finds the wheel of this tree, and what is built once for all environments."""
    places = [str(wheels), *versions.wheels([])[1::2]]
    return {"UV_CACHE_DIR": str(versions.CACHE / "uv-cache"), "UV_FIND_LINKS": ",".join(places), "UV_PYTHON_DOWNLOADS": "never"}


PIP_BY_UV = f'pip() {{ {shlex.quote(str(versions.UV))} --quiet pip "$@"; }}\n'
"""For the shell: uv, which has a cache, in the place of pip."""


class Installation:
    """README's command in a fresh environment.

    :param folder: an empty folder, outside of the tree.
    :param wheels: the folder with the wheel.
    """

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.folder = folder
        self.tools = folder / "tools"
        self.checkout = folder / "checkout"
        command, python = with_stored_constraints(readme_command())
        self.home = folder / "environment"
        self.python = self.home / "bin" / "python"
        self.env = clean_environment(
            folder,
            **uv_environment(wheels),
            VIRTUAL_ENV=str(self.home),
            PATH=f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}",
        )
        versions.uv("venv", "--python", versions.interpreter(python), str(self.home))
        self.run("bash", "-euc", PIP_BY_UV + command)

    def run(self, *command: str, timeout: int = 900, **more: str) -> str:
        """Run a command in the folder, and return what it prints."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.env | more, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
        return done.stdout

    def test(self, *arguments: str, timeout: int = 1100) -> str:
        """Run tests of this tree on what is installed, and return what pytest prints."""
        if not self.checkout.exists():
            self._copy_tests()
        command = [
            str(self.python),
            "-m",
            "pytest",
            "-q",
            "-W",
            "default",
            "-p",
            "no:cacheprovider",
            "--timeout",
            "1000",
            *arguments,
        ]
        done = subprocess.run(
            command,
            cwd=self.checkout,
            env=self.env | {"PYTHONPATH": str(self.tools)},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-12000:] + done.stderr[-3000:]
        return done.stdout

    def _copy_tests(self) -> None:
        """Have the tests without the package, and their tools in a folder of their own: the environment stays as it is."""
        kept = self.folder / "kept.txt"
        kept.write_text(versions.uv("pip", "freeze", "--exclude", "airflow-provider-delta", "--python", str(self.python)))
        lock = (ROOT / "requirements.lock").read_text().splitlines()
        tools = [line for line in lock if line.partition("==")[0] in TOOLS]
        assert len(tools) == len(TOOLS)
        target = ["--python", str(self.python), "--target", str(self.tools), "--constraint", str(kept)]
        versions.uv("pip", "install", *target, *tools)
        shutil.copytree(ROOT / "tests", self.checkout / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", self.checkout)
