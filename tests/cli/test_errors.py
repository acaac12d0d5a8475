"""Bad input: one clear line on standard error; 2 for a wrong call or setting, 1 for a run that failed; nothing half."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from refold.testing import Reply, ResponsesServer, text_reply

DATA = Path(__file__).parents[1] / "data"
PROVIDER = 'model_provider = "x"\n[model_providers.x]\nbase_url = "http://127.0.0.1:9/v1"\n'


def refused(machine: Any, *words: Any, status: int = 2, **options: Any) -> str:
    """The only line of a command that began nothing."""
    ended = machine.refold(*words, **options)
    assert (ended.status, ended.out) == (status, "")
    assert machine.rollouts() == []
    return ended.only_complaint


# --- how it was called ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu", "hi"], "there is no command 'rnu'; refold --help lists them"),
        (["run", "--nope", "hi"], "No such option"),
        (["run"], "Missing argument 'MESSAGE'"),
        (["run", "hi", "there"], "unexpected extra argument (there)"),
        (["run", " \n "], "the message is empty"),
        (["resume"], "which session? give an ID, a PATH, or --last"),
        (["resume", "--last", "one", "two"], "--last names the session: only a message can follow"),
        (["show"], "Missing argument 'ID|PATH'"),
        (["show", "x", "--record", "first"], "'first' is not a valid integer"),
        (["run", "hi", "--cd", "/nowhere/at/all"], "--cd: /nowhere/at/all is not a folder"),
        (["run", "hi", "-c", "model"], "model: must be key=value"),
    ],
)
def test_wrong_call_is_one_line(here, words, said):
    ended = here(*words)
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.only_complaint


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"", "the message is empty"),
        (b" \n", "the message is empty"),
        (b"caf\xe9 !", "the message is not UTF-8 text: "),
    ],
)
def test_message_without_text_is_one_line(machine, said, complaint):
    machine.configure(PROVIDER)
    assert complaint in refused(machine, "run", "-", said=said)


def test_closed_standard_input_is_an_empty_message(machine):
    machine.configure(PROVIDER)
    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&-', "sh", *machine.command("run", "-")],
        env=machine.environ,
        cwd=machine.work,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "the message is empty" in process.stderr.read()
    assert process.returncode == 2


def test_foreign_session_without_a_message_makes_no_child(machine):
    machine.configure(PROVIDER)
    path = DATA / "cases" / "S26-fork-identity" / "parent.jsonl"
    assert "the message is empty" in refused(machine, "resume", path, "--cd", ".")


# --- what was set -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('modle = "gpt-5.5"', "modle: is not a setting; did you mean model?"),
        ('model_context_window = "big"', "model_context_window: expected "),
        ("model_context_window = -5", "model_context_window: must be above 0, not -5"),
        ("model = 5", "model: expected "),
        ('model = "gpt', "is not TOML: "),
        ('sandbox_mode = "none"', "sandbox_mode: "),
        ('approval_policy = "always"', "approval_policy: "),
        ("sandbox_workspace_write = true", "sandbox_workspace_write: must be a table"),
        ('[sandbox_workspace_write]\nwritable_roots = ["here"]', "writable_roots must be absolute folders, not 'here'"),
        ('[shell_environment_policy]\ninherit = "some"', "shell_environment_policy: "),
        ('model_provider = "y"', "model_provider: no [model_providers.y] is defined"),
        ('[model_providers.x]\nname = "x"', "model_providers.x.base_url: is missing"),
        ('[model_providers.x]\nbase_url = "u"\nenv_kye = "K"', "model_providers.x.env_kye: is not a setting"),
        ("model_providers = 3", "model_providers: "),
        ('model_catalog_json = "/nowhere.json"', "model_catalog_json: /nowhere.json cannot be read: No such file"),
        ('model_catalog_json = "/proc/self/cmdline"', "model_catalog_json: "),
    ],
)
def test_wrong_setting_is_one_line_that_names_it(here, tmp_path, config, said):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(config)
    ended = here("run", "hi")
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.only_complaint
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["config.toml"]


def test_settings_that_are_not_text_are_one_line(here, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_bytes(b'model = "caf\xe9"')
    ended = here("run", "hi")
    assert ended.status == 2 and "is not TOML" in ended.only_complaint


def test_keys_of_the_real_program_are_ignored(machine):
    with ResponsesServer(["ok"]) as server:
        machine.connect(
            server, 'personality = "x"\nweb_search = true\nnotify = ["a"]\nmodel_reasoning_summary = "auto"'
        )
        assert machine.refold("run", "hi").status == 0


def test_missing_key_names_the_variable(machine):
    assert "OPENAI_API_KEY" in refused(machine, "run", "hi")
    machine.configure(PROVIDER + 'env_key = "MY_KEY"')
    assert "MY_KEY" in refused(machine, "run", "hi")
    assert "MY_KEY" in refused(machine, "resume", DATA / "oracle" / "rollouts" / "a_one_turn.jsonl", "hi", "--cd", ".")


def test_home_that_is_a_file_is_one_line(machine):
    machine.home.write_text("")
    complaint = refused(machine, "run", "hi", OPENAI_API_KEY="k")
    assert "home/config.toml: cannot be read: Not a directory" in complaint


# --- which session ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["resume", "{}", "hi"], ["fork", "{}", "hi"], ["compact", "{}"]])
@pytest.mark.parametrize(
    ("reference", "status", "said"),
    [
        ("ffff", 2, "no session 'ffff' under "),
        ("{tmp}", 2, "is a folder, not a rollout file"),
        ("{tmp}/none.jsonl", 2, "no such file"),
        ("{tmp}/empty.jsonl", 2, "is empty: there is no session in it"),
        ("{tmp}/text.jsonl", 2, "is not a rollout: no session_meta line in it"),
        ("{tmp}/junk.jsonl", 2, "is not a rollout: no session_meta line in it"),
        ("{tmp}/cut.jsonl.zst", 2, "the compressed file ends in its middle"),
    ],
)
def test_session_that_is_none_is_one_line(here, tmp_path, command, reference, status, said):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(PROVIDER)
    files = {"empty": b"", "text": b"just\ntext\n", "junk": b"\x00\xff" * 99}
    for name, data in files.items():
        (tmp_path / f"{name}.jsonl").write_bytes(data)
    (tmp_path / "cut.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd\x04")
    ended = here(*[word.format(reference.format(tmp=tmp_path)) for word in command])
    assert (ended.status, ended.out) == (status, "")
    assert said in ended.only_complaint
    assert not (tmp_path / "home" / "sessions").exists()
    assert (tmp_path / "text.jsonl").read_bytes() == b"just\ntext\n"


def test_last_of_no_sessions_is_one_line(machine):
    machine.configure(PROVIDER)
    assert "there is no session under " in refused(machine, "resume", "--last", "hi")


# --- what failed while it ran -----------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_refused_connection_is_one_line_and_what_was_said_is_kept(machine):
    machine.configure(
        f'model_provider = "x"\n[model_providers.x]\nbase_url = "http://127.0.0.1:{free_port()}/v1"\n'
        "request_max_retries = 0\nstream_max_retries = 0\n"
    )
    ended = machine.refold("run", "remember me")
    assert (ended.status, ended.out) == (1, "")
    assert "127.0.0.1" in ended.complaint
    records = machine.records()
    assert any("remember me" in json.dumps(record) for record in records)
    assert records[-1]["payload"]["type"] == "task_complete" and records[-1]["payload"]["error"]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(status=401, body={"error": {"message": "wrong key"}}), "wrong key"),
        (Reply(status=400, body={"error": {"message": "two\nlines"}}), "two lines"),
        (Reply(fail={"code": "invalid_prompt", "message": "not like this"}), "not like this"),
        (Reply(incomplete="max_output_tokens"), "Incomplete response returned, reason: max_output_tokens"),
        (Reply(status=404, body=None), "404"),
    ],
)
def test_failed_run_is_one_line(machine, reply, said):
    with ResponsesServer([reply]) as server:
        machine.connect(server)
        ended = machine.refold("run", "hi")
    assert (ended.status, ended.out) == (1, "")
    assert said in ended.complaint
    assert machine.records()[-1]["payload"]["error"]["message"]


def test_disk_that_is_full_is_one_line_and_leaves_no_half_record(machine):
    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    with ResponsesServer([text_reply("x" * 100_000), "fine"]) as server:
        machine.connect(server)
        with machine.start("run", "hi", preexec_fn=small) as process:
            answer, told = process.communicate()
        complaints = [line for line in told.splitlines() if line.startswith("refold: ")]
        assert process.returncode == 1
        assert answer == "x" * 100_000 + "\n", "the answer is not lost with its record"
        assert len(complaints) == 1 and "records could not be written" in complaints[0]
        assert "File too large" in complaints[0] and "they are lost" in complaints[0]
        assert all(record["ordinal"] == number for number, record in enumerate(machine.records()))
        assert machine.refold("resume", "--last", "again").status == 0


def test_home_that_cannot_be_written_is_one_line(machine):
    machine.configure(PROVIDER)
    (machine.home / "sessions").write_text("in the way")
    ended = machine.refold("run", "hi")
    assert (ended.status, ended.out) == (1, "")
    assert "cannot be made: Not a directory" in ended.complaint
    assert (machine.home / "sessions").read_text() == "in the way"
