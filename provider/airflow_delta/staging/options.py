"""Options of Spark's sources and writers that a request may carry: it lies beside the table, and Airflow shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.masking import has_secret, has_user_info, refused_options

SECRET_PROPERTY = "spark.airflow_delta.source.secret"  # noqa: S105 - a name
"""Spark property with the options of a source that nobody may see, as Base64 of JSON; by its name, Spark does not show it."""

CONNECTION = "conn_id"
"""Key of a source that names the Airflow connection with these options."""

_SOURCE_KEYS = ("sql", "path", "format", "options", CONNECTION)


def check_writer_options(options: Any, *, whose: str) -> None:
    """Refuse options of Spark's Parquet writer that are not known to be harmless.

    :param options: what is no mapping yet (a template, an XCom) is not looked at.
    :param whose: what has them, for the message.
    :raises DeltaIllegalArgumentException: there is one.
    """
    if isinstance(options, Mapping) and (refused := refused_options(options)):
        raise DeltaIllegalArgumentException(
            f"{whose} gives Spark's writer the options {_named(refused)}, which are not known to be harmless: a request is "
            "written beside the table, and Airflow shows it. Set them where the session is made: in the extra of the Spark "
            "connection (spark.hadoop.<name>), or in the configuration of the cluster."
        )


def check_source(source: Any, *, whose: str) -> None:
    """Refuse a source that brings what nobody may see, or whose options are not known to be harmless.

    :param source: Spark SQL text, or a mapping as of :class:`~airflow_delta.operators.merge.DeltaMergeOperator`; all else is not
        looked at.
    :param whose: what has it, for the message.
    :raises DeltaIllegalArgumentException: it does, or it has a key that is not known.
    """
    way_out = (
        'Put them into an Airflow connection and name it: source={"format": ..., "options": {...}, "conn_id": "..."}; options go '
        'into its extra as {"spark_options": {...}}'
    )
    if isinstance(source, str) and has_user_info(source):
        raise DeltaIllegalArgumentException(f"The SQL of the source of {whose} has credentials in it. {way_out}.")
    if not isinstance(source, Mapping):
        return
    if unknown := [key for key in source if key not in _SOURCE_KEYS]:
        raise DeltaIllegalArgumentException(
            f"The source of {whose} has {_named(unknown)}; it takes {', '.join(_SOURCE_KEYS)}. Options of Spark's reader go into "
            "options."
        )
    options = source.get("options")
    refused = refused_options(options) if isinstance(options, Mapping) else []
    if refused:
        raise DeltaIllegalArgumentException(
            f"The source of {whose} has the options {_named(refused)}, which are not known to be harmless: a request is written "
            f"beside the table, and Airflow shows it. {way_out}."
        )
    for key in ("sql", "path"):
        if isinstance(source.get(key), str) and (has_user_info(source[key]) or (key == "path" and has_secret(source[key]))):
            raise DeltaIllegalArgumentException(f"The {key} of the source of {whose} has credentials in it. {way_out}.")


def _named(names: list[Any]) -> str:
    return ", ".join(sorted(map(str, names)))
