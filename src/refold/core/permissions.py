"""Permissions: what a session's commands may do, as it is set and as it is handed to whoever runs them."""

from __future__ import annotations

from typing import Literal

import msgspec

SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
ApprovalPolicy = Literal["never", "on-request", "untrusted", "on-failure"]


class WorkspaceWrite(msgspec.Struct, frozen=True, kw_only=True):
    """`[sandbox_workspace_write]`: what `workspace-write` permits besides writing in the workspace."""

    writable_roots: tuple[str, ...] = ()  # more folders, absolute
    network_access: bool = False
    exclude_slash_tmp: bool = False  # /tmp is writable unless this is set
    exclude_tmpdir_env_var: bool = False  # and so is $TMPDIR


class EnvironmentPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`[shell_environment_policy]`: which variables a command inherits. Patterns are `*` and `?`, in any case."""

    inherit: Literal["all", "core", "none"] = "all"
    ignore_default_excludes: bool = False  # true: names with KEY, TOKEN or SECRET in them are inherited, too
    exclude: tuple[str, ...] = ()
    set: dict[str, str] = {}
    include_only: tuple[str, ...] = ()


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """Walls around one command: everything can be read but `hidden`, only `writable` can be written."""

    writable: tuple[str, ...] = ()  # folders, absolute; none for `read-only`
    network: bool = False
    hidden: tuple[str, ...] = ()  # files that hold keys, absolute


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    """How a command runs: inside which walls (None: with the user's own rights), with which environment."""

    sandbox: Sandbox | None = None
    environment: EnvironmentPolicy = EnvironmentPolicy()
    secrets: tuple[str, ...] = ()  # names of variables that hold refold's own keys: never inherited


class CommandAsked(msgspec.Struct, frozen=True, kw_only=True):
    """A command that a call wants to run, for whoever decides whether it may."""

    command: str  # shell text
    cwd: str  # absolute path
    outside: bool = False  # the model asks to run it outside the sandbox
    reason: str = ""  # why, in the model's words
    interactive: bool = False  # more can be typed into it later
    shell: str = "bash"
