"""Sections of ``.ci/run``: what a change runs, and the end of what takes too long."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from project.ci_sections import sections
from support.parts import dealt

ROOT = Path(__file__).parents[2]

ALWAYS = {"lint", "tests", "package", "demo", "demo-again", "docs"}
SERVICES = {"stores", "catalog", "clusters", "services"}
"""Of those that a change of the product touches, one runs."""


def names(*paths, number=0):
    return {name for name, _ in sections.chosen(list(paths), number)}


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (
            "provider/airflow_delta/log/storage/local.py",
            {"delta-spark", "slow", "lowest", "stores", "faults", "catalog"},
        ),
        ("provider/airflow_delta/log/snapshot.py", {"delta-spark", "slow", "lowest", "faults"}),
        ("provider/airflow_delta/ui/data.py", {"installed", "pages", "slow"}),
        ("docs/quick-start.md", {"installed"}),
        ("docs/quick-start-without-java.md", {"installed"}),
        ("provider/airflow_delta/operators/sql.py", {"slow", "lowest", "scenarios", "clusters"}),
        ("tests/stores/faults.py", {"stores", "clusters"}),
        ("docs/faq.md", set()),
    ],
)
def test_a_change_runs_what_it_touches_and_one_more_by_turn(path, wanted):
    for number in range(40):
        found = names(path, number=number)
        services = wanted & SERVICES
        if path.startswith("tests/") or not services:
            assert found >= ALWAYS | wanted
        else:
            assert found >= ALWAYS | (wanted - SERVICES)
            assert len(found & services) == 1
        assert len(found - ALWAYS - wanted) <= 1


def test_services_take_turns_with_all_their_parts():
    seen = {}
    for number in range(600):
        for name, section in sections.chosen(["provider/airflow_delta/hooks/delta.py"], number):
            if name in SERVICES:
                seen.setdefault(name, set()).update(section["part"].values())
    assert {name: len(parts) for name, parts in seen.items()} == {
        name: tomllib.loads((ROOT / ".ci" / "sections.toml").read_text())["sections"][name]["parts"] for name in SERVICES
    }


def test_nothing_waits_for_ever_for_its_turn():
    seen = {}
    for number in range(1200):
        for name, section in sections.chosen(["docs/faq.md"], number):
            seen.setdefault(name, set()).update(section["part"].values())
    table = tomllib.loads((ROOT / ".ci" / "sections.toml").read_text())["sections"]
    for name, section in table.items():
        parts = section.get("parts_by_turn", 1) if "rooms" in section else 1
        assert name in seen
        assert len(seen[name]) == (len(section.get("by_turn", ())) or (parts if parts > 1 else 0)), name


def test_the_tests_run_in_each_place_by_turn():
    """In memory, in /tmp, and below a path with spaces; the Makefile knows each of them."""
    chosen = [dict(sections.chosen(["docs/faq.md"], number))["tests"]["part"]["TEST_PLACE"] for number in range(3)]
    assert sorted(chosen) == ["memory", "spaces", "tmp"]
    makefile = (ROOT / "Makefile").read_text()
    assert set(chosen) <= set(re.findall(r"^PLACE_(\w+) :=", makefile, re.MULTILINE))


def test_make_works_in_a_checkout_whose_path_has_a_space(tmp_path):
    """The commands that it would run name no path that a shell takes apart."""
    checkout = tmp_path / "a check out"
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / "dags_examples" / "demo").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "setup.cfg", "requirements.lock"):
        shutil.copy(ROOT / name, checkout)
    shown = '#!/bin/sh\nprintf \'%s\\n\' "$PATH" "$SPARK_SUBMIT_OPTS" "$TMPDIR"\n'
    (checkout / ".venv" / "bin" / "python").write_text(shown)
    (checkout / ".venv" / "bin" / "python").chmod(0o755)
    for name in (".complete", "spark-classes.jsa"):
        (checkout / ".venv" / name).touch()
    inherited = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")  # of `make test`: make would tell where it is
    environment = {name: value for name, value in os.environ.items() if name not in inherited} | {"TMPDIR": "/a place"}
    for place, folder in (("memory", "/a place"), ("tmp", "/tmp"), ("spaces", "/tmp/airflow delta tests")):
        command = ["make", "test", f"TEST_PLACE={place}"]
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        path, options, temporary = done.stdout.splitlines()
        assert path.startswith(f"{checkout}/.venv/bin:")
        assert f'-XX:SharedArchiveFile="{checkout}/.venv/spark-classes.jsa"' in options
        assert temporary == folder


@pytest.mark.parametrize("paths", [None, ["pyproject.toml"], ["tests/support/tables.py"], [".ci/run"]])
def test_everything_is_touched(paths):
    everything = tomllib.loads((ROOT / ".ci" / "sections.toml").read_text())["sections"]
    touched = {name for name, section in everything.items() if section.get("rooms") != []}
    found = [{name for name, _ in sections.chosen(paths, number)} for number in range(7, 7 + len(SERVICES))]
    assert set.union(*found) == touched
    assert all(len(each & SERVICES) == 1 and each >= touched - SERVICES for each in found)


def test_targets_exist():
    table = tomllib.loads((ROOT / ".ci" / "sections.toml").read_text())
    targets = (ROOT / "Makefile").read_text()
    for name, section in [*table["sections"].items(), ("everything", table["everything"])]:
        assert f"\n{section.get('make', 'test')}:" in targets, name


def test_lanes_share_what_may_run_in_either(tmp_path):
    """While a lane is at its first section, the other one goes on with all that either may run."""
    (function,) = re.findall(r"(?ms)^sections_of\(\) \{.*?^\}$", (ROOT / ".ci" / "run").read_text())
    lanes = ["either", "compute", "wait", "either", "either", "wait", "either"]
    lines = [f"{lane}\tsection-{number} 1/{number}\t10\tagain\t-\ttest" for number, lane in enumerate(lanes)]
    (tmp_path / "sections").write_text("\n".join([*lines, ""]))
    script = f"""
        here={shlex.quote(str(tmp_path))}
        section() {{
          echo "$this $1" >>"$here/ran"
          [ "$this" = wait ] || until [ "$(wc -l <"$here/ran")" -eq {len(lanes)} ]; do sleep 0.05; done
        }}
        {function}
        for this in compute wait; do sections_of "$this" & done
        wait
    """
    subprocess.run(["bash", "-c", script], check=True, timeout=60)
    wanted = [f"{'compute' if number == 1 else 'wait'} section-{number} 1/{number}" for number in range(len(lanes))]
    assert sorted((tmp_path / "ran").read_text().splitlines()) == sorted(wanted)


def copy_runner(folder):
    """Have ``.ci/run`` in a folder, and the Python that it takes."""
    (folder / ".ci").mkdir()
    for name in ("run", "sections.py"):
        shutil.copy(ROOT / ".ci" / name, folder / ".ci")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)


LANE = "$$(ps -o ppid= -p $$(ps -o ppid= -p $$PPID))"  # of the lane that runs a target: make's grandparent
FULL = 'head -c 3000 /dev/zero >> "$$(echo "$$TMPDIR"/ci.*/verdicts)"'
"""No verdict can be written any more, where files may have 1,024 bytes."""


@pytest.mark.parametrize(
    ("recipes", "limit", "said"),
    [
        ({}, 0.5, "5 passed, 0 failed"),
        ({"first": "false"}, 0.5, "4 passed, 1 failed"),
        ({"second": "sleep 60"}, 0.05, "took more than 0.05 minutes"),
        ({"first": f"kill -9 {LANE}"}, 0.5, "a lane ended early"),
        ({"waiting": f"kill -9 {LANE}"}, 0.5, "a lane ended early"),
        ({"computing": f"{FULL} || false", "first": "sleep 1; false"}, 0.5, "a section did not run, or left no verdict"),
    ],
)
def test_what_fails_in_either_lane_fails_the_run(tmp_path, recipes, limit, said):
    """Also what dies with its lane, and what can no longer say so."""
    copy_runner(tmp_path)
    lanes = {"computing": "compute", "waiting": "wait", "first": "either", "second": "either"}
    table = [f'[sections.{name}]\nlane = "{lane}"\nmake = "{name}"\nlimit = {limit}\n' for name, lane in lanes.items()]
    (tmp_path / ".ci" / "sections.toml").write_text("\n".join(['[everything]\nrooms = ["x"]', *table]))
    targets = [f"{name}:\n\t@{recipes.get(name, 'true')}\n" for name in ("env", *lanes)]
    (tmp_path / "Makefile").write_text("\n".join(targets))
    command = ["bash", "-c", "trap '' XFSZ; ulimit -f 1; bash .ci/run 2>&1 | cat; exit ${PIPESTATUS[0]}"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert said in done.stdout, done.stdout
    assert (done.returncode == 0) is (not recipes)


FAILED = "tests/a.py::test_one[a - b] - OSError: no"
ONE_FAILED = rf"printf 'FAILED {FAILED}\n=== 1 failed, 2 passed in 3.00s ===\n'; false"


@pytest.mark.parametrize(
    ("again", "recipe", "code", "said"),
    [
        (True, f'test "$$TEST_ONLY" = "{FAILED}" || {{ {ONE_FAILED}; }}', 0, "3 passed, 0 failed"),
        (True, ONE_FAILED, 1, "2 passed, 1 failed"),
        (False, f'test -n "$$TEST_ONLY" || {{ {ONE_FAILED}; }}', 1, "2 passed, 1 failed"),
        (True, 'test -n "$$TEST_ONLY"', 1, "2 passed, 1 failed"),
    ],
)
def test_few_tests_that_failed_run_once_more(tmp_path, again, recipe, code, said):
    copy_runner(tmp_path)
    lanes = {"computing": "compute", "waiting": "wait"}
    table = [f'[sections.{name}]\nlane = "{lane}"\nmake = "{name}"\nlimit = 0.5\n' for name, lane in lanes.items()]
    table.append("again = true" if again else "")
    (tmp_path / ".ci" / "sections.toml").write_text("\n".join(['[everything]\nrooms = ["x"]', *table]))
    (tmp_path / "Makefile").write_text(f"env computing:\n\t@true\nwaiting:\n\t@{recipe}\n")
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    run = ["bash", ".ci/run"]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout
    once_more = re.search(rf"^(passed|FAILED) .* waiting, once more: {re.escape(FAILED)}$", done.stdout, re.MULTILINE)
    assert bool(once_more) is (again and "OSError" in recipe)
    if once_more:  # also what passed then is told at the end
        assert f"---- waiting, at its end\nFAILED {FAILED}" in done.stdout


FOUR = "\n".join(f"FAILED tests/a.py::test_{number}" for number in range(4))


@pytest.mark.parametrize(
    ("output", "few"),
    [
        ("FAILED tests/a.py::test_one\n= 1 failed, 11 passed, 2 skipped in 5.10s (0:00:05) =", 1),
        ("FAILED tests/a.py::test_one\nFAILED tests/a.py::test_two - x\n2 failed in 5.10s", 2),
        (f"{FOUR}\n= 4 failed in 5.10s =", 0),
        ("FAILED tests/a.py::test_one\n= 1 failed, 1 error in 5.10s =", 0),
        ("FAILED tests/a.py::test_one\nFAIL Required test coverage of 95.0% not reached.\n= 1 failed in 5.10s =", 0),
        ("FAILED tests/a.py::test_one\n= 1 failed in 5.10s =\nToo slow: make test took more than 10 minutes.", 0),
        ("FAILED tests/a.py::test_one\n!!! Interrupted !!!\n= 1 failed in 5.10s =", 0),
        ("FAILED tests/a.py::test_one\n= 1 failed in 5.10s =\n= 3 failed in 5.10s =", 0),
        ("FAILED tests/a.py::test_one", 0),
        ("make: *** [Makefile:86: test] Error 1", 0),
    ],
)
def test_what_counts_as_few_failed_tests(tmp_path, output, few):
    (tmp_path / "log").write_text(f"....F\n{output}\nmake: *** Error 1\n")
    assert len(sections.failed(tmp_path / "log")) == few


def test_only_the_tests_that_are_named_run():
    here = "tests/project/test_sections.py"
    one, two = f"{here}::test_everything_is_touched[paths1] - AssertionError", f"{here}::test_targets_exist"
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", here]
    for only, code in ((f"{one}\n{two}", 0), (f"{one}\n{here}::test_gone", 4)):
        environment = {**os.environ, "TEST_ONLY": only, "TEST_PART": ""}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stdout
        assert code or done.stdout.startswith(f"{here}::test_everything_is_touched[paths1]\n{two}\n")


def test_what_takes_too_long_is_ended_with_all_its_processes(tmp_path):
    child = f"import os, pathlib, time; pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid())); time.sleep(600)"
    command = ["sh", "-c", f'"{sys.executable}" -c "{child}"; true']
    runner = [sys.executable, ROOT / ".ci" / "sections.py", "--limit", "0.05", *command]
    done = subprocess.run(runner, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == sections.TOO_SLOW
    assert "took more than 0.05 minutes" in done.stdout
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_who_ends_the_runner_ends_the_section(tmp_path):
    command = ["sh", "-c", 'echo $$ > "$0"; sleep 600; true', str(tmp_path / "pid")]
    runner = subprocess.Popen([sys.executable, ROOT / ".ci" / "sections.py", "--limit", "10", *command])
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.05)
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(60) != 0
    wait_until_gone(int((tmp_path / "pid").read_text()))


def wait_until_gone(process):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("the section's process still runs")


@pytest.mark.parametrize("parts", [1, 2, 7, 10])
def test_parts_are_all_there_is_and_none_is_empty(parts):
    names = [f"stores/test_{number}.py" for number in range(10)] * 2
    dealt_out = [dealt(names, part, parts) for part in range(1, parts + 1)]
    assert all(dealt_out)
    assert sorted(name for part in dealt_out for name in part) == sorted(set(names))
