"""Put ``spark/`` and ``contract/`` into one zip for ``--py-files``. Runs in the worker; standard library only."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from importlib import resources

import airflow_delta
from airflow_delta.private_directory import private_directory
from airflow_delta.version import __version__

PARTS = (
    "__init__.py",
    "__init__.pyi",
    "version.py",
    "lazy.py",
    "lazy_patterns.py",
    "light_dataclasses.py",
    "masking.py",
    "contract",
    "exceptions",
    "spark",
)
"""Files of the zip, relative to the package."""

_EPOCH = (1980, 1, 1, 0, 0, 0)


def package_bytes() -> bytes:
    """Return the zip: the same sources give the same bytes."""
    root = resources.files(airflow_delta)
    sources: dict[str, bytes] = {}
    for part in PARTS:
        entry = root / part
        files = [entry] if entry.is_file() else [f for f in entry.iterdir() if f.name.endswith((".py", ".pyi"))]
        for file in files:
            name = f"airflow_delta/{part}" if file is entry else f"airflow_delta/{part}/{file.name}"
            sources[name] = file.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(sources):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, sources[name])
    return buffer.getvalue()


def application_path() -> str:
    """Return the path of the Spark application of submitted operations."""
    return str(resources.files(airflow_delta) / "spark" / "application.py")


def build_package(directory: str | None = None) -> str:
    """Write the zip and return its path. It is built once for each version.

    :param directory: where to write it; default: a directory that only this user can write to.
    """
    data = package_bytes()
    digest = hashlib.sha256(data).hexdigest()[:12]
    if directory is None:
        directory = private_directory()  # its content runs on the cluster
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = os.path.join(directory, f"airflow_delta-{__version__}-{digest}.zip")
    if _has_content(path, data):
        return path
    # Renamed into place: no spark-submit of another task ships half a file.
    descriptor, temporary = tempfile.mkstemp(dir=directory, suffix=".zip.tmp")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
    return path


def _has_content(path: str, data: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == data
    except FileNotFoundError:
        return False
