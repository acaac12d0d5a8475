"""Gateway: what `refold serve` costs while many answers stream through it, beside the same client at the upstream.

`python -m bench.gateway [--streams 200] [--seconds 6] [--rounds 3]` prints the table for one number of streams.

Three processes share the machine: the upstream (raw asyncio; each stream says 10 events a second, numbered, with the
time of their sending), the gateway (the real command, one worker), and the client (raw asyncio, it reads no JSON). The
streams' ticks are spread evenly over the 100 ms between two events, as those of real ones are; without that all
of them would queue behind each other at the same moment. What is measured lies between the moment when all
streams are open and the moment when the first one ends. Latency is from the upstream's write to the client's
read; *added* is what the client's direct way to the upstream does not have. The rounds of both ways take turns, and the
least disturbed one of each counts: others use the machine too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench.core import TABLE, Figure

EVENTS_A_SECOND = 10
ROUNDS = 3
SPAN_SECONDS = 6.0  # 12,000 events of 200 streams
OPENED_A_SECOND = 100  # streams, one after the other
SETTLING_SECONDS = 0.5
SECONDS = 60.0  # that nothing here needs
STREAMS, MORE_STREAMS = 200, 500
MOST_ADDED, MOST_CPU = 25, 0.2  # ms: p99 of the latency, processor time of an event
BACKLOG = 1_024

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CREATED = b'{"type":"response.created","sequence_number":0,"response":{"id":"resp_%d","status":"in_progress"}}'
DELTA = (
    b'{"type":"response.output_text.delta","sequence_number":%d,"item_id":"msg_0123456789abcdef0123456789abcdef",'
    b'"output_index":0,"content_index":0,"delta":" word","logprobs":[],"obfuscation":"y5XHGbE3Ix","at":%.6f}'
)
COMPLETED = (
    b'{"type":"response.completed","sequence_number":%d,"response":{"id":"resp_%d","status":"completed","output":[],'
    b'"usage":{"input_tokens":1,"output_tokens":1,"total_tokens":2}}}'
)
SAID = re.compile(rb'"sequence_number":(\d+)(?:[^\n]*"at":([\d.]+))?')
ASKED = re.compile(rb'"input":"(\d+) of (\d+), (\d+) events"')


# --- the upstream ----------------------------------------------------------------------------------------------------


class Saying(asyncio.Protocol):
    """One connection of the upstream: each request is a stream. Mutable: it counts what it says."""

    said = 0  # events of all connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._loop, self._asked = transport, asyncio.get_running_loop(), b""

    def data_received(self, data: bytes) -> None:
        self._asked += data
        found = ASKED.search(self._asked)
        if found is None:
            return
        self._asked = b""
        number, streams, self._left = map(int, found.groups())
        self._number, self._next = number, 0
        self._transport.write(HEAD)
        self._say(b"response.created", CREATED % number)
        # the first tick after now that is this stream's own
        step = 1 / EVENTS_A_SECOND
        now, phase = self._loop.time(), step * number / streams
        self._at = now - (now - phase) % step + step
        self._loop.call_at(self._at, self._tick)

    def _tick(self) -> None:
        if self._transport.is_closing():
            return
        if not self._left:
            self._say(b"response.completed", COMPLETED % (self._next, self._number))
            self._transport.write(b"0\r\n\r\n")
            return
        self._left -= 1
        self._say(b"response.output_text.delta", DELTA % (self._next, self._loop.time()))
        self._at += 1 / EVENTS_A_SECOND
        self._loop.call_at(self._at, self._tick)

    def _say(self, kind: bytes, data: bytes) -> None:
        event = b"event: %b\ndata: %b\n\n" % (kind, data)
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self._next += 1
        Saying.said += 1


async def upstream() -> None:
    """Be the upstream; whoever sends a line on standard input is told how many events were said since the last one."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Saying, "127.0.0.1", 0, backlog=BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(Saying.said, flush=True)
            Saying.said = 0


# --- the client ------------------------------------------------------------------------------------------------------


class Used(msgspec.Struct, frozen=True):
    """What processes had used at a moment: seconds of a processor, and the gateway's resident bytes."""

    cpu: list[float]
    resident: int

    @classmethod
    def by(cls, processes: list[int]) -> Used:
        return cls([processor(one) for one in processes], resident(processes[0]))


class Round(msgspec.Struct):
    """What one round of streams gave. Latencies in ms, of the span; processor ms per event of each watched process."""

    latencies: list[float]
    firsts: list[float]  # from a connection that is open to its stream's first event, of the whole round
    received: int  # events of the whole round
    wrong: list[int]  # streams whose events are not all of theirs, in order
    cpu: list[float]
    whole: float  # processor ms of the gateway per event, opening and end included
    resident: tuple[int, int]  # bytes, at the begin and the end of the span


class Listening(asyncio.Protocol):
    """One stream at the client. Mutable: it checks the order and keeps when each event was said and came."""

    def __init__(self, asked: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._asked, self._held, self._now = asked, b"", loop.time
        self.came: list[tuple[float, float]] = []
        self.count, self.is_right, self.is_whole, self.first = 0, True, False, 0.0
        self.ended = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._began = transport, self._now()
        transport.write(self._asked)

    def data_received(self, data: bytes) -> None:
        now = self._now()
        self.first = self.first or now - self._began
        whole, end, self._held = (self._held + data).rpartition(b"\n\n")
        for number, at in SAID.findall(whole + end):
            self.is_right &= int(number) == self.count
            self.count += 1
            if at:
                self.came.append((float(at), now))
        if b'"type":"response.completed"' in whole:
            self.is_whole = True
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


async def client(port: int, streams: int, seconds: float, watched: list[int]) -> Round:
    """All streams at once. `watched`: processes whose processor time is taken, the gateway's first."""
    loop = asyncio.get_running_loop()
    opening = streams / OPENED_A_SECOND
    events = round((opening + 2 * SETTLING_SECONDS + seconds) * EVENTS_A_SECOND)
    listening: list[Listening] = []
    begun, unused = loop.time(), Used.by(watched)
    for number in range(streams):
        await asyncio.sleep(begun + number / OPENED_A_SECOND - loop.time())
        asked = _request(port, number, streams, events)
        _, stream = await loop.create_connection(lambda asked=asked: Listening(asked), "127.0.0.1", port)
        listening.append(stream)
    await asyncio.sleep(SETTLING_SECONDS)
    began, before = loop.time(), Used.by(watched)
    await asyncio.sleep(seconds)
    end, after = loop.time(), Used.by(watched)
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(stream.ended for stream in listening))
    used = Used.by(watched)
    inside = [(said, came) for stream in listening for said, came in stream.came if began <= came < end]
    return Round(
        latencies=[(came - said) * 1000 for said, came in inside],
        firsts=[stream.first * 1000 for stream in listening],
        received=sum(stream.count for stream in listening),
        wrong=[n for n, one in enumerate(listening) if not (one.is_right and one.is_whole and one.count == events + 2)],
        cpu=[(late - early) * 1000 / len(inside) for early, late in zip(before.cpu, after.cpu, strict=True)],
        whole=(used.cpu[0] - unused.cpu[0]) * 1000 / sum(stream.count for stream in listening),
        resident=(before.resident, after.resident),
    )


def _request(port: int, number: int, streams: int, events: int) -> bytes:
    said = f"{number} of {streams}, {events} events"
    body = b'{"model":"bench","stream":true,"store":false,"input":"%b"}' % said.encode()
    head = f"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def at(values: list[float], part: float) -> float:
    """The value below which so large a part of all of them lies."""
    return sorted(values)[int(len(values) * part)]


def processor(process: int) -> float:
    """Seconds of a processor that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(process: int) -> int:
    """Bytes of a process in memory."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- all three -------------------------------------------------------------------------------------------------------


class Measured(msgspec.Struct):
    """Rounds of one number of streams, straight at the upstream and through the gateway."""

    streams: int
    direct: list[Round] = []
    through: list[Round] = []
    sent: int = 0  # events that the upstream said to the gateway

    def rows(self) -> Iterator[Figure]:
        what = f"{self.streams} streams × {EVENTS_A_SECOND} events/s"
        is_design, ways = self.streams == STREAMS, (self.direct, self.through)
        for part, most in ((0.5, None), (0.99, MOST_ADDED if is_design else None)):
            for name, direct, ours in (
                ("added latency", *(min(at(one.latencies, part) for one in way) for way in ways)),
                ("added until the first event", *(min(at(one.firsts, part) for one in way) for way in ways)),
            ):
                yield Figure(
                    f"{what}: {name}, p{part * 100:.0f}", "ms", ours - direct, "upstream to client", direct, most
                )
        gateway, said, listened = (min(one.cpu[n] for one in self.through) for n in range(3))
        most = MOST_CPU if is_design else None
        others = "upstream and client together"
        yield Figure(f"{what}: processor time of an event", "ms", gateway, others, said + listened, most)
        whole = min(one.whole for one in self.through)
        yield Figure(f"{what}: the same with what opening and ending the streams takes", "ms", whole)
        first, last = self.through[0].resident[0], self.through[-1].resident[1]
        name = f"{what}: resident memory after {len(self.through)} rounds"
        yield Figure(name, "MiB", last / 2**20, "at the begin of the first", first / 2**20)
        lost = self.sent - sum(one.received for one in self.through)
        yield Figure(f"{what}: events lost", "events", lost, "sent", self.sent, 0)
        wrong = sum(len(one.wrong) for one in self.through)
        yield Figure(f"{what}: streams with an event missing or out of order", "streams", wrong, most=0)


def measured(streams: int, *, seconds: float = SPAN_SECONDS, rounds: int = ROUNDS) -> Measured:
    """The rounds of one number of streams; the gateway is the same process in all of them."""
    found = Measured(streams)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        saying = stack.enter_context(_process([sys.executable, "-m", "bench.gateway", "--serve"]))
        port = int(_line(saying))
        gateway, address = stack.enter_context(_gateway(port, place))
        watched = [gateway, saying.pid]
        for _ in range(rounds):
            found.direct.append(_asked(port, streams, seconds, watched))
            _said(saying)
            found.through.append(_asked(address, streams, seconds, watched))
            found.sent += _said(saying)
    return found


@contextmanager
def _gateway(port: int, place: Path) -> Iterator[tuple[int, int]]:
    """The real command in front of an upstream: its process, and the port where it listens."""
    words = [sys.executable, "-m", "refold", "serve", "--upstream", f"http://127.0.0.1:{port}/v1", "--port", "0"]
    with _process(words, {"REFOLD_HOME": str(place)}) as process:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", _line(process))
        assert found is not None
        yield process.pid, int(found[1])


def _asked(port: int, streams: int, seconds: float, watched: list[int]) -> Round:
    """A round, by a client in a process of its own."""
    words = [sys.executable, "-m", "bench.gateway", "--ask", f"{port}", "--streams", f"{streams}"]
    words += ["--seconds", f"{seconds}", "--watch", *map(str, watched)]
    done = subprocess.run(words, stdout=subprocess.PIPE, timeout=SECONDS + 5 * seconds, check=True)
    return msgspec.json.decode(done.stdout, type=Round)


@contextmanager
def _process(words: list[str], environ: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environ or {})}
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(SECONDS)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _said(saying: subprocess.Popen[str]) -> int:
    """Events that the upstream said since it was asked last."""
    assert saying.stdin is not None
    saying.stdin.write("\n")
    saying.stdin.flush()
    return int(_line(saying))


def rows() -> Iterator[Figure]:
    """The design's load, and what more of it does."""
    for streams in (STREAMS, MORE_STREAMS):
        yield from measured(streams).rows()


def main() -> None:
    """Answers streamed through the gateway; prints a markdown table."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=main.__doc__)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--seconds", type=float, default=SPAN_SECONDS, help="of each round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ask", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--watch", type=int, nargs="+", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(upstream())
    elif options.ask:
        watched = [*options.watch, os.getpid()]
        found = asyncio.run(client(options.ask, options.streams, options.seconds, watched))
        sys.stdout.buffer.write(msgspec.json.encode(found))
    else:
        print(TABLE)
        for row in measured(options.streams, seconds=options.seconds, rounds=options.rounds).rows():
            print(row, flush=True)


if __name__ == "__main__":
    main()
