"""Permissions: what a session's commands may do: as it is set, what follows for one of them, how it then runs."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from refold.core.items import Item

SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
ApprovalPolicy = Literal["never", "on-request", "untrusted", "on-failure"]
Reviewer = Literal["user", "auto_review"]  # who answers; auto_review: a program of the host's, in the user's place


class WorkspaceWrite(msgspec.Struct, frozen=True, kw_only=True):
    """`[sandbox_workspace_write]`: what `workspace-write` permits besides writing in the workspace."""

    writable_roots: tuple[str, ...] = ()  # more folders, absolute, or `~` and what follows
    network_access: bool = False
    exclude_slash_tmp: bool = False  # /tmp is writable unless this is set
    exclude_tmpdir_env_var: bool = False  # and so is $TMPDIR

    def __post_init__(self) -> None:
        for root in self.writable_roots:
            if not root.startswith(("/", "~")):
                raise ValueError(f"writable_roots must be absolute folders, not {root!r}")


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
    guarded: tuple[str, ...] = ()  # folders and files, absolute, that stay read-only even inside `writable`


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


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a host is asked: may this call run? `command` is set when it is a shell command.

    `remember`: the words that the host may allow for good (`Verdict(True, remember=True)`); empty when none can be.
    """

    call: Item
    command: CommandAsked | None = None
    why: str = ""  # why it is asked, for a person
    remember: tuple[str, ...] = ()


class Verdict(msgspec.Struct, frozen=True):
    """A host's answer. `remember`: and from now on what the question's words stand for.

    `word`: what the model is told beside a no.
    """

    allowed: bool
    remember: bool = False
    word: str = ""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What is set, and what is so: in a session, when a command is asked for."""

    mode: SandboxMode
    policy: ApprovalPolicy
    fault: str = ""  # why no sandbox can be built here; empty when one can
    host: bool = False  # somebody can be asked


# --- what follows for a command ------------------------------------------------------------------------------


class Run(msgspec.Struct, frozen=True):
    """It runs at once. `outside`: without a sandbox."""

    outside: bool


class Ask(msgspec.Struct, frozen=True):
    """Somebody is asked first; `why` tells a person the reason and where it would run."""

    why: str
    outside: bool


class Refuse(msgspec.Struct, frozen=True):
    """It does not run; `text` tells the model why and what it can do."""

    text: str


Decision: TypeAlias = Run | Ask | Refuse

FREE = "danger-full-access"
NOT_OUTSIDE = (
    "This command was not run: it asks to run outside the sandbox, and nobody is asked in this session "
    "(approval policy never). Run it inside the sandbox, or reach the goal without it and say so at the end."
)
NO_SANDBOX = (
    "This command was not run: {mode} needs a sandbox, and none can be built here: {fault}. No command can run in this "
    "session. Tell the user: install bubblewrap, or set sandbox_mode to danger-full-access, or approval_policy to "
    "on-request and be there to answer."
)
NOBODY = (
    "This command was not run: it needs the user's approval, and nobody can be asked here. "
    "Reach the goal within what is permitted, and say so at the end if that was not possible."
)


def runs_outside(asked: CommandAsked, rules: Rules) -> bool:
    """Whether a command would run without a sandbox, if it may run."""
    return rules.mode == FREE or asked.outside or bool(rules.fault)


def decide(asked: CommandAsked, rules: Rules, *, harmless: bool, approved: bool) -> Decision:
    """Whether a command runs.

    `harmless`: it is known to do no more than read. `approved`: somebody allowed it for good, for where it would run.
    """
    outside = runs_outside(asked, rules)
    kept_in = rules.mode == FREE or not outside  # it stays within what the mode permits
    if rules.policy == "never":
        if kept_in:
            return Run(outside)
        return Refuse(NO_SANDBOX.format(mode=rules.mode, fault=rules.fault) if rules.fault else NOT_OUTSIDE)
    leaves = asked.outside and rules.mode != FREE and not rules.fault
    if approved or (harmless and not leaves) or (kept_in and rules.policy != "untrusted"):
        return Run(outside)
    return Ask(_why(asked, rules, leaves), outside) if rules.host else Refuse(NOBODY)


def _why(asked: CommandAsked, rules: Rules, leaves: bool) -> str:
    if leaves:
        return "it asks to run outside the sandbox: with your rights, on every file and over the network"
    if rules.mode == FREE:
        return "it may change something, and would run with your rights: there is no sandbox"
    if rules.fault:
        return f"it would run without a sandbox, with your rights: {rules.fault}"
    return f"it may change something; it would run inside the sandbox ({rules.mode})"
