"""Environment: the time zone that a person here lives in."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

ZONES = "zoneinfo"  # the folder that holds the zones, wherever a system keeps it
ZONE_FILES = Path("/usr/share", ZONES)
LOCALTIME = Path("/etc/localtime")
FALLBACK = "Etc/UTC"
AREA_AND_PLACE = re.compile(r"[A-Za-z_]+(/[A-Za-z0-9_+-]+)+")  # `TZ` may also hold a rule such as CET-1CEST,M3.5.0/2


def local_timezone(environ: Mapping[str, str], localtime: Path = LOCALTIME) -> str:
    """The IANA name of the local zone: `TZ` where it names one, the target of /etc/localtime, or Etc/UTC."""
    named = environ.get("TZ", "").lstrip(":")
    if AREA_AND_PLACE.fullmatch(named) or (named.isalnum() and os.path.isfile(ZONE_FILES / named)):  # noqa: PTH113
        return named
    parts = Path(os.path.realpath(named if named.startswith("/") else localtime)).parts
    return "/".join(parts[parts.index(ZONES) + 1 :]) if ZONES in parts[:-1] else FALLBACK
