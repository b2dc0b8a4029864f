"""The properties file of a submitted application: what must not show in the arguments of a process."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from airflow_delta.exceptions import (
    DeltaError,
    DeltaIllegalArgumentException,
)
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.masking import looks_secret
from airflow_delta.spark.errors import typed_error
from airflow_delta.tasks.spark.connection import registration_error_of, spark_extras
from airflow_delta.tasks.spark.installed import no_spark_submit
from airflow_delta.tasks.spark.packages import with_packages
from airflow_delta.tasks.spark.source_options import property_text
from airflow_delta.tasks.spark.storage import has_own_s3a

if TYPE_CHECKING:
    from airflow_delta.tasks.spark.storage import SparkStorage


def mask_settings(settings: Any) -> None:
    """Mask the values of Spark properties with secret names, since Airflow shows the fields of a task.

    :param settings: ignored unless it is a mapping; templates in it are ignored, too.
    """
    for name, value in settings.items() if isinstance(settings, Mapping) else ():
        if isinstance(value, str) and "{{" not in value and looks_secret(str(name)):
            mask_secret(value)


_EVERY_BUCKET = lazy_pattern(r"spark\.hadoop\.fs\.s3a\.(?!bucket\.)")
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
    own = {name: property_text(value) for name, value in extras.items()}
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


def machine_properties() -> set[str]:
    """Return the names of the properties that the machine's ``spark-defaults.conf`` sets."""
    path = _spark_defaults()
    lines = path.read_text(errors="replace").splitlines() if path is not None else ()
    return {re.split(r"[\s=:]", line.strip(), maxsplit=1)[0] for line in lines if line.strip()}


def _spark_defaults() -> Path | None:
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    path = Path(folder, "spark-defaults.conf")
    return path if os.path.isabs(folder) and path.is_file() else None
