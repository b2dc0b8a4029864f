"""The PySpark of this environment: the packages ``pyspark`` and ``pyspark-client`` install the same files."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version

from airflow_delta.exceptions import DeltaIllegalStateException

logger = logging.getLogger(__name__)

_FULL, _CLIENT = "pyspark", "pyspark-client"


def check_pyspark() -> None:
    """Name a mixture of two versions of PySpark before it shows as an error that nobody can explain.

    Airflow's Spark provider brings ``pyspark-client`` in whatever version is the newest. Beside another release of ``pyspark``,
    the modules of whichever was installed last count and the others of both are left; beside another patch of the same release
    that mostly goes well, so there is a warning only.

    :raises DeltaIllegalStateException: both are installed, and they are of different releases.
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
