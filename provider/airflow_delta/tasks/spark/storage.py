"""Give Spark the credentials of the table's connection: in a session, or in the properties of an application."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk.log import mask_secret

from airflow_delta import engine
from airflow_delta.contract.location import OBJECT_SCHEMES
from airflow_delta.exceptions import DeltaIllegalArgumentException, SparkCredentialsException
from airflow_delta.hooks.credentials_of_another import IDENTITY
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.hooks.fields import OWN
from airflow_delta.hooks.hadoop import OWN_CREDENTIALS, hadoop_settings
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_delta.contract.request import StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import LogStore

logger = logging.getLogger(__name__)

PREFIX = "spark.hadoop."
_SOURCE = "airflow-delta"
_SECRET_PARTS = (
    ".access.key.",
    ".secret.key.",
    ".session.token.",
    ".client.secret.",
    ".encryption.key.",
    ".proxy.password.",
    ".account.key.",
    ".sas.fixed.token.",
)
S3A = "fs.s3a."
_OWN_S3A = lazy_pattern(r"^\s*spark\.hadoop\.fs\.s3a\.(?:aws\.credentials\.provider|access\.key|endpoint)\b", re.MULTILINE)
_AUTHORITY = lazy_pattern(rf"(?:{OBJECT_SCHEMES})://[^/]+", re.IGNORECASE)
# Spark's default, and the names of Azure's keys, which it would show on its pages.
_REDACTION = "(?i)secret|password|token|access[.]?key|account[.]?key|keyfile"


@dataclass(frozen=True)
class SparkStorage:
    """The stores that Spark has to reach, and whose credentials it uses there.

    :param uri: the table's location for Spark.
    :param conn_id: connection of type ``delta``; ``None`` if the worker uses the credentials of its environment.
    :param others: other locations of the table's files, as a shallow clone has them.
    :param own: Spark has credentials of its own.
    :param store: the worker's, which knows the credentials that a catalog has given for the table.
    """

    uri: str
    conn_id: str | None
    others: tuple[str, ...] = ()
    own: bool = False
    store: LogStore | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls, log: DeltaLog, uri: str | None, spark_credentials: str | None, request: StageRequest | None = None
    ) -> SparkStorage:
        """Return the stores of a table.

        :param uri: its location for Spark, if that is not the worker's.
        :param spark_credentials: ``own``, or ``None``; the connection may say so, too.
        :param request: names the files that are read.
        :raises DeltaIllegalArgumentException: if ``spark_credentials`` is anything else.
        """
        if spark_credentials not in (None, "", OWN):
            raise DeltaIllegalArgumentException(
                f"spark_credentials is a string other than {OWN!r}. Leave it out to give Spark the credentials of the table's "
                f"connection, or set it to {OWN!r}."
            )
        own = spark_credentials == OWN
        return cls(engine.spark_table(log, uri), log.store.connection, _roots(request, log.store), own, log.store)

    @property
    def packages(self) -> str | None:
        """What the table's connection has Spark load: Maven coordinates, or ``auto``."""
        return self._hook.fields.spark_packages if self._hook is not None else None

    @cached_property
    def _hook(self) -> DeltaHook | None:
        return DeltaHook(self.conn_id) if self.conn_id is not None else None

    def settings(self, key_file: Callable[[str], str] | None = None) -> dict[str, str]:
        """Return Hadoop's settings, and mask their values in task logs from here on.

        :param key_file: writes a service account's key to a file that Spark can read, and returns its path.
        """
        hook = self._hook
        if self.own or not _AUTHORITY.match(self.uri) or (hook is not None and hook.fields.spark_credentials == OWN):
            return {}
        settings: dict[str, str] = {}
        for uri in (*self.others, self.uri):
            settings |= hadoop_settings(uri, self._options(hook, uri), key_file, os.environ)
        for name, value in settings.items():
            if is_secret(name):
                mask_secret(value)
        return settings

    def _options(self, hook: DeltaHook | None, uri: str) -> dict[str, str]:
        if hook is None:  # Spark finds credentials in its environment by itself, as the worker does, but no endpoint
            return {}
        return {**hook.spark_options(uri), **(self._of_catalog(hook) if uri == self.uri else {})}

    def _of_catalog(self, hook: DeltaHook) -> dict[str, str]:
        """Return the credentials that a catalog gives for the table now, unless the connection has its own.

        Spark cannot renew them, so they are asked for when it begins.
        """
        if self.store is None or not hook.fields.is_catalog or hook.fields.has_identity(self.uri):
            return {}
        return {name: value for name, value in self.store.fresh_options().items() if name in IDENTITY}

    def store_wide(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Return the settings of the table's bucket as those of all buckets: its sources are often beside it."""
        own = f"{S3A}bucket.{self.uri.partition('://')[2].partition('/')[0]}."
        return {f"{S3A}{name.removeprefix(own)}": value for name, value in settings.items() if name.startswith(own)}

    def properties(self) -> dict[str, str]:
        """Return the settings as Spark properties of an application, and what keeps them off Spark's own pages.

        Those of all buckets are for an application that has none of its own.
        """
        found = self.settings()
        settings = {f"{PREFIX}{name}": value for name, value in {**self.store_wide(found), **found}.items()}
        if any(is_secret(name) for name in settings):
            settings = {"spark.redaction.regex": _REDACTION, **settings}
        return settings

    @contextmanager
    def in_session(self, spark: SparkSession, *, made: bool) -> Iterator[None]:
        """Let a session reach the stores; at the end it is as before. What its author has set stays.

        :param made: the session was made for this task, and has no other tables.
        """
        with _key_files() as write:
            classic = hasattr(spark, "_jsparkSession")
            local = classic and str(spark.sparkContext.master).startswith("local")
            settings = self.settings(write if local else None)
            if not settings:
                yield
                return
            if classic and made and not _has_own_s3a(spark):
                settings = {**self.store_wide(settings), **settings}
            with (_hadoop_configuration if classic else _connect_settings)(spark, settings):
                yield


def has_own_s3a(properties: str, names: Iterable[str] = ()) -> bool:
    """Return whether properties say how to reach S3 in general: then nothing is added for other buckets.

    :param properties: text of a properties file.
    :param names: names of other properties.
    """
    return any(_OWN_S3A.search(text) for text in (properties, *names))


def _has_own_s3a(spark: Any) -> bool:
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    return any(_is_authors(configuration, f"{S3A}{name}") for name in ("aws.credentials.provider", "access.key", "endpoint"))


def is_secret(name: str) -> bool:
    """Return whether the value of one of these settings is a secret."""
    return any(part in f"{name}." for part in _SECRET_PARTS)


@contextmanager
def _hadoop_configuration(spark: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Not through the builder: PySpark passes its settings to the JVM in the arguments of a process."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    ours = {name: value for name, value in settings.items() if not _is_authors(configuration, name)}
    before = {name: (configuration.getRaw(name), _source(configuration, name)) for name in ours}
    for name, value in ours.items():
        configuration.set(name, value, _SOURCE)
    try:
        yield
    finally:
        if spark.sparkContext._jsc is not None:
            _restore(configuration, before)


def _is_authors(configuration: Any, name: str) -> bool:
    source = _source(configuration, name)
    return source is not None and source != _SOURCE and not source.endswith("-default.xml")


def _source(configuration: Any, name: str) -> str | None:
    """Return where a value comes from, which Hadoop remembers even of a value that was unset."""
    sources = None if configuration.getRaw(name) is None else configuration.getPropertySources(name)
    return str(sources[len(sources) - 1]) if sources else None


def _restore(configuration: Any, before: Mapping[str, tuple[str | None, str | None]]) -> None:
    try:
        for name, (value, source) in before.items():
            if value is None:
                configuration.unset(name)
            else:
                configuration.set(name, value, source)
    except Exception as error:  # noqa: BLE001 - the JVM is gone, and its settings with it
        logger.debug("Could not restore the Hadoop configuration: %s", error)


@contextmanager
def _connect_settings(spark: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """A server copies the settings of a session into Hadoop's configuration of its queries."""
    taken: list[str] = []
    try:
        for name, value in settings.items():
            if spark.conf.get(name, None) is None:
                _set(spark, name, value)
                taken.append(name)
        yield
    finally:
        for name in taken:
            try:
                spark.conf.unset(name)
            except Exception as error:  # noqa: BLE001 - the session is gone, and its settings with it
                logger.debug("Could not unset %s: %s", name, error)


def _set(spark: Any, name: str, value: str) -> None:
    try:
        spark.conf.set(name, value)
    except engine.PySparkException as error:
        raise SparkCredentialsException(
            f"The Spark Connect server does not take the setting {name} of this session: {str(error).splitlines()[0][:200]}. Set "
            f"the credentials on the server. {OWN_CREDENTIALS}"
        ) from None


@contextmanager
def _key_files() -> Iterator[Callable[[str], str]]:
    """Yield a function that writes a key to a file that only this user can read; the files are deleted afterwards."""
    written: list[str] = []

    def write(text: str) -> str:
        descriptor, path = tempfile.mkstemp(prefix="airflow-delta-", suffix=".json")  # mode 0600
        written.append(path)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        return path

    try:
        yield write
    finally:
        for path in written:
            os.unlink(path)


def _roots(request: StageRequest | None, store: LogStore) -> tuple[str, ...]:
    """Return the buckets of files that are not in the table's own."""
    if request is None:
        return ()
    from airflow_delta.contract.spark_paths import data_file_uri

    own = (view.scan for view in request.views if view.own)
    plans = [plan for plan in (request.scan, request.rewrite, *own) if plan is not None]
    paths: Iterable[str] = (data_file_uri(plan.table, file.path) for plan in plans for file in plan.files if "://" in file.path)
    roots: dict[str, None] = {}
    for directory in dict.fromkeys(path.rpartition("/")[0] for path in paths):
        engine.check_other_location(store.root, directory, store.options, store.connection)
        if (found := _AUTHORITY.match(directory)) is not None:
            roots[found[0]] = None
    return tuple(roots)
