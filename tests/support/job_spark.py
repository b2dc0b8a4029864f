"""The Spark that runs jobs: of another environment if there is one, as on a service's cluster.

``TEST_JOB_PYTHON`` is the interpreter of that environment, ``TEST_JOB_JAVA_HOME`` its Java; by default both are this one's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from support.environments import clean_environment

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Code that runs a few times is not worth a second compiler."""


def job_python() -> Path:
    """Return the interpreter whose PySpark runs jobs."""
    return Path(os.environ.get("TEST_JOB_PYTHON") or sys.executable)


def spark_home() -> Path:
    """Return the folder of that PySpark."""
    return Path(_pyspark(job_python())[0])


def spark_version() -> str:
    """Return the version of that PySpark."""
    return _pyspark(job_python())[1]


@cache
def _pyspark(python: Path) -> tuple[str, str]:
    script = "import os, pyspark; print(os.path.dirname(pyspark.__file__)); print(pyspark.__version__)"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    home, version = done.stdout.splitlines()
    return home, version


def job_environment(home: Path) -> dict[str, str]:
    """Return the variables of a process that runs jobs: nothing of this one's but its Java, if there is no other.

    :param home: its home directory.
    """
    python, java = str(job_python()), os.environ.get("TEST_JOB_JAVA_HOME")
    given = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "SPARK_HOME": str(spark_home())}
    given |= {"SPARK_SUBMIT_OPTS": QUICK, "SPARK_LAUNCHER_OPTS": QUICK}
    return clean_environment(home, **given, **({"JAVA_HOME": java} if java else {}))
