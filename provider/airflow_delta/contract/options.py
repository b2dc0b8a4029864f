"""Which options of Spark's sources and writers a request may have: it is stored beside the table, and Airflow shows it.

What a stage without Spark (``engine="arrow"``) takes of the options of a write; standard library only, as a Dag is parsed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from airflow_delta.contract.queries import check_query
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.masking import has_secret, has_user_info, refused_options

REQUEST_PROPERTY = "spark.airflow_delta.request"
"""Spark property with the path of the request of a submitted stage."""

REQUEST_ARGUMENT, PACKAGE_ARGUMENT = "--delta-request", "--delta-package"
"""Arguments of a program with the URIs of its request, and of the zip with the provider's modules."""

SECRET_PROPERTY = "spark.airflow_delta.source.secret"  # noqa: S105 - a name
"""Spark property with secret options of a source, as Base64 of JSON; Spark redacts properties of such names."""

CONNECTION = "conn_id"
"""Key of a source that names the Airflow connection with its secret options."""

_NAME = lazy_pattern(r"[\w.`:/-]+")
"""The name of a table, or a path: a query has more than one word, or parentheses."""

_SOURCE_KEYS = ("sql", "path", "format", "options", CONNECTION)


def check_writer_options(options: Any, *, whose: str) -> None:
    """Refuse options of Spark's Parquet writer that could be secret.

    :param options: a template or an XCom is not checked.
    :param whose: the operation or task, for the message.
    :raises DeltaIllegalArgumentException: if there is one.
    """
    if refused := refused_options(given_options(options)):
        raise DeltaIllegalArgumentException(
            f"{whose} gives Spark's writer the options {_named(refused)}, which may be secret: a request is "
            "stored beside the table, and Airflow shows it. Set them where the session is made: in the extra of the Spark "
            "connection (spark.hadoop.<name>), or in the configuration of the cluster."
        )


def check_source(source: Any, *, whose: str) -> None:
    """Refuse a source with credentials, or with options that could be secret.

    :param source: Spark SQL, or a mapping as of :class:`~airflow_delta.operators.merge.DeltaMergeOperator`; anything else is not
        checked.
    :param whose: the operation or task, for the message.
    :raises DeltaIllegalArgumentException: if it has such options, or an unknown key, or if its SQL would run something on Spark's
        driver.
    """
    way_out = (
        'Put them in an Airflow connection and name it: source={"format": ..., "options": {...}, "conn_id": "..."}; options go '
        'in its extra as {"spark_options": {...}}'
    )
    sql = source if isinstance(source, str) else source.get("sql") if isinstance(source, Mapping) else None
    if isinstance(sql, str):
        check_query(sql, whose=f"the source of {whose}")
    if isinstance(source, str) and has_user_info(source):
        raise DeltaIllegalArgumentException(f"The SQL of the source of {whose} contains credentials. {way_out}.")
    if not isinstance(source, Mapping):
        return
    if unknown := [key for key in source if key not in _SOURCE_KEYS]:
        raise DeltaIllegalArgumentException(
            f"The source of {whose} has {_named(unknown)}; it takes {', '.join(_SOURCE_KEYS)}. Options of Spark's reader go into "
            "options."
        )
    if refused := refused_options(given_options(source.get("options"))):
        raise DeltaIllegalArgumentException(
            f"The source of {whose} has the options {_named(refused)}, which may be secret: a request is stored "
            f"beside the table, and Airflow shows it. {way_out}."
        )
    for key in ("sql", "path"):
        if isinstance(source.get(key), str) and (has_user_info(source[key]) or (key == "path" and has_secret(source[key]))):
            raise DeltaIllegalArgumentException(f"The {key} of the source of {whose} contains credentials. {way_out}.")


def check_is_query(source: Any, *, whose: str) -> None:
    """Refuse SQL of a source that is only a name, of a table or a path; a template, and a ``.sql`` file, is not checked.

    :raises DeltaIllegalArgumentException: if it is.
    """
    sql = source.get("sql") if isinstance(source, Mapping) else source
    if isinstance(sql, str) and _NAME.fullmatch(sql.strip()) and not sql.strip().endswith(".sql"):
        raise DeltaIllegalArgumentException(
            f"The source of {whose} is {sql!r}, which is not a query. Write the SELECT, or name files: "
            'source={"format": "parquet", "path": "..."}.'
        )


def given_options(options: Any) -> Mapping[str, Any]:
    """Return options, also those written as JSON; no options if a template is not JSON yet."""
    if isinstance(options, str):
        with contextlib.suppress(ValueError):
            options = json.loads(options)
    return options if isinstance(options, Mapping) else {}


def _named(names: list[Any]) -> str:
    return ", ".join(sorted(map(str, names)))


COMPRESSION = {"none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd", "lz4_raw": "lz4"}
"""Codecs of Spark's Parquet writer, by their names in Arrow."""

REPLACEMENTS = ("replace_on", "replace_using")
"""Options that compare rows of the table with the new ones: only Spark does."""

COMPARES = "replace_on or replace_using, which compare its rows with the new ones"


def writer_option_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with an option of the Parquet writer; ``None`` if nothing is."""
    folded, text = name.lower(), str(value)
    if (folded == "compression" and text.lower() in COMPRESSION) or (folded == "maxrecordsperfile" and text.isdecimal()):
        return None
    return (
        f"the write option {name}={value!r}. Without Spark there are compression ({', '.join(COMPRESSION)}) and maxRecordsPerFile"
    )
