"""The random secret that signs session cookies, in a file that only its owner can read.

Servers that share the file share their sessions. ``access.py`` uses the secret.
"""

import contextlib
import logging
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Final

from rrq.exc import SettingsError

logger = logging.getLogger(__name__)

_OPTION: Final = "--session-key-file"
_SHORTEST: Final = 32


def read_session_key(path: Path) -> bytes:
    """Return the secret in a file. Raises SettingsError when there is none or when other users can read it."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            key = file.read(4096).strip()
    except OSError as error:
        raise SettingsError(
            f"The file of {_OPTION}, {path}, cannot be read: {error.strerror or error}. Write a random key into it, "
            "for example the output of `openssl rand -hex 32`, or name another file. For a Secret in a volume, add the key "
            "to the Secret."
        ) from error
    # As in ssh: the permissions of a file of another user, such as a Secret that the kubelet mounts, are not checked.
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & 0o077:
        raise SettingsError(
            f"The file of {_OPTION}, {path}, can be read by other users of this machine, who could sign in as "
            f"admin. Replace the key in it and run `chmod 600 {path}`; for a Secret in a volume set defaultMode: 0400."
        )
    if len(key) < _SHORTEST:
        raise SettingsError(
            f"The key in the file of {_OPTION}, {path}, has {len(key)} characters and could be guessed. Use at least "
            f"{_SHORTEST}, for example the output of `openssl rand -hex 32`."
        )
    return key


def read_own_session_key() -> bytes:
    """Return the secret of this user on this machine; the first call creates it.

    Where no file can be written, as in a container with a read-only disk, each process has a secret of its own.
    """
    try:
        path = _own_path()
        if not path.exists():
            _make(path)
    except (OSError, RuntimeError) as error:
        logger.warning(
            "cannot store the session key: sessions end with this process. Name a file with --session-key-file.",
            extra={"error": str(error)},
        )
        return secrets.token_bytes(32)
    return read_session_key(path)


def _own_path() -> Path:
    folder = os.environ.get("XDG_STATE_HOME")
    return (Path(folder) if folder else Path.home() / ".local" / "state") / "rrq" / "dashboard-session-key"


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Linked when complete, so that two servers that start at the same time both read the same key.
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # only its owner can read it
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)
