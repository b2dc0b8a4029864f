"""The properties file of a submitted application: what must not show in the arguments of a process.

What a session of this process is made of: the installed PySpark, and the packages that it loads.

What a Spark connection says, read alike by sessions and by submitted applications.

Secret options of a source, from an Airflow connection to Spark.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret
from packaging.version import Version

from airflow_delta.contract.options import SECRET_PROPERTY
from airflow_delta.exceptions import (
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    MissingSparkException,
    SparkJobException,
    SparkVersionException,
)
from airflow_delta.hooks.extra import extra_of
from airflow_delta.hooks.fields import named_connection
from airflow_delta.masking import has_secret, looks_secret
from airflow_delta.spark.errors import coordinate, hadoop_version, has_connector, typed_error
from airflow_delta.tasks.spark.storage import has_own_s3a

if TYPE_CHECKING:
    from airflow_delta.tasks.spark.storage import SparkStorage


_JDBC = {
    "postgres": "jdbc:postgresql://{host}{port}/{schema}",
    "mysql": "jdbc:mysql://{host}{port}/{schema}",
    "mssql": "jdbc:sqlserver://{host}{port};databaseName={schema}",
}
_EXTRA = "spark_options"


def source_options(conn_id: str, source_format: str) -> dict[str, str]:
    """Return the options that a connection gives a source, and mask their values in task logs from here on.

    These are the ``spark_options`` in its extra. For ``jdbc`` also its login and password as ``user`` and ``password``, and a
    ``url``: the host of a connection of type ``jdbc``, the driver's form for ``postgres``, ``mysql`` and ``mssql``.

    :raises DeltaIllegalArgumentException: if ``spark_options`` is not an object of plain values.
    """
    connection = named_connection(conn_id, "connection= of the source", "jdbc, or the one that the source needs")
    given = extra_of(connection, conn_id).get(_EXTRA) or {}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = None
    if not isinstance(given, Mapping) or any(isinstance(value, dict | list) for value in given.values()):
        raise DeltaIllegalArgumentException(
            f'{_EXTRA} in the extra of the connection {conn_id!r} must be an object of plain values, such as {{"user": "..."}}'
        )
    options: dict[str, str] = {}
    if source_format.lower() == "jdbc":
        named = {"url": _jdbc_url(connection), "user": connection.login, "password": connection.password}
        options.update({name: str(value) for name, value in named.items() if value})
    options.update({str(name): _text(value) for name, value in given.items() if value is not None})
    for name, value in options.items():
        if (name != "url" or has_secret(value)) and value.lower() not in ("true", "false"):
            mask_secret(value)
    return options


def secret_property(options: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark property that carries options to an application."""
    return {SECRET_PROPERTY: base64.b64encode(json.dumps(dict(options)).encode()).decode()}


def mask_settings(settings: Any) -> None:
    """Mask the values of Spark properties with secret names, since Airflow shows the fields of a task.

    :param settings: ignored unless it is a mapping; templates in it are ignored, too.
    """
    for name, value in settings.items() if isinstance(settings, Mapping) else ():
        if isinstance(value, str) and "{{" not in value and looks_secret(str(name)):
            mask_secret(value)


def _jdbc_url(connection: Any) -> str | None:
    if connection.conn_type == "jdbc":
        return connection.host or None
    pattern = _JDBC.get(connection.conn_type)
    if pattern is None or not connection.host:
        return None
    port = f":{connection.port}" if connection.port else ""
    return pattern.format(host=connection.host, port=port, schema=connection.schema or "")


logger = logging.getLogger(__name__)

AUTO = "auto"
_JARS = "spark.jars.packages"
_FULL, _CLIENT = "pyspark", "pyspark-client"
_INSTALL = 'pip install "airflow-provider-delta[spark]"'
_WITHOUT = 'A stage of small data needs neither Spark nor Java: @task.delta_stage(engine="arrow").'
_NO_JAVA = re.compile(r"(?:^|: )([^:\n]+/bin/java): (?:No such file|not found)", re.MULTILINE)


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


def with_packages(
    properties: Mapping[str, str], packages: str | None, uri: str, *, of_connection: bool = False
) -> dict[str, str]:
    """Return the properties of a session or an application with the packages that it is to load.

    :param packages: Maven coordinates, or ``auto`` for the connector to the store of a location.
    :param of_connection: they come from the table's connection, which also serves sessions that are not of this process.
    :raises DeltaIllegalArgumentException: if the session is not of this process.
    """
    if not packages:
        return dict(properties)
    if "spark.remote" in properties:
        if of_connection:
            return dict(properties)
        raise DeltaIllegalArgumentException(
            f"spark_packages is {packages!r}, but this session is on a Spark Connect server. Start the server with the packages."
        )
    wanted = _connector(uri) if packages == AUTO else packages
    given = properties.get(_JARS)
    return {**properties, _JARS: f"{given},{wanted}" if given else wanted} if wanted else dict(properties)


def _connector(uri: str) -> str | None:
    """Return the coordinate of the connector, ``None`` if Spark needs or has it.

    :raises DeltaIllegalArgumentException: if the installed PySpark does not say its version of Hadoop.
    """
    scheme = uri.partition("://")[0]
    if coordinate(scheme, None) is None or has_connector(scheme):
        return None
    version = hadoop_version()
    if version is None:
        raise DeltaIllegalArgumentException(
            "spark_packages is 'auto', but no Spark is installed here that brings Hadoop's JARs. Install the package pyspark, or "
            f"name the packages: {coordinate(scheme, None)}."
        )
    return coordinate(scheme, version)


DEFAULT_SPARK_CONN_ID = "spark_default"
_DEPLOY_MODE = "spark.submit.deployMode"
# The context was stopped before it had a session. Only the driver's log says why: "All masters are unresponsive! Giving up."
_NOT_REGISTERED = re.compile(
    r"SparkContext\.assertNotStopped\S*\s+at org\.apache\.spark\.sql\.\S*SparkSession\.<init>|All masters are unresponsive"
)
_TIMEOUT = 5.0


def spark_master(conn: Any) -> str:
    """Return the master of a connection as Airflow's ``SparkSubmitHook`` does, also of one that is written as a URI."""
    whole = "://" in conn.host or (conn.conn_type == "spark" and not conn.port)
    master = conn.host if whole else f"{conn.conn_type}://{conn.host}"
    return f"{master}:{conn.port}" if conn.port else str(master)


def spark_extras(conn: Any) -> dict[str, Any]:
    """Return the Spark properties in the extra of a Spark connection."""
    return {key: value for key, value in extra_of(conn).items() if key.startswith("spark.")}


def check_submission(spark_conn_id: str, application: str, deploy_mode: str | None, conf: Mapping[str, Any] | None) -> None:
    """Refuse a submission that cannot succeed.

    :param deploy_mode: that of the task; default: the connection's.
    :raises DeltaIllegalArgumentException: if the connection is one of Spark Connect, or the application's Python driver would
        have to run on a standalone cluster.
    """
    try:
        conn = named_connection(spark_conn_id, "spark_conn_id", "spark")
    except AirflowNotFoundException:
        if spark_conn_id != DEFAULT_SPARK_CONN_ID:
            raise
        return  # Airflow's hook submits to YARN then
    if conn.conn_type == SparkConnectHook.conn_type:
        raise DeltaIllegalArgumentException(
            f"The connection {spark_conn_id!r} is one of Spark Connect, which takes sessions, not applications. Submit to a "
            "connection of type spark, or leave spark_submit and application out to work in a session."
        )
    extra = extra_of(conn, spark_conn_id)
    mode = deploy_mode or extra.get("deploy-mode") or (conf or {}).get(_DEPLOY_MODE) or extra.get(_DEPLOY_MODE)
    master = spark_master(conn) if conn.host else ""
    if mode == "cluster" and master.startswith("spark://") and application.endswith(".py"):
        raise DeltaIllegalArgumentException(
            f"Spark cannot run the driver of a Python application on the standalone cluster {master}. Set the deploy mode of "
            f"the connection {spark_conn_id!r} to 'client'; cluster mode needs YARN or Kubernetes."
        )


def registration_error(failure: BaseException, master: str) -> SparkVersionException | SparkJobException | None:
    """Return the typed error if a standalone master did not answer a driver: one that listens cannot read what that sends.

    :param master: the driver's master; of several, one that listens is enough.
    """
    if not master.startswith("spark://") or _NOT_REGISTERED.search(str(failure)) is None:
        return None
    if not any(_listens(address) for address in master.removeprefix("spark://").split(",")):
        return SparkJobException(  # another try may find it
            f"The master {master} did not answer this driver, and nothing listens there now. Check that it runs, and the host "
            "and port of the connection."
        )
    return SparkVersionException(
        f"The master {master} is up, but did not answer this driver: its Spark is of another version than the driver's. Submit "
        "with the cluster's own spark-submit, or install its version of PySpark. See docs/how-to/cluster.md."
    )


def registration_error_of(failure: BaseException, spark_conn_id: str) -> SparkVersionException | SparkJobException | None:
    """Return the same for an application that was submitted to a connection."""
    try:
        conn = BaseHook.get_connection(spark_conn_id)
    except AirflowNotFoundException:
        return None
    return registration_error(failure, spark_master(conn)) if conn.host else None


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_TIMEOUT).close()
    except (OSError, ValueError):
        return False
    return True


_EVERY_BUCKET = re.compile(r"spark\.hadoop\.fs\.s3a\.(?!bucket\.)")
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


@contextmanager
def properties_file(
    properties: Mapping[str, str], given: str | None, defaults: Defaults | None = None, conf: Iterable[str] = ()
) -> Iterator[str | None]:
    """Yield the path of a properties file for ``spark-submit`` that only this user can read; it is deleted afterwards.

    A command line shows in the list of processes, and a request lies beside the table; only the submitting process reads this
    file. Of two lines with one name, Spark takes the last.

    :param properties: those that cannot be overridden.
    :param given: the author's properties file, whose content is included; default: ``spark-defaults.conf``, which
        ``spark-submit`` would read otherwise.
    :param defaults: what the file, or the task, may override.
    :param conf: names of the properties that the task gives in another way.
    """
    weakest, weaker = defaults or ({}, {})
    if not (properties or weakest or weaker):
        yield given
        return
    if given:
        others = [_lines(weaker), Path(given).read_text()]
    else:
        machine = _spark_defaults()
        others = [machine.read_text() if machine is not None else "", _lines(weaker)]
    if has_own_s3a("\n".join(others), conf):
        weakest = {name: value for name, value in weakest.items() if _EVERY_BUCKET.match(name) is None}
    content = "".join(f"{part.rstrip()}\n" for part in (_lines(weakest), *others, _lines(properties)) if part.strip())
    descriptor, path = tempfile.mkstemp(prefix="airflow-delta-", suffix=".properties")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        yield path
    finally:
        os.unlink(path)


Defaults = tuple[Mapping[str, str], Mapping[str, str]]


def submit_defaults(spark_conn_id: str, storage: SparkStorage) -> Defaults:
    """Return what a submitted application gets from the table's connection, and from the extra of its Spark connection."""
    try:
        extras = spark_extras(BaseHook.get_connection(spark_conn_id))
    except AirflowNotFoundException:  # Airflow's hook submits to YARN then
        extras = {}
    mask_settings(extras)
    own = {name: _text(value) for name, value in extras.items()}
    return storage.properties(), with_packages(own, storage.packages, storage.uri, of_connection=True)


def submit_error(failure: Exception, uri: str, spark_conn_id: str) -> DeltaError | None:
    """Return the typed error if an application failed because Spark cannot work, or reach the table's store, as it is set up."""
    return no_spark_submit(failure) or typed_error(failure, uri) or registration_error_of(failure, spark_conn_id)


def check_no_packages(packages: str | None) -> None:
    """Refuse packages for a session where the work is submitted.

    :raises DeltaIllegalArgumentException: if there are some.
    """
    if packages:
        raise DeltaIllegalArgumentException(
            f"spark_packages is {packages!r}, but this work is submitted. Name the packages of the application: "
            'spark_submit={"packages": ...}.'
        )


def _lines(properties: Mapping[str, str]) -> str:
    return "".join(f"{name} {_escaped(value)}\n" for name, value in properties.items())


def _escaped(value: str) -> str:
    """Return a value as ``java.util.Properties`` reads it."""
    text = "".join(_ESCAPED.get(character, character) for character in value)
    return f"\\{text}" if text.startswith(" ") else text


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def machine_properties() -> set[str]:
    """Return the names of the properties that the machine's ``spark-defaults.conf`` sets."""
    path = _spark_defaults()
    lines = path.read_text(errors="replace").splitlines() if path is not None else ()
    return {re.split(r"[\s=:]", line.strip(), maxsplit=1)[0] for line in lines if line.strip()}


def _spark_defaults() -> Path | None:
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    path = Path(folder, "spark-defaults.conf")
    return path if os.path.isabs(folder) and path.is_file() else None
