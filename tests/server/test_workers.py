"""Several workers: one store, one set of keys, one port; and they end together, in order."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from test_serve import ready, served

from refold.core.fragments import SUMMARY_MARK
from refold.testing import LoggedRequest, Reply, ResponsesServer, text_reply

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="workers are found in /proc")

USER = {"type": "message", "role": "user", "content": "hi"}
WORK = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I do."}]}
TRIGGER = {"type": "compaction_trigger"}


class Served(NamedTuple):
    """A gateway with workers: the parent, its URL, and the processes that answer."""

    process: subprocess.Popen[str]
    url: str
    workers: list[int]


def workers_of(parent: int) -> list[int]:
    """The processes below one that answer requests (spawn also starts one that looks after resources)."""
    below = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in below if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def runs(pid: int) -> bool:
    """Whether a process is there, and more than an entry that nobody has asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(is_so: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@contextmanager
def serving(home: Path, upstream: ResponsesServer, count: int) -> Iterator[Served]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with served(home, "--upstream", upstream.url, "--port", port, "--workers", str(count)) as (process, url, _):
        ready(url)
        if count > 1:
            until(lambda: len(workers_of(process.pid)) == count, "the workers did not start")
        yield Served(process, url, workers_of(process.pid) if count > 1 else [process.pid])


@contextmanager
def client_of(gateway: Served, worker: int) -> Iterator[httpx2.Client]:
    """A connection to one worker: the others sleep while it is made."""
    others = [pid for pid in gateway.workers if pid != worker]
    with httpx2.Client(trust_env=False, timeout=20, base_url=gateway.url) as http:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert http.get(gateway.url.removesuffix("/v1") + "/healthz").status_code == 200
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)
        yield http


def answered(http: httpx2.Client, **body: Any) -> dict[str, Any]:
    answer = http.post("/responses", json={"model": "m", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def counted(http: httpx2.Client) -> int:
    """How many requests this connection's worker has answered."""
    text = http.get(str(http.base_url).removesuffix("/").removesuffix("/v1") + "/metrics").text
    lines = [line for line in text.splitlines() if line.startswith('refold_gateway_requests_total{route="responses"')]
    return sum(int(line.rpartition(" ")[2]) for line in lines)


def test_what_one_worker_stored_and_sealed_the_other_knows(tmp_path: Path) -> None:
    def reply(request: LoggedRequest) -> Reply:
        return text_reply("THE SUMMARY" if b"CONTEXT CHECKPOINT" in request.body else "fine")

    with ResponsesServer(reply) as upstream, serving(tmp_path, upstream, 2) as gateway, ExitStack() as stack:
        one, other = (stack.enter_context(client_of(gateway, worker)) for worker in gateway.workers)
        first = answered(one, input="FIRST")
        assert other.get(f"/responses/{first['id']}").json() == first
        second = answered(other, input="SECOND", previous_response_id=first["id"])
        (item,) = answered(one, input=[TRIGGER], previous_response_id=second["id"])["output"]
        answered(other, input=[item, USER])
        last = upstream.requests[-1].body.decode()
        assert SUMMARY_MARK[:40] in last and "THE SUMMARY" in last
        assert ["FIRST" in request.body.decode() for request in upstream.requests] == [True, True, True, False]
        assert other.delete(f"/responses/{first['id']}").status_code == 200
        assert one.get(f"/responses/{first['id']}").status_code == 404
        assert (counted(one), counted(other)) == (2, 2), "two workers answered"


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_open_streams_end_and_no_process_is_left(tmp_path: Path, count: int, number: signal.Signals) -> None:
    said = text_reply("one two three four", pace=0.1)
    with ResponsesServer(lambda _: said) as upstream, serving(tmp_path, upstream, count) as gateway:
        with ExitStack() as stack:
            streams: list[Iterator[str]] = []
            for worker in gateway.workers:
                http = stack.enter_context(client_of(gateway, worker))
                body = {"model": "m", "input": "hi", "stream": True}
                answer = stack.enter_context(http.stream("POST", "/responses", json=body))
                streams.append(answer.iter_lines())
                assert "response.created" in next(streams[-1])
            gateway.process.send_signal(number)
            for lines in streams:
                assert "event: response.completed" in list(lines)
        # with one worker the signal ends the process at last, as it would have at once; a parent of several returns
        assert gateway.process.wait(20) in ((0, -number, 130) if count == 1 else (0,))
        assert not any(map(runs, gateway.workers))
        assert gateway.process.stderr is not None and "Traceback" not in gateway.process.stderr.read()
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(gateway.url, trust_env=False)


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with ResponsesServer([]) as upstream, serving(tmp_path, upstream, 2) as gateway:
        gateway.process.kill()
        until(lambda: not any(map(runs, gateway.workers)), "workers were left")


def test_worker_that_dies_is_replaced_and_what_it_stored_is_there(tmp_path: Path) -> None:
    with ResponsesServer(lambda _: text_reply("fine")) as upstream, serving(tmp_path, upstream, 2) as gateway:
        one, other = gateway.workers
        with client_of(gateway, one) as http:
            first = answered(http, input="hi")
        os.kill(one, signal.SIGKILL)
        until(lambda: {*workers_of(gateway.process.pid)} - {one, other}, "the worker was not replaced")
        (new,) = {*workers_of(gateway.process.pid)} - {other}
        with client_of(gateway._replace(workers=[other, new]), new) as http:
            assert http.get(f"/responses/{first['id']}").json() == first
