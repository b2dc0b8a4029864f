"""Images as folders of this machine, and their containers: processes with mounts of their own.

A container sees the system, the folders of its image and the volumes of its pod, and nothing else of this machine. It has a host
name of its own; its network is the machine's, with an address on loopback for each pod.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stores.clusters import CLUSTER_PYTHON, SPARK_HOME
from stores.install import AWS_JARS

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/sys")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_BASE_PYTHON = {} if sys.base_prefix.startswith("/usr") else {sys.base_prefix: Path(sys.base_prefix)}
"""What virtual environments are made of."""


@dataclass(frozen=True)
class Image:
    """What a container sees and runs.

    :param folders: folders of this machine by their place in the container.
    :param environment: variables.
    :param entrypoint: a shell script before the arguments, if the pod has no command.
    """

    folders: Mapping[str, Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    entrypoint: str = 'exec "$@"'


# What Spark passes to an image: the role, and for a driver the arguments of spark-submit.
_ENTRYPOINT = r"""
role=$1; shift
case $role in
driver)
  exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@" ;;
executor)
  set -- ; for name in $(env | sed -n 's/^\(SPARK_JAVA_OPT_[0-9]*\)=.*/\1/p'); do eval "set -- \"\$@\" \"\$$name\""; done
  exec java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$SPARK_CLASSPATH:$SPARK_HOME/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME" ;;
*)
  echo "unknown role $role" >&2; exit 64 ;;
esac
"""


_JAVA = Path(os.environ.get("JAVA_HOME") or Path(shutil.which("java") or "/usr/bin/java").resolve().parents[1])
_HOME = "/opt/spark"

SPARK = "spark:tests"
S3_CLASS_PATH = f"{_HOME}/s3/*"
"""S3's connector, which Spark's image has."""


def spark_image() -> Image:
    """Return Spark's image, with the connector to S3, and a Python that has neither Airflow nor this project."""
    # Entry by entry: volumes and the connector have their places below.
    home = {f"{_HOME}/{folder.name}": folder for folder in SPARK_HOME.iterdir() if folder.is_dir()}
    python = CLUSTER_PYTHON.parents[1]
    environment = {
        "PATH": f"{CLUSTER_PYTHON.parent}:/opt/java/bin:{_PATH}",
        "JAVA_HOME": "/opt/java",
        "SPARK_HOME": _HOME,
        "PYSPARK_PYTHON": str(CLUSTER_PYTHON),
        "PYSPARK_DRIVER_PYTHON": str(CLUSTER_PYTHON),
    }
    folders = {**home, f"{_HOME}/s3": AWS_JARS, "/opt/java": _JAVA, **_BASE_PYTHON, str(python): python}
    return Image(folders, environment, _ENTRYPOINT)


def python_image(environment: Path, folders: Mapping[str, Path], **variables: str) -> Image:
    """Return the image of a virtual environment.

    :param folders: what else is in it.
    """
    path = {"PATH": f"{environment / 'bin'}:{_PATH}"}
    return Image({**_BASE_PYTHON, str(environment): environment, **folders}, {**path, **variables})


def start_container(
    image: Image,
    directory: Path,
    *,
    command: Sequence[str] | None,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    mounts: Mapping[str, Path],
    name: str,
    hosts: Path,
) -> subprocess.Popen[bytes]:
    """Start a container, in a session of its own.

    :param directory: an existing directory for its root and its log.
    :param command: instead of the image's entrypoint.
    :param mounts: volumes by their place in the container.
    :param name: of its host.
    :param hosts: its ``/etc/hosts``.
    """
    root = directory / "root"
    root.mkdir()
    lines = ["set -e", shlex.join(["hostname", name]), "mount --make-rprivate /"]
    lines.append(shlex.join(["mount", "-t", "tmpfs", "container", str(root)]))
    for place in _SYSTEM:
        if os.path.islink(place):
            lines.append(shlex.join(["ln", "-s", os.readlink(place), f"{root}{place}"]))
        elif os.path.exists(place):
            lines += _bind(root, place, Path(place))
    for place, folder in {**image.folders, **mounts}.items():
        lines += _bind(root, place, folder)
    lines.append(shlex.join(["mount", "--bind", str(hosts), f"{root}/etc/hosts"]))
    lines.append(shlex.join(["mkdir", "-p", f"{root}/tmp", f"{root}/opt/work"]))
    script, words = ('exec "$@"', [*command, *arguments]) if command else (image.entrypoint, [*arguments])
    lines.append(shlex.join(["exec", "chroot", str(root), "/bin/sh", "-c", f"cd /opt/work\n{script}", "container", *words]))
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(
            ["unshare", *as_root, "--mount", "--uts", "/bin/sh", "-c", "\n".join(lines)],
            env={"HOME": "/tmp", "PATH": _PATH, **image.environment, **environment},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _bind(root: Path, place: str, folder: Path) -> list[str]:
    target = f"{root}{place}"
    return [shlex.join(["mkdir", "-p", target]), shlex.join(["mount", "--rbind", str(folder), target])]
