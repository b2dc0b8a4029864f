"""Run the tests on other versions: ``python tests/versions/run.py [cell ...]``, or ``make test-versions CELLS="floor current"``.

Each cell of ``cells.toml`` gets an environment in ``.cache/versions``, made by uv with one cache for all, and runs the tests that
depend on what it changes. A table of the results is printed at the end, and is ``build/versions.md`` then.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache"
UV = CACHE / "uv" / "bin" / "uv"

JUDGES = ("deltalake", "duckdb", "duckdb-extension-delta", "polars", "polars-deltalake")
"""What tests judge by: of the versions in requirements.lock, whatever a cell is about."""

SLOWER = "not slow and not stores and not clusters and not faults and not browser and not live and not delta_spark"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """An environment, and what its tests depend on; see ``cells.toml``."""

    name: str
    python: str
    tests: list[str]
    constraints: str | None = None
    requirements: list[str] = field(default_factory=list)
    extras: list[str] = field(default_factory=lambda: ["spark"])
    without: list[str] = field(default_factory=list)
    newest: bool = False


def cells() -> dict[str, Cell]:
    """Return the cells by name."""
    return {name: Cell(name=name, **values) for name, values in tomllib.loads((HERE / "cells.toml").read_text()).items()}


def main() -> int:
    """Run the cells that are asked for, all by default."""
    known = cells()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="cell", help=f"one or several of install, {', '.join(known)}")
    parser.add_argument("--pytest", default="", help="more arguments for pytest")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.cells) - known.keys() - {"install"}):
        parser.error(f"there is no cell {', '.join(unknown)}")
    rows = [] if asked.cells and "install" not in asked.cells else installs()
    rows += [run(known[name], asked.pytest.split()) for name in asked.cells or known if name != "install"]
    report = table(rows)
    print(report)
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "versions.md").write_text(report)
    return 1 if any(row["verdict"] != "passed" for row in rows) else 0


def installs() -> list[dict[str, str]]:
    """Resolve the install line of the README with every file of constraints, for its Airflow and its Python."""
    rows = []
    for path in sorted((HERE / "constraints").glob("constraints-*.txt")):
        airflow, _, python = path.stem.removeprefix("constraints-").rpartition("-")
        if airflow == "3.3.0":  # below the floor
            continue
        begin = time.monotonic()
        wanted = "apache-airflow" if airflow == "main" else f"apache-airflow=={airflow}"
        requirements = CACHE / "install.in"
        requirements.write_text(f"{wanted}\n{ROOT}[spark,connect,openlineage]\n")
        row = {"cell": f"install, {path.name}", "python": python, "airflow": airflow, "tests": "resolution", "verdict": "passed"}
        try:
            said = uv("pip", "compile", "--python-version", python, "--constraint", str(path), "--no-annotate", str(requirements))
            row["counts"] = f"{sum('==' in line for line in said.splitlines())} packages"
        except subprocess.CalledProcessError as error:
            row |= {"verdict": "FAILED", "counts": str(error.stderr)[-300:].strip()}
        rows.append({**row, "seconds": f"{time.monotonic() - begin:.0f}"})
    return rows


def run(cell: Cell, more: list[str]) -> dict[str, str]:
    """Make the environment of a cell and run its tests."""
    begin = time.monotonic()
    row = {"cell": cell.name, "python": cell.python, "airflow": "", "tests": " ".join(cell.tests), "verdict": "", "counts": ""}
    try:
        home = environment(cell)
        row["airflow"] = installed(home)
        said = test(cell, home, more)
        row["verdict"], row["counts"] = ("passed" if said.returncode == 0 else "FAILED"), counts(said.stdout)
    except subprocess.CalledProcessError as error:
        row["verdict"], row["counts"] = "FAILED", f"no environment: {(error.stderr or error.stdout or '')[-300:].strip()}"
    row["seconds"] = f"{time.monotonic() - begin:.0f}"
    print(f"---- {cell.name}: {row['verdict']} in {row['seconds']} s: {row['counts']}", flush=True)
    return row


def environment(cell: Cell) -> Path:
    """Return the environment of a cell; it is made again if what it is made of has changed."""
    home = CACHE / "versions" / cell.name
    wanted = hashlib.sha256(
        json.dumps([vars_of(cell), (ROOT / "pyproject.toml").read_text(), constraints_of(cell)], sort_keys=True).encode()
    ).hexdigest()
    stamp = home / ".complete"
    # Pre-releases are looked for each time: the day that one breaks something is the day to know it.
    if not cell.newest and stamp.exists() and stamp.read_text() == wanted:
        return home
    uv("venv", "--clear", "--python", interpreter(cell.python), str(home))
    constraints = home / "constraints.txt"
    constraints.write_text(constraints_of(cell))
    extras = f"[{','.join(cell.extras)}]" if cell.extras else ""
    arguments = ["--python", str(home / "bin" / "python"), "--constraint", str(constraints), "--group", "lowest"]
    if cell.newest:
        arguments += ["--upgrade", "--prerelease", "if-necessary-or-explicit", *prereleases()]
    uv("pip", "install", *arguments, "--editable", f".{extras}", *cell.requirements)
    for name in cell.without:
        uv("pip", "uninstall", "--python", str(home / "bin" / "python"), name)
        spark = next(text for text in cell.requirements if text.startswith("pyspark=="))
        uv("pip", "install", "--python", str(home / "bin" / "python"), "--reinstall", "--no-deps", spark)
    stamp.write_text(wanted)
    return home


def vars_of(cell: Cell) -> dict[str, object]:
    """Return a cell as plain values."""
    return {name: getattr(cell, name) for name in cell.__dataclass_fields__}


def constraints_of(cell: Cell) -> str:
    """Return the constraints of a cell: without the judges of the tests, and these as in the lock."""
    given = (HERE / "constraints" / f"constraints-{cell.constraints}.txt").read_text() if cell.constraints else ""
    kept = [line for line in given.splitlines() if re.split("[=<>!~ ]", line)[0] not in JUDGES]
    locked = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if line.partition("==")[0] in JUDGES]
    return "\n".join([*kept, *locked, ""])


def prereleases() -> list[str]:
    """Return requirements that allow pre-releases of Airflow and of what it is released with, and of nothing else."""
    return ["apache-airflow>=3.3.3.dev0", "apache-airflow-core>=3.3.3.dev0", "apache-airflow-task-sdk>=1.3.3.dev0"]


def interpreter(version: str) -> str:
    """Return the path of an interpreter: pyenv's, one that uv finds, or else Debian's, which is fetched (``debian_python.py``)."""
    # Of pyenv's versions uv only finds those that pyenv has switched on.
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    if installed := sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")):
        return str(installed[-1])
    found = subprocess.run(
        [str(UV), "python", "find", "--no-python-downloads", version], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if found.returncode == 0:
        return found.stdout.strip()
    from debian_python import fetched

    return str(fetched(version, CACHE / "python" / version))


def uv(*arguments: str) -> str:
    """Run uv, which has an environment of its own."""
    if not UV.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(CACHE / "uv")], check=True)
        subprocess.run([str(CACHE / "uv" / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"], check=True)
    done = subprocess.run(
        [str(UV), "--quiet", *arguments],
        env=os.environ | {"UV_CACHE_DIR": str(CACHE / "uv-cache"), "UV_PYTHON_DOWNLOADS": "never"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr[-3000:], flush=True)
        done.check_returncode()
    return done.stdout


def installed(home: Path) -> str:
    """Return the versions of an environment that matter."""
    names = ("apache-airflow", "pyspark", "pandas", "sqlglot", "pyarrow")
    script = f"from importlib.metadata import version\nprint(*(version(name) for name in {names!r}))"
    said = subprocess.run([str(home / "bin" / "python"), "-c", script], capture_output=True, text=True, check=True)
    return ", ".join(f"{name.removeprefix('apache-')} {text}" for name, text in zip(names, said.stdout.split(), strict=True))


def test(cell: Cell, home: Path, more: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the tests of a cell; warnings of other versions are shown, and are no errors."""
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK_HOME"))}
    environment |= {"PATH": f"{home / 'bin'}:{os.environ['PATH']}", "TEST_DEPENDS": " ".join(cell.tests)}
    environment |= {"SPARK_LAUNCHER_OPTS": quick, "SPARK_SUBMIT_OPTS": quick}
    command = [str(home / "bin" / "python"), "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", "-n", "2"]
    command += ["--dist", "loadfile", "-m", SLOWER, *more, "tests"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        print(done.stdout[-20_000:], flush=True)
    return done


def counts(output: str) -> str:
    """Return pytest's last line of counts."""
    lines = [line.strip("= ") for line in output.splitlines() if re.search(r"\d+ (passed|failed|error)", line)]
    return re.sub(r" in [\d.]+s.*", "", lines[-1]) if lines else "no tests ran"


def table(rows: list[dict[str, str]]) -> str:
    """Return the results as Markdown."""
    lines = ["| cell | Python | versions | tests that depend on | result | seconds |", "|---|---|---|---|---|---|"]
    cells = ((*(row[name] for name in ("cell", "python", "airflow", "tests")), row) for row in rows)
    lines += [f"| {' | '.join(named)} | {row['verdict']}: {row['counts']} | {row['seconds']} |" for *named, row in cells]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        sys.exit("There is no Java. Run it by `make test-versions`.")
    sys.exit(main())
