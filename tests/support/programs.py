"""Programs that tests write, and Spark's own, wherever this environment lies: below a path with a space, too."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def python_program(path: Path, code: str, *, python: str | Path = sys.executable) -> Path:
    """Write a program in Python that can be executed by its name.

    :param python: the interpreter. The kernel ends its path, in a first line, at a space: a shell starts it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n{code}")
    path.chmod(0o755)
    return path


def pyspark_environment() -> dict[str, str]:
    """Return the variables with which Spark runs this interpreter, in drivers and in workers.

    PySpark's ``spark-submit`` looks for Spark with ``$PYSPARK_DRIVER_PYTHON``, without quotes: where its path has a space, Spark
    has to be named.
    """
    found = find_spec("pyspark")
    home = {"SPARK_HOME": str(Path(found.origin).parent)} if " " in sys.executable and found and found.origin else {}
    return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **home}
