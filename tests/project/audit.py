"""Look for known vulnerabilities of what requirements.lock names, with pip-audit: ``python tests/project/audit.py``.

Some package indexes mirror packages without PyPI's advisories; there the audit says that it could not be done.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOL = ROOT / ".cache" / "audit"
VERSION = "2.10.1"
LOCK = ROOT / "requirements.lock"


def answers() -> bool:
    """Return whether PyPI tells about a version of a package, here the pip that is locked."""
    (version,) = [line.partition("==")[2] for line in LOCK.read_text().splitlines() if line.startswith("pip==")]
    try:
        with urllib.request.urlopen(f"https://pypi.org/pypi/pip/{version}/json", timeout=20) as page:
            return b'"vulnerabilities"' in page.read()
    except (urllib.error.URLError, TimeoutError):
        return False


def main() -> int:
    if not answers():
        print("NOT AUDITED: PyPI's advisories cannot be reached from here (https://pypi.org/pypi/pip/<version>/json).")
        return 0
    tool = TOOL / "bin" / "pip-audit"
    if not tool.exists():
        venv.create(TOOL, with_pip=True, clear=True)
        install = [TOOL / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-input", f"pip-audit=={VERSION}"]
        subprocess.run(install, check=True)
    return subprocess.run([tool, "--strict", "--no-deps", "--disable-pip", "--requirement", LOCK], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
