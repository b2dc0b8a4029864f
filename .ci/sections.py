"""What ``.ci/run`` runs for a change: ``python .ci/sections.py [--changed-since COMMIT]`` prints the choice.

``python .ci/sections.py --limit MINUTES COMMAND...`` runs a command that is ended when its time is over (exit code 124).

``python .ci/sections.py --failed LOG`` prints the tests that failed, if they are few and nothing else did.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOURS = 4
"""Commits of the last hours before HEAD are one change, where nobody says what it is based on."""

TOO_SLOW = 124

FEW = 3
"""Failed tests of a section that run once more, alone."""


def main() -> int:
    """Print the sections, or run a command within its time."""
    if sys.argv[1:2] == ["--limit"]:
        return limited(float(sys.argv[2]), sys.argv[3:])
    if sys.argv[1:2] == ["--failed"]:
        print(*(few := failed(Path(sys.argv[2]))), sep="\n")
        return 0 if few else 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--changed-since", metavar="COMMIT", default=os.environ.get("CI_BASE"), help="what the change is based on"
    )
    asked = parser.parse_args()
    paths, number = changed(asked.changed_since or base()), int(git("rev-list", "--count", "HEAD") or 0)
    for name, section in chosen(paths, number):
        part = section.get("part", {})
        title = " ".join([name, *part.values()])
        given = [f"{key}={value}" for key, value in {**section.get("environment", {}), **part}.items()]
        how = ["again" if section.get("again") else "-", section.get("fresh", "-")]
        fields = [section["lane"], title, str(section["limit"]), *how, " ".join([*given, section["make"]])]
        print("\t".join(fields))
    return 0


def chosen(paths: list[str] | None, number: int) -> list[tuple[str, dict]]:
    """Return the sections to run, with their parts.

    :param paths: changed files below the root of the project; ``None``: nobody knows, everything counts as changed.
    :param number: what changes with each landing: it chooses parts, and the untouched section whose turn it is.
    """
    import tomllib  # here: --limit runs on the Python that is there before the environment

    table = tomllib.loads((HERE / "sections.toml").read_text())
    sections = table["sections"]
    everything = paths is None or touches(table["everything"]["rooms"], paths)
    with_rooms = [name for name, section in sections.items() if "rooms" in section]
    untouched = [name for name in with_rooms if not everything and not touches(sections[name]["rooms"], paths or [])]
    turn = untouched[number % len(untouched)] if untouched else None
    left_out = _left_to_others(sections, [name for name in with_rooms if name not in untouched], paths or [], number)
    untouched += [name for name in with_rooms if everything and not sections[name]["rooms"]]
    found = []
    for name, section in sections.items():
        if (name in untouched and name != turn) or name in left_out:
            continue
        parts = section.get("parts_by_turn", 1) if name == turn else section.get("parts", 1)
        taken_in_turn = sum("one_of" in each for each in sections.values()) if "one_of" in section else 1
        draw = number // (len(untouched) if name == turn else taken_in_turn)
        part = {section["variable"]: f"{draw % parts + 1}/{parts}"} if parts > 1 else {}
        if choices := section.get("by_turn"):
            part = {section["variable"]: choices[number % len(choices)]}
        found.append((name, {**section, "part": part}))
    return found


def _left_to_others(sections: dict[str, dict], touched: list[str], paths: list[str], number: int) -> set[str]:
    """Return the sections that another one with the same ``one_of`` runs instead of, this time."""
    found = set()
    for word in {sections[name]["one_of"] for name in touched if "one_of" in sections[name]}:
        same = [name for name in touched if sections[name].get("one_of") == word]
        tests = {name: [room for room in sections[name]["rooms"] if room.startswith("tests/")] for name in same}
        found |= {name for name in same if name != same[number % len(same)] and not touches(tests[name], paths)}
    return found


def failed(log: Path) -> list[str]:
    """Return pytest's lines of the tests that failed; none if they are many, or if something else failed as well.

    :param log: what a section printed.
    """
    said = log.read_text(errors="replace")
    lines = re.findall(r"^FAILED (\S+::.*)$", said, re.MULTILINE)
    ends = re.findall(r"^=* ?((?:\d+ \w+, )*\d+ \w+) in \d.*$", said, re.MULTILINE)
    counted = [int(number) for number in re.findall(r"(\d+) (?:failed|errors?)", " ".join(ends))]
    other = re.search(r"^(Too slow: |INTERNALERROR|FAIL Required test coverage|!!!)", said, re.MULTILINE)
    return lines if other is None and counted == [len(lines)] and len(lines) <= FEW else []


def touches(rooms: list[str], paths: list[str]) -> bool:
    """Tell whether a path is one of the rooms, or below it; ``{a,b}`` in a room stands for both."""
    patterns = [pattern for room in rooms for pattern in _alternatives(room)]
    return any(fnmatch.fnmatch(path, pattern) or path.startswith(f"{pattern}/") for path in paths for pattern in patterns)


def _alternatives(room: str) -> list[str]:
    found = re.fullmatch(r"(.*?)\{(.*?)\}(.*)", room)
    return [found[1] + one + found[3] for one in found[2].split(",")] if found else [room]


def base() -> str | None:
    """Return the newest commit that is some hours older than ``HEAD``."""
    head = git("show", "-s", "--format=%ct", "HEAD")
    return git("rev-list", "-1", f"--before={int(head) - HOURS * 3600}", "HEAD") if head else None


def changed(since: str | None) -> list[str] | None:
    """Return the files that differ from a commit; ``None`` where that cannot be known."""
    if not since or not git("rev-parse", "--verify", "--quiet", f"{since}^{{commit}}"):
        return None
    return (git("diff", "--name-only", since) or "").splitlines()


def git(*arguments: str) -> str | None:
    """Return what git prints, without the newline at the end; ``None`` where it fails."""
    with contextlib.suppress(OSError):
        done = subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None
    return None


def limited(minutes: float, command: list[str]) -> int:
    """Run a command in a process group of its own; whoever ends this process ends the group."""
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []  # signals that came while it was being started

    def forward(number: int, _frame: object) -> None:
        if process is None:
            early.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if number == signal.SIGTERM:  # the next one ends this process, which then could not end the group
            signal.alarm(15)

    def kill(_number: int, _frame: object) -> None:
        forward(signal.SIGKILL, None)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    signal.signal(signal.SIGALRM, kill)
    process = subprocess.Popen(command, start_new_session=True)
    for number in early:
        forward(number, None)
    try:
        return process.wait(minutes * 60)
    except subprocess.TimeoutExpired:
        print(f"\nToo slow: {' '.join(command)} took more than {minutes:g} minutes.", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        forward(number, None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
            break
    forward(signal.SIGKILL, None)
    return TOO_SLOW


if __name__ == "__main__":
    sys.exit(main())
