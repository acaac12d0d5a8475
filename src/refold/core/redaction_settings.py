"""Redaction settings: what of a session's texts is not to be kept, and whether it can be looked for."""

from __future__ import annotations

import re

import msgspec

from refold.errors import ConfigError

ALL_SECRETS = "secrets"  # a detector that means all of these
SECRETS = ("api-keys", "private-keys", "json-web-tokens", "url-passwords", "authorization")
DETECTORS = (ALL_SECRETS, *SECRETS, "email")
NAME = r"[A-Za-z0-9_.-]{1,40}"  # of what is replaced: it stands in the mark


class Pattern(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A regular expression of Python's; where it has a group named `secret`, that alone is replaced.

    `replacement` is a plain text; None = `[redacted:NAME]`.
    """

    pattern: str
    name: str = "pattern"
    replacement: str | None = None


class RedactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[redaction]`. `detectors`: known shapes; `secrets` means all of them but e-mail addresses.

    `environment`: the values of this process's variables whose names say that they are secret.
    """

    patterns: tuple[str | Pattern, ...] = ()
    detectors: tuple[str, ...] = ()
    environment: bool = False

    @property
    def is_on(self) -> bool:
        return bool(self.patterns or self.detectors or self.environment)

    @property
    def rules(self) -> tuple[Pattern, ...]:
        """The patterns, each with its name."""
        return tuple(one if isinstance(one, Pattern) else Pattern(pattern=one) for one in self.patterns)

    @property
    def detected(self) -> frozenset[str]:
        """The detectors one by one."""
        return frozenset(self.detectors) - {ALL_SECRETS} | frozenset(SECRETS if ALL_SECRETS in self.detectors else ())


def check_redaction(settings: RedactionSettings, where: str) -> RedactionSettings:
    """The settings. Raises ConfigError that names the pattern that cannot be looked for, and says why."""
    for name in settings.detectors:
        if name not in DETECTORS:
            raise ConfigError("redaction.detectors", f"{name!r} is none; there are {', '.join(DETECTORS)} ({where})")
    for number, rule in enumerate(settings.rules, 1):
        key = f"redaction.patterns, number {number}"
        if re.fullmatch(NAME, rule.name) is None:
            raise ConfigError(key, f"the name {rule.name!r} must be at most 40 letters, digits, _, . or - ({where})")
        try:
            empty = re.compile(rule.pattern).search("")
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(key, f"{rule.pattern!r} is no regular expression: {error} ({where})") from None
        if empty is not None:
            raise ConfigError(key, f"{rule.pattern!r} also fits a text without anything in it ({where})")
    return settings
