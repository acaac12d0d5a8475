"""`refold serve`: a process that says where it listens, answers, and ends in order."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from refold.testing import ResponsesServer, text_reply


def environ(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    return {**kept, "REFOLD_HOME": str(home), "HOME": str(home), **more}


@contextmanager
def served(home: Path, *options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its base URL and what it said."""
    command = [sys.executable, "-m", "refold", "serve", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ(home, **variables)
    )
    try:
        assert process.stdout is not None
        said = "".join(process.stdout.readline() for _ in range(6))
        found = re.search(r"listens at (\S+) ", said)
        assert found, said + (process.stderr.read() if process.stderr else "")
        yield process, found[1], said
    finally:
        process.kill()
        process.wait(10)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def ready(url: str) -> None:
    end = time.monotonic() + 20
    while True:
        with suppress(httpx2.RequestError):
            if httpx2.get(url.removesuffix("/v1") + "/healthz", timeout=2, trust_env=False).status_code == 200:
                return
        assert time.monotonic() < end, f"{url} does not answer"
        time.sleep(0.05)


def test_gateway_answers_and_ends_when_its_answers_have_ended(tmp_path: Path) -> None:
    with ResponsesServer([text_reply("one two three", pace=0.15)]) as upstream:
        with served(
            tmp_path, "--upstream", upstream.url, "--port", "0", "--key-env", "UP", UP="sk-secret-secret"
        ) as told:
            process, url, said = told
            ready(url)
            assert "sk-secret" not in said and "its key: UP" in said and str(tmp_path) in said
            body = {"model": "m", "input": "hi", "stream": True}
            with httpx2.stream("POST", f"{url}/responses", json=body, timeout=20, trust_env=False) as response:
                lines = response.iter_lines()
                assert "response.created" in next(lines)
                process.send_signal(signal.SIGTERM)
                assert any("response.completed" in line for line in lines)
            assert process.wait(10) in (0, -signal.SIGTERM)
            assert process.stderr is not None and "sk-secret" not in process.stderr.read()
        assert upstream.requests[0].header("authorization") == "Bearer sk-secret-secret"
    assert (tmp_path / "gateway" / "keys").exists() and (tmp_path / "gateway" / "responses.sqlite").exists()


def test_workers_share_port_keys_and_store(tmp_path: Path) -> None:
    with ResponsesServer(lambda _: text_reply("hi")) as upstream:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with served(tmp_path, "--upstream", upstream.url, "--port", str(port), "--workers", "2") as (process, url, _):
            ready(url)
            previous = None
            for number in range(6):  # a new connection each time: another worker may take it
                body = {"model": "m", "input": str(number), "previous_response_id": previous}
                answer = httpx2.post(f"{url}/responses", json=body, timeout=20, trust_env=False)
                assert answer.status_code == 200, answer.text
                previous = answer.json()["id"]
            assert len(upstream.requests[-1].input) == 11
            process.send_signal(signal.SIGTERM)
            process.wait(20)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--upstream", "nowhere"], "must begin with http"),
        (["--upstream", "http://localhost:1/v1", "--host", "0.0.0.0"], "REFOLD_GATEWAY_TOKENS"),
        (["--upstream", "http://localhost:1/v1", "--key-env", "NOT_THERE"], "NOT_THERE: is not set"),
        (["--upstream", "http://localhost:1/v1", "--keys", "/nowhere/keys"], "/nowhere/keys: cannot be read"),
        (["--upstream", "http://localhost:1/v1", "--model-map", "x"], "ASKED=GIVEN"),
        ([], "--upstream"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(tmp_path: Path, options: list[str], said: str) -> None:
    command = [sys.executable, "-m", "refold", "serve", *options]
    ended = subprocess.run(command, capture_output=True, text=True, env=environ(tmp_path), timeout=30)
    assert ended.returncode == 2 and said in ended.stderr and "Traceback" not in ended.stderr


def test_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with ResponsesServer([]) as taken:
        command = [sys.executable, "-m", "refold", "serve", "--upstream", taken.url, "--port", str(taken.port)]
        ended = subprocess.run(command, capture_output=True, text=True, env=environ(tmp_path), timeout=30)
    assert ended.returncode == 2 and str(taken.port) in ended.stderr and "--port" in ended.stderr
