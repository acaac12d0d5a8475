"""Environment: the time zone that a person here lives in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ZONE_FILES = Path("/usr/share/zoneinfo")
LOCALTIME = Path("/etc/localtime")
FALLBACK = "Etc/UTC"


def local_timezone(environ: Mapping[str, str]) -> str:
    """The IANA name of the local zone: `TZ`, the target of /etc/localtime, or Etc/UTC."""
    named = environ.get("TZ", "").lstrip(":")
    if named and "/" in named and not named.startswith("/"):
        return named
    try:
        target = LOCALTIME.resolve()
    except OSError:
        return FALLBACK
    try:
        return str(target.relative_to(ZONE_FILES))
    except ValueError:
        return FALLBACK
