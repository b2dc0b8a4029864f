"""The connection of type ``delta``: where tables are and how their storage is reached."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from airflow_delta import engine, publication
from airflow_delta.contract.catalog_names import Reservation, TableName
from airflow_delta.contract.kinds import table_text
from airflow_delta.contract.location import AZURE, FILE, Location, check_no_secret, store_of
from airflow_delta.contract.sql_parameters import with_given
from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    ManifestException,
    PublicationPendingException,
)
from airflow_delta.hooks.catalog_tables import CatalogTables
from airflow_delta.hooks.cloud import assumed_role
from airflow_delta.hooks.credentials_of_another import IDENTITY
from airflow_delta.hooks.fields import ConnectionFields
from airflow_delta.hooks.frames import ROW_LIMIT, DataFrameType, as_frame, check_df_type, read_changes_with_spark, read_with_spark
from airflow_delta.hooks.location import one_spelling
from airflow_delta.hooks.named_connection import named_connection
from airflow_delta.masking import masked, secret_values

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from pyspark.sql import SparkSession

    from airflow_delta.catalog.client import UnityCatalogClient
    from airflow_delta.log import DeltaLog


class DeltaHook(BaseHook):
    """Reach Delta tables through an Airflow connection.

    The connection's host (or ``base_path`` in its extra) is the directory that relative table names start from. Credentials and
    settings come, in this order, from the ``storage_options`` in its extra, from login and password, and from the connection
    that ``aws_conn_id``, ``gcp_conn_id``, ``wasb_conn_id`` or ``adls_conn_id`` in its extra names. A connection of such a type
    may be used directly. Only the default connection may be missing: local paths, and credentials in the worker's environment,
    need none.

    :param delta_conn_id: id of a connection of type ``delta``.
    """

    conn_name_attr = "delta_conn_id"
    default_conn_name = "delta_default"
    conn_type = "delta"
    hook_name = "Delta Lake"
    process: str | None = None
    """The kind of process that opens tables, if it is not this one (:mod:`airflow_delta.hooks.allowed`)."""

    def __init__(self, delta_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.delta_conn_id = delta_conn_id

    @cached_property
    def connection(self) -> Connection | None:
        """The connection; ``None`` if it is the default one and does not exist.

        :raises AirflowNotFoundException: if a connection other than the default one does not exist.
        """
        try:
            return named_connection(self.delta_conn_id, self.conn_name_attr, self.conn_type)
        except AirflowNotFoundException:
            if self.delta_conn_id != self.default_conn_name:
                raise
            return None

    @cached_property
    def fields(self) -> ConnectionFields:
        """The connection's fields.

        :raises DeltaIllegalArgumentException: if it is neither of type ``delta`` nor to a cloud.
        """
        return ConnectionFields(self.delta_conn_id, self.connection)

    @property
    def base_path(self) -> str | None:
        """Directory that relative table names start from, without a trailing slash.

        :raises DeltaIllegalArgumentException: if it contains credentials, is relative, or has an unknown scheme.
        """
        return self.fields.base_path

    @property
    def base_uri(self) -> str | None:
        """The base path in the form of :meth:`table_uri`: ``s3://`` for ``s3a://``, with the account of a container of Azure."""
        return None if self.base_path is None else self._spelled(self.base_path)

    def table_uri(self, table: str) -> str:
        """Return the URI of a table: ``table`` itself if it is absolute, otherwise below the base path.

        Through a connection to Unity Catalog, ``catalog.schema.table``: the catalog is asked where it is.

        Different spellings of a location give the same URI: ``s3a://`` becomes ``s3://``, and a container of Azure gets its
        account.

        :raises DeltaIllegalArgumentException: if the name is empty, contains credentials, or is relative without a base path, or
            with a part ``.`` or ``..``.
        """
        table = table_text(table)
        if not table or not table.strip():
            raise DeltaIllegalArgumentException("The table is empty. Pass a URI, an absolute path, or a name below a base path.")
        check_no_secret(table)
        if "://" in table or os.path.isabs(table):
            uri = table.rstrip("/") or "/"
        elif self.fields.is_catalog:
            return self.get_log(table).uri
        elif self.base_path is None:
            raise DeltaIllegalArgumentException(
                f"The table {table!r} is relative, but the connection {self.delta_conn_id!r} has no base path. "
                "Pass the table's full URI, or set the host of the connection.",
                table=table,
            )
        elif {".", ".."} & set(table.split("/")):
            raise DeltaIllegalArgumentException(
                f"The table {table!r} is a name below the base path of the connection {self.delta_conn_id!r}, which a part "
                "'.' or '..' would leave or spell in another way. Pass the name without it, or the table's full URI.",
                table=table,
            )
        else:
            uri = f"{self.base_path.rstrip('/')}/{table.strip('/')}"
        return self._spelled(uri)

    def _spelled(self, uri: str) -> str:
        without_account = store_of(uri) == AZURE and Location.parse(uri).host is None
        return one_spelling(uri, self.fields.location_options(uri) if without_account else None)

    def storage_options(self, uri: str) -> dict[str, str]:
        """Return the options of the object store that holds ``uri``, and mask them in task logs from here on.

        Each option is there once, under one name (``aws_region``). Masks every value that is not known to be harmless, and
        credentials in URLs.

        :raises DeltaIllegalArgumentException: if a field of the connection is not valid.
        """
        options = assumed_role(self.fields.storage_options(uri, self.process), f"the connection {self.delta_conn_id!r}")
        for value in secret_values(options):
            mask_secret(value)
        return options

    def spark_options(self, uri: str) -> dict[str, str]:
        """Return the options from which the settings of Spark are derived: Spark assumes a role by itself."""
        options = self.fields.storage_options(uri, self.process)
        for value in secret_values(options):
            mask_secret(value)
        return options

    def get_log(self, table: str, *, create: bool = False) -> DeltaLog:
        """Return the log of a table; nothing is read yet.

        :param table: URI, absolute path, or name below the connection's base path; through a connection to Unity Catalog,
            ``catalog.schema.table``, which is asked for now.
        :param create: if the catalog has no such table, reserve one: the first commit makes it a table of the catalog.
        :raises DeltaIllegalArgumentException: as :meth:`table_uri` does.
        :raises DeltaTableNotFoundException: if the catalog has no such table.
        """
        table = table_text(table)
        if self.fields.is_catalog and table and table.strip() and "://" not in table and not os.path.isabs(table):
            return engine.DeltaLog(self._catalog_tables.open(TableName.parse(table), create=create))
        uri = self.table_uri(table)
        return engine.DeltaLog.for_table(uri, storage_options=self.storage_options(uri) or None, connection=self._conn_name)

    @cached_property
    def _catalog_tables(self) -> CatalogTables:
        look_up = partial(named_connection, self.delta_conn_id, self.conn_name_attr, self.conn_type)
        return CatalogTables(self.delta_conn_id, self.fields, options=self.storage_options, look_up=look_up, process=self.process)

    @property
    def catalog(self) -> UnityCatalogClient:
        """The client of the connection's Unity Catalog.

        :raises DeltaIllegalArgumentException: if it is not a connection to one, or one of its fields is not valid.
        """
        return self._catalog_tables.client

    def get_reserved_log(self, table: str, reservation: Reservation, *, unused: bool = False) -> DeltaLog:
        """Return the log of a table that is reserved in the catalog, and not a table yet: it has no version.

        :param table: ``catalog.schema.table``.
        :param unused: only if no transaction has written a first version to its location, which may become one.
        :raises CatalogNotFoundException: if the catalog has no such reservation, or has it at another location.
        :raises CatalogConflictException: if a first version is there.
        """
        return engine.DeltaLog(self._catalog_tables.open_reserved(TableName.parse(table), reservation, unused=unused))

    def get_df(
        self,
        table: str,
        *,
        where: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        version: int | None = None,
        timestamp: datetime | int | None = None,
        df_type: DataFrameType = "arrow",
        limit: int | None = ROW_LIMIT,
        spark: SparkSession | None = None,
    ) -> Any:
        """Return rows of a table: a :class:`pyarrow.Table`, or the frame that ``df_type`` names.

        The worker reads them itself, except for ``df_type="spark"``, which returns a lazy DataFrame. Deletion vectors, column
        mapping, widened types and partition values are those of the version; a partition value of type ``timestamp`` without a
        time zone is in UTC, in Spark in the zone of its session. Integers with nulls become Python integers in pandas.

        :param table: URI, absolute path, or name below the connection's base path.
        :param where: Spark SQL predicate; partitions are pruned and files skipped by it. Without Spark, by
            the operators and functions of ``docs/operations/without-spark-expressions.md``, as in ANSI mode and UTC.
        :param parameters: values of named parameters (``:day``) in ``where``.
        :param columns: names of columns, in the order wanted; default: all.
        :param version: version of the table; default: the latest; or
        :param timestamp: the last version committed at this time or before (naive: UTC, or milliseconds since the epoch).
        :param df_type: ``arrow``, ``pandas``, ``polars`` or ``spark``.
        :param limit: number of rows that may be returned; ``None`` for any. It does not apply to ``df_type="spark"``.
        :param spark: session for ``df_type="spark"``; default: the active one.
        :raises ReadLimitException: if there are more rows than ``limit``: before they are read, if statistics give their number.
        :raises PredicateException: if ``where`` does not parse, or only Spark can evaluate it.
        :raises DeltaTableNotFoundException: if there is no table.
        :raises VersionNotFoundException: if the log does not hold the version yet, or no longer does.
        :raises DeltaFileNotFoundException: if VACUUM has deleted a file of the version.
        :raises DeltaUnsupportedTableFeatureException: if the table lists a reader feature that is not supported.
        :raises AirflowOptionalProviderFeatureException: if the package of ``df_type`` is not installed.
        """
        log = self.get_log(table)
        check_df_type(df_type, log.uri)
        where = with_given(where, parameters, whose="where")
        options: dict[str, Any] = {"version": version, "timestamp": timestamp, "where": where, "columns": columns}
        if df_type == "spark":
            return read_with_spark(log, spark, **options)
        return as_frame(engine.read_table(log, **options, limit=limit), df_type)

    def read_changes(
        self,
        table: str,
        *,
        starting_version: int | None = None,
        starting_timestamp: datetime | int | None = None,
        ending_version: int | None = None,
        ending_timestamp: datetime | int | None = None,
        where: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        df_type: DataFrameType = "arrow",
        limit: int | None = ROW_LIMIT,
        spark: SparkSession | None = None,
    ) -> Any:
        """Return the rows that changed between two versions, both included (the change data feed).

        The columns are the table's, ``_change_type`` (``insert``, ``delete``, ``update_preimage``, ``update_postimage``),
        ``_commit_version`` and ``_commit_timestamp``; ``where`` and ``columns`` may name all of them. The table must have
        recorded changes in the whole range (``delta.enableChangeDataFeed``).

        :param starting_version: the first version; or
        :param starting_timestamp: the first version committed at this time or later (naive: UTC, or milliseconds).
        :param ending_version: the last version, at most the latest one; or
        :param ending_timestamp: the last version committed at this time or before. Default: the latest version.
        :raises DeltaIllegalArgumentException: if not exactly one start is given, or the end is before the start.
        :raises DeltaIllegalStateException: if changes were not recorded in the whole range.
        :raises DeltaAnalysisException: if no single schema can read the whole range.

        The other parameters and errors are those of :meth:`get_df`.
        """
        log = self.get_log(table)
        check_df_type(df_type, log.uri)
        options: dict[str, Any] = {
            "starting_version": starting_version,
            "starting_timestamp": starting_timestamp,
            "ending_version": ending_version,
            "ending_timestamp": ending_timestamp,
            "where": with_given(where, parameters, whose="where"),
            "columns": columns,
        }
        if df_type == "spark":
            return read_changes_with_spark(log, spark, **options)
        return as_frame(engine.read_changes(log, **options, limit=limit), df_type)

    def get_versions(self, tables: Sequence[str], *, settle: bool = False) -> dict[str, int]:
        """Return versions of several tables that belong together, by the names given.

        Of a publication of several tables, all of these show it, or none; one that is split is shown, with a warning in the log.
        Pass them to :meth:`get_df`, or to Spark's ``versionAsOf``. Looks once at each log, and never waits.

        :param tables: URIs, absolute paths, or names below the connection's base path.
        :param settle: bring publications that are decided, but not on all tables yet, to their end, rather than show the
            versions before them. Only those whose tables are all named.
        :return: -1 for a table that does not exist.
        """
        logs = {table: self.get_log(table) for table in tables}
        found = publication.get_versions(logs)
        if settle and found.held_back:
            for open_one, names in found.held_back.items():
                try:
                    publication.settle(logs[names[0]], open_one, publication.own_tables(list(logs.values())))
                except (PublicationPendingException, ManifestException) as error:
                    self.log.warning("Publication %s stays held back: %s", open_one, error)
            found = publication.get_versions(logs)
        return dict(found.versions)

    @property
    def _conn_name(self) -> str | None:
        return self.delta_conn_id if self.connection is not None else None

    def get_conn(self) -> Any:
        """Return the store of the base path (:class:`airflow_delta.log.storage.base.LogStore`).

        :raises DeltaIllegalArgumentException: if the connection has no base path.
        """
        if self.base_path is None:
            raise DeltaIllegalArgumentException(
                f"The connection {self.delta_conn_id!r} has no base path to connect to. Set its host, or use get_log(table) with "
                "a full URI."
            )
        uri = self._spelled(self.base_path)
        return engine.store_for(uri, self.storage_options(uri) or None, connection=self._conn_name)

    def test_connection(self) -> tuple[bool, str]:
        """List and read below the base path, and prove that the store refuses to overwrite, with an object that is deleted.

        Without a base path, only check the fields.
        """
        try:
            if self.fields.is_catalog:
                return self._catalog_tables.test()
            if self.base_path is None:
                self.fields.check()
                names = sorted(self.fields.given_options)
                return True, f"No base path to list; tables need a full URI. Storage options: {', '.join(names) or 'none'}."
            options = self.storage_options(self.base_path)
            if store_of(self.base_path) == FILE:
                return True, f"{self.base_path} has {len(os.listdir(self.base_path))} entries."
            return True, self._probe(options)
        except Exception as error:  # noqa: BLE001 - any error of the store is the result of the test
            return False, masked(f"{type(error).__name__}: {error}", self._secrets())

    def _probe(self, options: Mapping[str, str]) -> str:
        store = self.get_conn()
        files, directories = store.list_children("")
        if files:
            store.read_range(files[0], 0, 1)
        engine.check_conditional_put(store, again=True)
        who = "these credentials" if any(name in IDENTITY for name in options) else "the credentials of this machine"
        return (
            f"{self.base_path} can be listed ({len(directories)} folders, {len(files)} objects), read and written with {who}; "
            "the store refuses to overwrite (conditional put)."
        )

    def _secrets(self) -> tuple[str, ...]:
        try:
            return self.fields.secrets
        except Exception:  # noqa: BLE001 - values that cannot be read are not shown either
            return ()
