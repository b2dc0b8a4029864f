"""Licences of everything that requirements.lock names: ``python tests/project/licences.py`` prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).parents[2] / "requirements.lock"
PROJECT = "airflow-provider-delta"
EXTRAS = ("spark", "connect", "openlineage", "hdfs")


@dataclass(frozen=True)
class Package:
    """A locked package.

    :param licences: alternatives, of which the user may choose one; each is all the licences that apply together. ``None``: the
        package is not installed.
    """

    name: str
    version: str
    licences: frozenset[frozenset[str]] | None

    def __str__(self) -> str:
        if self.licences is None:
            return "not installed"
        return " OR ".join(sorted(" AND ".join(sorted(together)) for together in self.licences)) or "unknown"


def packages() -> Iterator[Package]:
    """Return the packages of the lock that belong to this platform and version of Python."""
    for line in LOCK.read_text().splitlines():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            (pin,) = requirement.specifier
            yield Package(canonicalize_name(requirement.name), pin.version, _licences(requirement.name))


def _licences(name: str) -> frozenset[frozenset[str]] | None:
    try:
        about = metadata(name)
    except PackageNotFoundError:
        return None
    if expression := about.get("License-Expression"):
        alternatives = re.split(r" OR ", expression.replace("(", "").replace(")", ""))
        return frozenset(frozenset(re.split(r" AND ", text)) for text in alternatives)
    classifiers = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier", []) if text.startswith("License ::")]
    told = classifiers or [line for line in [(about.get("License") or "").partition("\n")[0]] if line]
    return frozenset(frozenset({text}) for text in told)


def shipped() -> set[str]:
    """Return what users install with the provider and its extras; the rest are tools of the developers."""
    found: set[str] = set()
    waiting = [(PROJECT, extra) for extra in ("", *EXTRAS)]
    while waiting:
        name, extra = waiting.pop()
        for line in _requires(name):
            requirement = Requirement(line)
            environment = {**default_environment(), "extra": extra}
            if requirement.marker is not None and not requirement.marker.evaluate(environment):
                continue
            new = canonicalize_name(requirement.name)
            if new not in found:
                found.add(new)
                waiting.append((new, ""))
            waiting += [(new, asked) for asked in requirement.extras if (new, asked) not in waiting and asked]
    return found


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


if __name__ == "__main__":
    ours = shipped()
    for package in packages():
        print(f"{package.name:45} {package.version:15} {'shipped' if package.name in ours else 'tool':8} {package}")
