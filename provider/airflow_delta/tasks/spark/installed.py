"""What Spark work needs on this machine: PySpark, Java, a Spark Connect client, ``spark-submit``; and the errors without them."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from packaging.version import Version

from airflow_delta.exceptions import (
    DeltaIllegalStateException,
    MissingSparkException,
)
from airflow_delta.lazy_patterns import lazy_pattern

logger = logging.getLogger(__name__)

_FULL, _CLIENT = "pyspark", "pyspark-client"

_INSTALL = 'pip install "airflow-provider-delta[spark]"'

_WITHOUT = 'A stage of small data needs neither Spark nor Java: @task.delta_stage(engine="arrow").'

_NO_JAVA = lazy_pattern(r"(?:^|: )([^:\n]+/bin/java): (?:No such file|not found)", re.MULTILINE)


def check_pyspark() -> None:
    """Detect a mixture of two PySpark versions before it causes errors that are hard to explain.

    Airflow's Spark provider installs the newest ``pyspark-client``. Next to another release of ``pyspark``, the package that was
    installed last overwrites some modules and leaves the others. Two patches of one release mostly work, so that is a warning.

    :raises DeltaIllegalStateException: if both are installed in different releases.
    """
    try:
        full, client = version(_FULL), version(_CLIENT)
    except PackageNotFoundError:
        return
    if full == client:
        return
    parsed = {Version(full): full, Version(client): client}
    wanted = parsed[min(parsed)]
    message = (
        f"{_FULL} {full} and {_CLIENT} {client} are both installed, and install the same files: this PySpark is a mixture of two "
        f'versions. Install one version of both: pip install --force-reinstall --no-deps "{_FULL}=={wanted}" '
        f'"{_CLIENT}=={wanted}"'
    )
    if len({release.release[:2] for release in parsed}) > 1:
        raise DeltaIllegalStateException(message)
    logger.warning("%s", message)


def check_spark_here(properties: Mapping[str, str] | None = None) -> None:
    """Check that the Spark is installed that a session needs, before anything of it is imported.

    Not asked when a Dag is parsed: the Dag processor may have no Spark where the workers do, and only the connection says whether
    the session is on a Spark Connect server.

    :param properties: of a session to be made; ``None``: of any.
    :raises MissingSparkException: if PySpark is missing, or only its client is there and the session does not use Spark Connect.
    """
    if find_spec(_FULL) is None:
        raise MissingSparkException(
            f'This task works on Spark, and PySpark is not installed on this worker. Install the extra "spark" there: {_INSTALL}'
            f'. For a Spark Connect server, "connect" is enough. {_WITHOUT}'
        )
    if properties is None or "spark.remote" in properties or os.environ.get("SPARK_REMOTE"):
        return
    if find_spec("pyspark.core") is None:  # its client comes with Airflow's Spark provider
        raise MissingSparkException(
            f"This task runs Spark in its own process (master {properties.get('spark.master')}), and only {_CLIENT} is installed "
            f'on this worker, which reaches a Spark Connect server and nothing else. Install the extra "spark" there: {_INSTALL}'
            ". Or name a Spark Connect server by spark_conn_id, or a cluster that the work is submitted to (spark_submit). "
            f"{_WITHOUT}"
        )


def java_error(output: str) -> MissingSparkException | None:
    """Return the typed error if the output of a Spark says that it found no Java, or one that is too old; else ``None``.

    Spark is asked, not the environment: its ``spark-env.sh`` may know where Java is.
    """
    if "JAVA_HOME is not set" in output:
        missing = "there is none on its PATH, and JAVA_HOME is not set"
    elif found := _NO_JAVA.search(output):
        missing = f"{found[1]} does not exist: JAVA_HOME is wrong"
    elif "UnsupportedClassVersionError" in output:
        missing = f"that of {os.environ.get('JAVA_HOME') or shutil.which('java')} is older"
    else:
        return None
    return MissingSparkException(
        f"Spark needs Java 17 or newer on this worker, and {missing}. Install one (Debian: apt-get install "
        f"openjdk-17-jre-headless; conda: openjdk) and set JAVA_HOME to it. {_WITHOUT}"
    )


def missing_client(error: ImportError) -> MissingSparkException:
    """Return the typed error of a Spark Connect session for which a package is missing."""
    said = str(error).rstrip(".")
    return MissingSparkException(
        f"This task works on a Spark Connect server, and a package of its client is not installed on this worker: {said}. "
        f'Install the extra "connect" there: pip install "airflow-provider-delta[connect]". {_WITHOUT}'
    )


def no_spark_submit(failure: BaseException) -> MissingSparkException | None:
    """Return the typed error of a submission that found no ``spark-submit`` it may execute; ``None`` for any other.

    If the worker's user may not search a folder of PATH, "not found" comes as a refusal.
    """
    if not isinstance(failure, FileNotFoundError | PermissionError):
        return None
    if not re.match(r"spark\w*-submit", os.path.basename(str(failure.filename or ""))):
        return None
    refused = ", or the worker's user may not execute it" if isinstance(failure, PermissionError) else ""
    return MissingSparkException(
        f"There is no {failure.filename} on this worker to submit the application with{refused}. Install the cluster's Spark "
        f'there and put it on PATH, or the extra "spark" of this provider: {_INSTALL}. {_WITHOUT}'
    )
