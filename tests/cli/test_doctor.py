"""doctor: a real process against the scripted provider, for people and for programs."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from refold.cli.doctor import snippet
from refold.core.config import parse_config
from refold.core.profile import Profile, Provider
from refold.model.probe import Examination
from refold.testing import LoggedRequest, Reply, ResponsesServer, call_reply, text_reply

MODEL = "mock-tokens"  # of the machine's catalogue
PLAIN = Reply(status=426, body={"error": {"message": "no upgrade here"}})


def good(request: LoggedRequest) -> Reply:
    if request.json.get("tools") and b"function_call_output" not in request.body:
        return call_reply("note", {"word": "yes"})
    return text_reply("birch")


def no_developer(request: LoggedRequest) -> Reply:
    if any(item.get("role") == "developer" for item in request.input):
        return Reply(status=400, body={"error": {"message": "Unexpected message role"}})
    return good(request)


def server_of(script: Any) -> ResponsesServer:
    return ResponsesServer(script, handshakes=lambda _: PLAIN)


def parsed(text: str) -> Any:
    return parse_config(tomllib.loads(text), "the snippet")


# --- a provider ------------------------------------------------------------------------------------------------


def test_findings_and_the_settings_that_fit_are_printed(machine):
    with server_of(no_developer) as server:
        machine.connect(server)
        ended = machine.refold("doctor", "--provider")
    assert (ended.status, ended.err) == (0, "")
    head, *lines = ended.out.splitlines()
    assert head == f"x (scripted) at {server.url}, model {MODEL}"
    assert "  ok       reachable" in lines
    assert "  no       developer         400 Bad Request: Unexpected message role" in lines
    assert '  ok       tools             called with {"word": "yes"}' in lines
    assert "7 requests, 600 input and 60 output tokens" in lines  # the refusal cost nothing
    found = ended.out[ended.out.index("[model_providers.x]") :]
    provider = parsed(found).model_providers["x"]
    assert (provider.base_url, provider.developer_role) == (server.url, "system")
    assert "\x1b" not in ended.out


def test_nothing_to_set_is_said(machine):
    with server_of(good) as server:
        machine.connect(server)
        ended = machine.refold("doctor", "--provider")
    assert ended.status == 0
    assert ended.out.splitlines()[-1] == "The defaults fit; there is nothing to set."


def test_program_gets_one_object(machine):
    with server_of(no_developer) as server:
        machine.connect(server)
        ended = machine.refold("doctor", "--provider", "--json")
    assert (ended.status, ended.err) == (0, "")
    [told] = ended.events
    assert told["provider"] == {"id": "x", "name": "scripted", "base_url": server.url}
    assert (told["model"], told["works"], told["requests"], told["model_context_window"]) == (MODEL, True, 7, None)
    assert {"name": "reachable", "verdict": "ok", "detail": ""} in told["findings"]
    assert told["settings"] == {"developer_role": "system"}
    assert told["usage"] == {"input_tokens": 600, "cached_input_tokens": 0, "output_tokens": 60}
    assert parsed(told["toml"]).model_providers["x"].developer_role == "system"


def test_options_choose_provider_model_and_settings(machine):
    with server_of(good) as server, server_of(good) as other:
        machine.connect(server)
        words = ("--provider", "y", "-m", "other", "-c", f'model_providers.y.base_url="{other.url}"', "--json")
        ended = machine.refold("doctor", *words)
    [told] = ended.events
    assert (ended.status, told["provider"]["id"], told["model"]) == (0, "y", "other")
    assert not server.requests
    assert {request.json["model"] for request in other.requests if request.method == "POST"} == {"other"}


def test_overflow_is_sent_only_when_asked_for(machine):
    def script(request: LoggedRequest) -> Reply:
        if len(request.body) > 100_000:
            return Reply(status=400, body={"error": {"message": "maximum context length is 9,000 tokens"}})
        return good(request)

    with server_of(script) as server:
        machine.connect(server, "model_context_window = 30000")
        assert machine.refold("doctor", "--provider").status == 0
        assert max(len(request.body) for request in server.requests) < 3_000
        ended = machine.refold("doctor", "--provider", "--overflow")
    assert f"model_context_window = 9000  # {MODEL}" in ended.out.splitlines()


# --- what does not work --------------------------------------------------------------------------------------------


def test_refused_key_is_exit_code_one(machine):
    refusal = Reply(status=401, body={"error": {"message": "Incorrect API key: sk-wrong"}})
    with server_of(lambda _: refusal) as server:
        machine.connect(server)
        ended = machine.refold("doctor", "--provider", "-c", "model_providers.x.env_key=THE_KEY", THE_KEY="sk-wrong")
    assert ended.status == 1 and "Traceback" not in ended.err
    assert "check the API key in THE_KEY" in ended.out and "sk-wrong" not in ended.out + ended.err
    assert ended.out.splitlines()[-1] == "A turn does not work with this provider and model."


def test_nobody_listens(machine):
    machine.connect(server := server_of(good).start())
    server.stop()
    ended = machine.refold("doctor", "--provider", "--json")
    [told] = ended.events
    assert (ended.status, told["works"]) == (1, False)
    [finding] = told["findings"]
    assert (finding["name"], finding["verdict"]) == ("reachable", "no")


def test_missing_key_and_unknown_provider_are_told_in_one_line(here):
    ended = here("doctor", "--provider")
    assert ended.status == 2 and "OPENAI_API_KEY: is not set" in ended.only_complaint
    ended = here("doctor", "--provider", "nobody")
    assert ended.status == 2 and "no [model_providers.nobody] is defined" in ended.only_complaint
    assert here("doctor", "--provider", "--timeout", "0").status == 2


# --- without a provider --------------------------------------------------------------------------------------------


def test_what_can_be_examined_is_said(here):
    ended = here("doctor")
    assert (ended.status, ended.err) == (0, "")
    assert "--provider [NAME]" in ended.out and "openai" in ended.out
    told = json.loads(here("doctor", "--json").out)
    assert list(told["examinable"]) == ["ID|PATH", "--provider [NAME]"]
    assert (told["providers"], told["configured"]) == (["openai"], "openai")


# --- the snippet -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "with space", 'quo"ted', "dot.ted", "größe", "back\\slash\x7f"])
def test_snippet_is_toml_for_any_name(name: str):
    provider = Provider(id=name, name=name, base_url="http://127.0.0.1:1/v1", env_key="THE_KEY")
    examination = Examination(Profile(slug='m"\n'), provider)
    examination.settings.update(developer_role="user", send_item_ids=False, leave_out=("include",))
    examination.window = 8_192
    config = parsed(snippet(examination))
    found = config.model_providers[name]
    assert config.model_context_window == 8_192
    assert (found.name, found.env_key, found.base_url) == (name, "THE_KEY", provider.base_url)
    assert (found.developer_role, found.send_item_ids, found.leave_out) == ("user", False, ("include",))


def test_snippet_names_what_may_be_secret_and_does_not_print_it():
    headers = {"x-key": "sk-secret"}
    provider = Provider(id="x", name="x", base_url="http://127.0.0.1:1/v1", http_headers=headers, query_params=headers)
    examination = Examination(Profile(slug="m"), provider)
    examination.settings["developer_role"] = "system"
    text = snippet(examination)
    assert "sk-secret" not in text and "# and query_params, http_headers as they are" in text
