"""Look for known vulnerabilities of what requirements.lock names, with pip-audit: ``python tests/project/audit.py``.

Some package indexes mirror packages without the advisories; there the audit fails, and says that it could not be done.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOL = ROOT / ".cache" / "audit"
VERSION = "2.10.1"
LOCK = ROOT / "requirements.lock"
UNREACHABLE = ("could not be audited", "ConnectionError", "ConnectTimeout")


def audited(requirements: Path) -> subprocess.CompletedProcess[str]:
    command = [str(TOOL / "bin" / "pip-audit"), "--strict", "--no-deps", "--disable-pip", "--requirement", str(requirements)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def main() -> int:
    if not (TOOL / "bin" / "pip-audit").exists():
        venv.create(TOOL, with_pip=True, clear=True)
        install = [TOOL / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-input", f"pip-audit=={VERSION}"]
        subprocess.run(install, check=True)
    # One package that every index has, before all are asked for.
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "requirements.txt"
        first.write_text(next(line for line in LOCK.read_text().splitlines(keepends=True) if line.startswith("pip==")))
        answer = audited(first)
    if any(text in answer.stderr for text in UNREACHABLE):
        print(f"NOT AUDITED: the advisories cannot be reached from here: {answer.stderr.strip().splitlines()[-1]}")
        return 1
    answer = audited(LOCK)
    print(answer.stdout, answer.stderr, sep="")
    return answer.returncode


if __name__ == "__main__":
    sys.exit(main())
