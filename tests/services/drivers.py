"""Drivers as services run them: exactly what was submitted, by ``spark-submit`` of a PySpark that has nothing else installed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.install import CONNECTORS, SPARKS
from stores.process import LOOPBACK
from support.environments import clean_environment

TIMEOUT = 900

DEFAULTS = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    # Code that runs a few times is not worth a second compiler.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""``spark-defaults.conf`` of a service's image, as far as it is the same for all."""


@dataclass(frozen=True)
class Driver:
    """What a service was told to run."""

    entry_point: str
    arguments: Sequence[str] = ()
    parameters: Sequence[str] | str = ()
    """Options of ``spark-submit``, as a list or as a service takes them: in one string."""

    @property
    def command(self) -> list[str]:
        """What follows the name of the program ``spark-submit``."""
        parameters = shlex.split(self.parameters) if isinstance(self.parameters, str) else self.parameters
        return [*parameters, self.entry_point, *self.arguments]


class ServiceSpark:
    """The Spark of a service, which can reach S3, and whose Python has PySpark alone.

    :param version: ``3.5`` or ``4``.
    :param directory: an existing directory, for configuration, logs and temporary files.
    :param defaults: more of its ``spark-defaults.conf``: where its store is.
    :param environment: variables of its driver: its role's credentials.
    """

    def __init__(
        self,
        version: str,
        directory: Path,
        defaults: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.version, self.directory = version, directory
        self.environment = dict(environment or {})
        [self.home] = SPARKS[version].glob("lib/python*/site-packages/pyspark")
        classes = {"spark.driver.extraClassPath": f"{CONNECTORS[version]}/*", "spark.local.dir": str(directory / "local")}
        self._defaults = {**DEFAULTS, **classes, **(defaults or {})}
        self._runs = 0

    def run(self, driver: Driver, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a driver to its end, and return what came of it, with all that it printed.

        Nothing is copied or fetched but what ``spark-submit`` itself fetches from the URIs that it is given.

        :param environment: more variables, for this run alone.
        """
        return self.command(["spark-submit", *driver.command], **environment)

    def machine(self, home: Path) -> dict[str, str]:
        """Make the home of a user of the service's machine, and return the environment there."""
        (home / "conf").mkdir(parents=True)
        lines = [f"{name} {value}\n" for name, value in self._defaults.items()]
        (home / "conf" / "spark-defaults.conf").write_text("".join(lines))
        given = {"SPARK_CONF_DIR": str(home / "conf"), "PYSPARK_PYTHON": str(SPARKS[self.version] / "bin" / "python")}
        return clean_environment(home, SPARK_HOME=str(self.home), **given, **self.environment)

    def command(self, command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the service's machine, such as ``spark-submit``."""
        self._runs += 1
        environment = self.machine(self.directory / f"run-{self._runs}") | environment
        program = shutil.which(command[0], path=str(self.home / "bin"))
        assert program, f"A service's machine has no {command[0]}"
        return subprocess.run(
            [program, *command[1:]],
            env=environment,
            cwd=environment["HOME"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )


def arguments_by_name(arguments: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a service that takes them as pairs, as its program finds them."""
    return [text for name, value in arguments.items() for text in (name, str(value))]
