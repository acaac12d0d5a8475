"""Served: `refold serve` as a process of its own, and the real program as its client, over HTTP or a WebSocket."""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import msgspec

from interop.checks import Field
from interop.compare import Differs
from interop.real import CATALOGUE, KEY, PROGRAM, Real, thread_of
from refold.core.profile import Provider
from refold.testing import ResponsesServer

Transport: TypeAlias = Literal["HTTP", "WebSocket"]

START_SECONDS = 30  # a start takes well under one
STOP_SECONDS = 35  # open answers may take 30
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/v1")
COUNTED = re.compile(r'^refold_gateway_requests_total\{route="(\w+)",status="(\d+)"\} (\d+)', re.MULTILINE)
ROUTES: dict[Transport, str] = {"HTTP": "responses", "WebSocket": "websocket"}  # what the gateway calls them
NAME_OF_OPENAI = "OpenAI"  # a provider of this name is asked to compact


class Gateway:
    """`with Gateway(home, url_of_the_upstream) as gateway: … gateway.url …`. The home keeps its keys."""

    def __init__(self, home: Path, upstream: str) -> None:
        self.home = home
        self.url = ""
        self._upstream = upstream
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True, exist_ok=True)
        environ = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.home), "REFOLD_HOME": str(self.home)}
        words = [sys.executable, "-m", "refold", "serve", "--upstream", self._upstream, "--port", "0"]
        with (self.home / "said").open("a") as said:
            self._process = subprocess.Popen(  # noqa: S603 (our own words)
                words, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True
            )
        try:
            self.url = self._address()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Differs(f"the gateway did not stop within {STOP_SECONDS} s") from None

    def _address(self) -> str:
        """Where it listens. Raises Differs when it does not say so."""
        out = self._process.stdout if self._process else None
        if out is None or not select.select([out], [], [], START_SECONDS)[0]:
            raise Differs(f"the gateway did not start within {START_SECONDS} s")
        line = out.readline()
        found = ADDRESS.search(line)
        if found is None:
            raise Differs(f"the gateway said {line!r}, then {(self.home / 'said').read_text()[-400:]!r}")
        return found.group()

    def counts(self) -> Counter[tuple[str, int]]:
        """How many requests it answered, by route ("responses", "websocket") and status; a frame is a request."""
        with urllib.request.urlopen(f"{self.url.removesuffix('/v1')}/metrics", timeout=START_SECONDS) as answer:  # noqa: S310
            text = answer.read().decode()
        counted = {(route, int(status)): int(count) for route, status, count in COUNTED.findall(text)}
        return Counter({key: count for key, count in counted.items() if key[0] in ROUTES.values()})


class Heard(msgspec.Struct, frozen=True):
    """What the real program said of one turn, and the rollout it wrote."""

    status: int
    events: list[dict[str, Any]]
    log: str
    rollout: Path

    @property
    def answers(self) -> list[str]:
        items = [event["item"] for event in self.events if event["type"] == "item.completed"]
        return [item["text"] for item in items if item["type"] == "agent_message"]

    @property
    def failure(self) -> str:
        """What the turn failed with, "" for one that did not."""
        return next((event["error"]["message"] for event in self.events if event["type"] == "turn.failed"), "")

    def answered(self, text: str) -> None:
        """Raise Differs unless the turn ended with this answer."""
        if self.status or self.answers[-1:] != [text]:
            said = (self.failure or self.log)[-600:]
            raise Differs(f"the real program ended with {self.status}, answers {self.answers}: {said}")

    def failed(self, part: str) -> None:
        """Raise Differs unless the turn failed, with this in what was said of it."""
        if not self.status or part not in self.failure:
            raise Differs(f"the real program ended with {self.status}, answers {self.answers}: {self.failure!r}")


class Client(Real):
    """The real program, whose provider is a gateway. `model`: keys of its model that are not the usual ones."""

    def __init__(self, home: Path, work: Path, transport: Transport, name: str = NAME_OF_OPENAI, **model: Any) -> None:
        super().__init__(home, work)
        models = [{**CATALOGUE["models"][0], **model}]
        (home / "models.json").write_text(json.dumps({"models": models}))
        self._provider = {"name": f'"{name}"', "supports_websockets": "true" if transport == "WebSocket" else "false"}

    def say(
        self, said: str, url: str, rollout: Path | None = None, *, limit: int | None = None, retries: int = 0
    ) -> Heard:
        """One turn, in a new session or in a rollout of this home; `limit`: tokens at which compaction is due.

        Raises Differs when it does not end, or writes another file.
        """
        known = set(self.home.rglob("rollout-*.jsonl"))
        words = [str(PROGRAM), "exec", *(["resume"] if rollout else []), "--skip-git-repo-check", "--json"]
        for key, value in {**self._provider, "stream_max_retries": retries}.items():
            words += ["-c", f"model_providers.scripted.{key}={value}"]
        if limit is not None:
            words += ["-c", f"model_auto_compact_token_limit={limit}"]
        done = self.start([*words, *([thread_of(rollout)] if rollout else []), said], url)
        new = set(self.home.rglob("rollout-*.jsonl")) - known
        if len(new) != (rollout is None):
            raise Differs(f"the real program wrote {len(new)} new files: {done.stderr[-600:]}")
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Heard(done.returncode, events, done.stderr, rollout or new.pop())


class Road:
    """One check's place: a client over one transport, and gateways. Mutable: it hands out fresh homes."""

    def __init__(self, field: Field, transport: Transport) -> None:
        self.field = field
        self.transport: Transport = transport
        self._homes = itertools.count(1)

    def client(self, name: str = NAME_OF_OPENAI, **model: Any) -> Client:
        home = self.field.folder / f"client-{next(self._homes)}"
        return Client(home, self.field.work, self.transport, name, **model)

    def gateway(self, upstream: ResponsesServer, home: str = "gateway") -> Gateway:
        return Gateway(self.field.folder / home, upstream.url)

    def provider(self, gateway: Gateway) -> Provider:
        """The gateway, for refold as a client: the same caller as the real program."""
        return Provider(
            id="scripted",
            name=NAME_OF_OPENAI,
            base_url=gateway.url,
            env_key=None,
            http_headers={"authorization": f"Bearer {KEY}"},
            supports_websockets=self.transport == "WebSocket",
            request_max_retries=0,
            stream_max_retries=0,
        )
