"""`[hooks]` is checked when it is read: a guard that is misspelt must not look like one that permits."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from refold.core.config import parse_config
from refold.core.hook_settings import HookCommand, HookSettings
from refold.errors import ConfigError

GOOD = {"command": "true"}


def read(text: str) -> HookSettings:
    return parse_config(tomllib.loads(text), "config.toml").hooks


def test_each_event_has_its_commands_in_order() -> None:
    hooks = read(
        """
        [[hooks.PreToolUse]]
        matcher = "exec_command"
        command = "guard"
        timeout = 5

        [[hooks.PreToolUse]]
        command = "log"

        [[hooks.Stop]]
        command = "notify"
        """
    )
    guard = HookCommand(command="guard", matcher="exec_command", timeout=5)
    assert hooks.pre_tool_use == (guard, HookCommand(command="log"))
    assert hooks.pre_tool_use[1].timeout == 60
    assert hooks.stop == (HookCommand(command="notify"),)
    assert (hooks.post_tool_use, hooks.user_prompt_submit) == ((), ())
    assert hooks and not read("")


def test_the_groups_of_other_programs_are_read_too() -> None:
    hooks = read(
        """
        [[hooks.PostToolUse]]
        matcher = "^exec_command$"
        [[hooks.PostToolUse.hooks]]
        type = "command"
        command = "one"
        statusMessage = "Looking"
        [[hooks.PostToolUse.hooks]]
        type = "command"
        command = "two"
        timeout = 30

        [[hooks.SessionStart]]
        [[hooks.SessionStart.hooks]]
        type = "command"
        command = "not for here"
        """
    )
    matcher = "^exec_command$"
    assert hooks.post_tool_use == (
        HookCommand(command="one", matcher=matcher),
        HookCommand(command="two", matcher=matcher, timeout=30),
    )
    assert hooks.post_tool_use[0].concerns("exec_command")
    assert not hooks.post_tool_use[0].concerns("exec_command_too")


@pytest.mark.parametrize(
    ("hooks", "key", "why"),
    [
        ({"PreToolsUse": [GOOD]}, "hooks.PreToolsUse", "did you mean PreToolUse?"),
        ({"pre_tool_use": [GOOD]}, "hooks.pre_tool_use", "did you mean PreToolUse?"),
        ({"posttooluse": [GOOD]}, "hooks.posttooluse", "did you mean PostToolUse?"),
        ({"UserPrompt": [GOOD]}, "hooks.UserPrompt", "did you mean UserPromptSubmit?"),
        ({"stopp": [GOOD]}, "hooks.stopp", "did you mean Stop?"),
        ({"Whatever": [GOOD]}, "hooks.Whatever", "known: PreToolUse, PostToolUse, UserPromptSubmit, Stop"),
        ({"Stop": [{"comand": "x"}]}, "hooks.Stop.comand", "did you mean command?"),
        ({"Stop": [{**GOOD, "time_out": 3}]}, "hooks.Stop.time_out", "did you mean timeout?"),
        ({"Stop": [{**GOOD, "match": "x"}]}, "hooks.Stop.match", "did you mean matcher?"),
        ({"Stop": [{**GOOD, "only": "x"}]}, "hooks.Stop.only", "known: matcher, command, timeout"),
        ({"Stop": [{"hooks": [{**GOOD, "matcher": "x"}]}]}, "hooks.Stop.hooks.matcher", "known: command"),
        ({"Stop": [{"hooks": [GOOD], "command": "x"}]}, "hooks.Stop.command", "stands beside `hooks`"),
        ({"Stop": [{}]}, "hooks.Stop.command", "must be the shell text to run"),
        ({"Stop": [{"command": ["a", "b"]}]}, "hooks.Stop.command", "must be the shell text to run"),
        ({"Stop": [{"command": " "}]}, "hooks.Stop.command", "must be the shell text to run"),
        ({"Stop": [{**GOOD, "type": "prompt"}]}, "hooks.Stop.type", 'must be "command"'),
        ({"Stop": [{**GOOD, "timeout": 0}]}, "hooks.Stop.timeout", "must be seconds above 0, not 0"),
        ({"Stop": [{**GOOD, "timeout": float("nan")}]}, "hooks.Stop.timeout", "must be seconds above 0"),
        ({"Stop": [{**GOOD, "timeout": True}]}, "hooks.Stop.timeout", "must be seconds above 0, not True"),
        ({"Stop": [{**GOOD, "timeout": "5"}]}, "hooks.Stop.timeout", "must be seconds above 0, not '5'"),
        ({"Stop": [{**GOOD, "matcher": "("}]}, "hooks.Stop.matcher", "is no regular expression"),
        ({"Stop": [{**GOOD, "matcher": 5}]}, "hooks.Stop.matcher", "must be a regular expression in quotes"),
        ({"Stop": GOOD}, "hooks.Stop", "must be a list of tables: [[hooks.Stop]]"),
        ({"Stop": ["true"]}, "hooks.Stop", "must be a list of tables: [[hooks.Stop]]"),
        ("true", "hooks", "must be tables like [[hooks.PreToolUse]]"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(hooks: Any, key: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"hooks": hooks}, "config.toml")
    assert caught.value.key == key
    assert why in caught.value.why
    assert "(config.toml)" in caught.value.why


def test_a_command_concerns_every_tool_unless_it_says_which() -> None:
    for matcher in (None, "", "*", ".*"):
        assert HookCommand(command="x", matcher=matcher).concerns("anything")
    assert HookCommand(command="x", matcher="a|b").concerns("b")
    assert not HookCommand(command="x", matcher="a|b").concerns("ab")
