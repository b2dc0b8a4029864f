"""Break the rules of the engine one at a time and see that its tests notice.

``python tests/faults/mutations/mutations.py [ROOM ...]``.

Beside rooms, patterns pick mutants by their names: a part (``*_give_up*``) or a sample (``*[05]``).

mutmut makes one small change at a time (a mutant) and runs the tests that reach the changed function; a mutant that no test
notices survives. A room is a few modules with exactly the tests that are about them, so that a mutant costs a second or so.
Survivors that no test can or should tell apart are explained in ``survivors.toml``, one change, or all those of a line; any other
one fails the command.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
WORK = ROOT / ".cache" / "mutations"
TOOL = ROOT / ".cache" / "mutmut"
VERSION = "3.8.1"
FIGURES = ROOT / "build" / "faults"
EXPLAINED = Path(__file__).with_name("survivors.toml")


@dataclass(frozen=True)
class Room:
    """Modules below ``airflow_delta``, and the tests about them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


COMMANDS = ("tests/table/commit", "tests/table/state", "tests/table/operations/vacuum")
ROOMS = {
    "conflicts": Room(
        tuple(f"transaction/conflicts/{name}.py" for name in ("app_ids", "checker", "domains", "protocol", "winning_commit")),
        ("tests/conformance/test_conflicts.py", "tests/transaction/conflicts", "tests/transaction/prepare"),
    ),
    "abort": Room(
        ("table/abort.py", "table/state/ended.py", "table/state/evidence.py", "table/state/markers.py"),
        (*COMMANDS, "tests/table/observe", "tests/publication/test_other_cleaners.py"),
    ),
    "vacuum": Room(
        tuple(f"table/operations/vacuum/{name}.py" for name in ("delete", "last_look", "staged_transactions", "valid_files")),
        (*COMMANDS, "tests/publication/test_other_cleaners.py", "tests/table/preview/test_preview.py"),
    ),
    "identity": Room(
        (
            *(f"table/start/{name}.py" for name in ("begin", "identity", "location", "new_table", "outcome", "rerun")),
            *("table/state/find_commit.py", "table/state/transaction_retention.py"),
        ),
        ("tests/table/start", "tests/table/commit", "tests/table/state", "tests/table/operations/test_restore.py"),
    ),
    "stages": Room(
        (
            *("table/stage/load.py", "table/stage/staged_writes.py", "table/stage/earlier_stages.py"),
            *("table/stage/conflicts.py", "contract/staging_directory.py"),
        ),
        (
            *("tests/contract/test_staging.py", "tests/table/commit", "tests/table/stage", "tests/table/definition"),
            *("tests/table/operations/rewrite", "tests/table/operations/optimize"),
        ),
    ),
}
WITHOUT = "not spark and not s3 and not slow"

_NAMES = re.compile(r"(table|version)=[\w.]+,?|\)")
_MESSAGE = re.compile(r"(self\.|stage\.)?log(ger)?\.(debug|info|warning|error|exception)\(|_?log(ger)?\.")
_RAISE = re.compile(r"raise [\w.]+\(")
_TEXT = re.compile(r"[rbfu]*\"(?:[^\"\\]|\\.)*\"|[rbfu]*'(?:[^'\\]|\\.)*'")


def install() -> None:
    """Fetch the tool once: only this command needs it."""
    if (TOOL / f"mutmut-{VERSION}.dist-info").is_dir():
        return
    shutil.rmtree(TOOL, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--target", str(TOOL), f"mutmut=={VERSION}"]
    subprocess.run(command, check=True)


def prepare(name: str) -> Path:
    """Lay out a copy of the project as the tool wants it, its settings beside it."""
    room, folder = ROOMS[name], WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "provider" / "airflow_delta", folder / "src" / "airflow_delta", ignore=ignored)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=ignored)
    pytest_settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    settings = {
        "mutmut": {
            "source_paths": ["src"],
            "only_mutate": [f"src/airflow_delta/{module}" for module in room.modules],
            "pytest_add_cli_args_test_selection": [*room.tests, "-m", WITHOUT],
            "pytest_add_cli_args": ["-p", "no:cacheprovider", "-p", "no:timeout"],
            "use_git_change_detection": False,
            # Forked from a main process that has run the suite, tests of the room abort failed without any mutation.
            "process_isolation": "forkserver",
            "track_dependencies": False,
        },
        "pytest.ini_options": {
            "pythonpath": ["src", "tests"],
            "addopts": "--import-mode=importlib",
            "markers": pytest_settings["markers"],
        },
    }
    lines = []
    for table, values in settings.items():
        lines += [f"[tool.{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n")
    return folder


def mutmut(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.append({str(TOOL)!r}); from mutmut.__main__ import cli; cli()"
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, text=True, capture_output=True, check=False)


def outcomes(folder: Path) -> dict[str, str]:
    """Return what became of each mutant: killed, survived, timeout, no tests, ..."""
    found = {}
    for line in mutmut(folder, "results", "--all", "true").stdout.splitlines():
        name, _, status = line.strip().rpartition(": ")
        if name:
            found[name] = status
    return found


def change(folder: Path, mutant: str) -> str:
    """Return the changed lines of a mutant, in one line."""
    diff = mutmut(folder, "show", mutant).stdout.splitlines()
    lines = [line for line in diff if line[:1] in "+-" and not line.startswith(("+++", "---"))]
    return " => ".join(" ".join(line[1:].split()) for line in lines)


def only_text(changed: str) -> bool:
    """Return whether a change only touches what an error or a log line says: its text, or the table and version that it names."""
    before, _, after = changed.partition(" => ")
    if _NAMES.fullmatch(before) or _MESSAGE.match(before) or " ".join(before.split()[:1]) == "f":
        return True
    if (error := _RAISE.match(before)) is not None:
        return after.startswith(error[0])
    texts = [text for text in _TEXT.findall(before) if " " in text]
    if texts and before.startswith(texts[0]):  # a line of a text
        return True
    if texts and re.match(r"\w+ = ", before):
        return True
    return bool(after and texts) and _TEXT.sub("TEXT", before) == _TEXT.sub("TEXT", after)


def run(name: str, *mutants: str) -> bool:
    """Run a room, print and note what survived; return whether all of it is explained."""
    folder = prepare(name)
    done = mutmut(folder, "run", "--max-children", "2", *mutants)
    found = outcomes(folder)
    tried = {mutant: status for mutant, status in found.items() if status != "not checked"}
    if not tried:
        print(done.stdout[-6000:], done.stderr[-3000:])
        return False
    if len(tried) > 30 and all(status == "killed" for status in tried.values()):
        print(f"{name}: every mutant was killed, those of texts too: a test of the room fails by itself in a forked process")
        return False
    explained = tomllib.loads(EXPLAINED.read_text()).get(name, {}) if EXPLAINED.exists() else {}
    survivors = {mutant: change(folder, mutant) for mutant, status in tried.items() if status not in ("killed", "timeout")}
    texts = {mutant for mutant, changed in survivors.items() if only_text(changed)}
    known = {mutant for mutant, changed in survivors.items() if {changed, changed.partition(" => ")[0]} & explained.keys()}
    unknown = {mutant: changed for mutant, changed in survivors.items() if mutant not in texts | known}
    for mutant, changed in unknown.items():
        print(f"{tried[mutant]}: {mutant}\n    {changed}")
    values = {
        "mutants": len(found),
        "tried": len(tried),
        "killed": len(tried) - len(survivors),
        "only_text": len(texts),
        "explained": len(survivors) - len(texts) - len(unknown),
        "failed": len(unknown),
        "tool": f"mutmut {VERSION}",
    }
    FIGURES.mkdir(parents=True, exist_ok=True)
    (FIGURES / f"mutations-{name}.json").write_text(json.dumps(values, sort_keys=True))
    print(name, json.dumps(values))
    return not unknown


if __name__ == "__main__":
    install()
    rooms, filters = [name for name in sys.argv[1:] if name in ROOMS], [name for name in sys.argv[1:] if name not in ROOMS]
    verdicts = [run(name, *filters) for name in rooms or ROOMS]
    sys.exit(0 if all(verdicts) else 1)
