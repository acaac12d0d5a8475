"""Permits: whether a call may run, and inside which walls: the policy first, then the host.

Rule 1: what may run is decided by `core/permissions.py`; here is found out what it has to know, and somebody asked.
Rule 2: no answer is a no: a question that fails refuses the call, and the turn goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from refold.core.items import Item
from refold.core.jsonio import is_object
from refold.core.permissions import (
    FREE,
    NOBODY,
    ApprovalPolicy,
    Ask,
    CommandAsked,
    Confinement,
    Decision,
    Question,
    Refuse,
    Rules,
    Run,
    Sandbox,
    SandboxMode,
    Verdict,
    decide,
    runs_outside,
)
from refold.session.events import Notice
from refold.session.home import Home
from refold.session.interrupted import is_interrupted
from refold.tools import Tool, ToolResult

if TYPE_CHECKING:  # the rest is looked up when a command has to be decided on
    from refold.session.approved import Approval, Place
    from refold.session.scope import Scope

DENIED = "The user did not allow this command to run."
NO_OTHER_WAY = "Do not reach the same effect by another route."


Approve: TypeAlias = Callable[[Question], Awaitable[bool | Verdict]]


class CommandTool(Protocol):
    """A tool that runs shell commands: it tells which one a call asks for."""

    def asks(self, arguments: dict[str, Any], cwd: str) -> CommandAsked: ...


async def permit(scope: Scope, tool: Tool | None, call: Item) -> Confinement | ToolResult:
    """How a call may run, or the output that tells the model why it may not. Raises ToolFailed for wrong arguments."""
    if tool is not None and hasattr(tool, "asks"):
        return await _permit_command(scope, cast(CommandTool, tool), call)
    if tool is None or not tool.needs_approval or scope.surroundings.approval_policy == "never":
        return Confinement()
    if scope.approve is None:
        return ToolResult(output=NOBODY, success=False)
    async with scope.asking:
        verdict = await _answer(scope, Question(call=call, why="it is a tool that asks before each call"))
    return Confinement() if verdict.allowed else _denied(DENIED, verdict)


# --- commands ------------------------------------------------------------------------------------------------


async def _permit_command(scope: Scope, tool: CommandTool, call: Item) -> Confinement | ToolResult:
    rules, walls = _rules(scope), _walls(scope)
    arguments = _arguments(call)
    if arguments is None:  # the toolbox will say so: nothing is going to run
        return Confinement(sandbox=walls)
    asked = tool.asks(arguments, scope.surroundings.cwd)
    decision, offer = await _decided(scope, asked, rules)
    if isinstance(decision, Ask):
        async with scope.asking:
            decision, offer = await _decided(scope, asked, rules)  # an answer meanwhile may have covered it
            if isinstance(decision, Ask):
                words = offer.words if offer else ()
                question = Question(call=call, command=asked, why=decision.why, remember=words)
                verdict = await _answer(scope, question)
                if not verdict.allowed:
                    return _denied(f"{DENIED} {NO_OTHER_WAY}", verdict)
                if verdict.remember and offer is not None:
                    _remember(scope, offer)
                decision = Run(decision.outside)
    if isinstance(decision, Refuse):
        return ToolResult(output=decision.text, success=False)
    settings = scope.memory.config
    return Confinement(
        sandbox=None if decision.outside else walls,
        environment=settings.shell_environment_policy,
        secrets=_secrets(scope),
    )


async def _decided(scope: Scope, asked: CommandAsked, rules: Rules) -> tuple[Decision, Approval | None]:
    """What follows for a command, and what a person could allow for good. Looks no further than it has to."""
    decision = decide(asked, rules, harmless=False, approved=False)
    if isinstance(decision, Run) or rules.policy == "never":
        return decision, None
    from refold.session.approved import covers, is_harmless, offered, plain_parts

    parts = plain_parts(asked)
    if parts is None:
        return decision, None
    place = await _place(scope, asked, rules)
    outside = runs_outside(asked, rules)
    approvals = _approvals(scope)
    decision = decide(
        asked,
        rules,
        harmless=is_harmless(parts, place),
        approved=covers(approvals or (), asked, parts, place, outside=outside),
    )
    return decision, None if approvals is None else offered(asked, parts, place, outside=outside)


async def _answer(scope: Scope, question: Question) -> Verdict:
    """Ask the host. The caller sees to it that one question is asked at a time."""
    assert scope.approve is not None
    try:
        answer = await scope.approve(question)
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and is_interrupted():
            raise
        why = str(error) or type(error).__name__
        scope.memory.feed.publish(Notice(f"nobody could be asked about {question.call.get('name')}: {why}"))
        return Verdict(False)
    return answer if isinstance(answer, Verdict) else Verdict(answer is True)  # a host's "no" is no yes


def _denied(text: str, verdict: Verdict) -> ToolResult:
    word = verdict.word.strip()
    return ToolResult(output=f"{text} The user says: {word}" if word else text, success=False)


# --- what is so ----------------------------------------------------------------------------------------------


def _arguments(call: Item) -> dict[str, Any] | None:
    """A call's arguments as the toolbox will read them; None when they are no JSON object."""
    given = call.get("arguments")
    try:
        value: Any = given if is_object(given) else json.loads(given if isinstance(given, str) else "")
    except (ValueError, RecursionError):
        return None
    return value if is_object(value) else None


def _rules(scope: Scope) -> Rules:
    from refold.tools.sandbox import sandbox_fault

    mode = cast(SandboxMode, scope.surroundings.sandbox_mode)
    return Rules(
        mode=mode,
        policy=cast(ApprovalPolicy, scope.surroundings.approval_policy),
        fault="" if mode == FREE else sandbox_fault(),
        host=scope.approve is not None,
    )


def _walls(scope: Scope, mode: SandboxMode | None = None) -> Sandbox | None:
    asked = mode or cast(SandboxMode, scope.surroundings.sandbox_mode)
    if asked == FREE:
        return None
    from refold.tools.sandbox import sandbox_of

    home = _home(scope)
    homes = (home.path, home.codex) if home.codex else (home.path,)
    return sandbox_of(asked, scope.memory.config.sandbox_workspace_write, scope.surroundings.cwd, os.environ, homes)


async def _place(scope: Scope, asked: CommandAsked, rules: Rules) -> Place:
    from refold.session.approved import Place
    from refold.tools.child_environment import search_path
    from refold.tools.commands import PLAIN_OUTPUT

    policy, cwd = scope.memory.config.shell_environment_policy, scope.surroundings.cwd
    inherited = {**os.environ, **PLAIN_OUTPUT}  # as a command's shell is started with
    writable = _walls(scope, "workspace-write")  # in any mode: what a command could have written
    return Place(
        workspace=cwd,
        search_path=await search_path(policy, _secrets(scope), asked.shell, cwd, inherited, scope.processes.logins),
        writable=writable.writable if writable else (),
        leaving=asked.outside and rules.mode != FREE and not rules.fault,
    )


def _secrets(scope: Scope) -> tuple[str, ...]:
    """The names of variables that hold the keys of providers, tool servers and the gateway's upstream."""
    providers = (scope.model.provider, *scope.memory.config.model_providers.values())
    names = [name for provider in providers for name in (provider.env_key, *provider.env_http_headers.values())]
    serve = scope.memory.config.serve
    names += [serve.key_env, *(serve.env_http_headers or {}).values()]
    for server in scope.memory.config.mcp_servers.values():
        names += [server.bearer_token_env_var, *server.env_http_headers.values()]
    return tuple(dict.fromkeys(name for name in names if name))


def _approvals(scope: Scope) -> tuple[Approval, ...] | None:
    """What was allowed for good; None when that cannot be read, and nothing can be added."""
    from refold.session.approved import Damaged, read_approvals

    try:
        return read_approvals(_home(scope).path)
    except Damaged as damaged:
        scope.memory.feed.publish(Notice(str(damaged)))
        return None


def _remember(scope: Scope, approval: Approval) -> None:
    from refold.session.approved import Damaged, remember

    try:
        remember(_home(scope).path, approval)
    except (Damaged, OSError) as error:
        scope.memory.feed.publish(Notice(f"allowed this once, not remembered: {error}"))


def _home(scope: Scope) -> Home:
    return Home.find({**os.environ, "REFOLD_HOME": scope.surroundings.home or ""})
