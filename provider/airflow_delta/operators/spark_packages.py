"""Check the installed PySpark: the packages ``pyspark`` and ``pyspark-client`` install the same files."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version

from airflow_delta.exceptions import DeltaIllegalStateException

logger = logging.getLogger(__name__)

_FULL, _CLIENT = "pyspark", "pyspark-client"


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
    from packaging.version import Version

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
