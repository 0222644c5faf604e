"""Write ``.env``, the passwords of ``docker-compose.yml``: a random one for each that ``.env.example`` names.

Run as ``python3 -m infra.setup_env``. Values that ``.env`` has already stay as they are, so it may run again after an
upgrade that brings a new service.
"""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

_SHORTEST = 24


def filled(example: str, present: str) -> str:
    """The text of ``.env``: the example's comments and names, each with its present value or a new one.

    Args:
        example: ``.env.example``.
        present: ``.env`` as it is; empty where there is none.
    """
    known = dict(line.split("=", 1) for line in present.splitlines() if "=" in line and not line.startswith("#"))
    lines = []
    for line in example.splitlines():
        name, separator, value = line.partition("=")
        if line.startswith("#") or not separator:
            lines.append(line)
        else:
            lines.append(f"{name}={known.pop(name, '') or value or _new(name)}")
    return "\n".join([*lines, *(f"{name}={value}" for name, value in known.items())]) + "\n"


def _new(name: str) -> str:
    if name.endswith("_FERNET_KEY"):
        return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    # Hexadecimal: the same in a URL, in a shell and in Java's quotes.
    return secrets.token_hex(_SHORTEST)


def main() -> None:
    """Write the file, for its owner's eyes only."""
    target = REPOSITORY / ".env"
    present = target.read_text(encoding="utf-8") if target.exists() else ""
    text = filled((REPOSITORY / ".env.example").read_text(encoding="utf-8"), present)
    if text != present:
        unfinished = target.with_name(f".env.{os.getpid()}")
        unfinished.touch(mode=0o600)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(target)
    print(f"{target.name}: passwords are in place")


if __name__ == "__main__":
    main()
