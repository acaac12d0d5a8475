"""Servers written with the official SDK, over pipes and over HTTP: what calls give, and how connections end."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from refold.core.mcp import McpServer
from refold.errors import ConfigError, ToolFailed
from refold.tools import Tool, ToolContext, ToolResult
from refold.tools.mcp import McpTool, ToolServer, close_links, load

SERVER = str(Path(__file__).parent / "mcp_server.py")
PATIENCE = 60.0  # seconds that no server needs to start, however busy the machine is


def by_pipes(*words: str, **settings: Any) -> McpServer:
    defaults: dict[str, Any] = {"startup_timeout_sec": PATIENCE, **settings}
    return McpServer(command=sys.executable, args=(SERVER, *(words or ("stdio",))), **defaults)


@contextmanager
def http_server(*words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server on a free port: its address and its process."""
    with subprocess.Popen([sys.executable, SERVER, "http", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp", process
        finally:
            process.kill()


@asynccontextmanager
async def connected(server: McpServer, cwd: Path, **environ: str) -> AsyncIterator[ToolServer]:
    load()
    found = ToolServer("t", server, str(cwd), {**os.environ, **environ})
    try:
        await found.open()
        yield found
    finally:
        await close_links(found.links)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


async def gone(pid: int) -> bool:
    for _ in range(500):
        if not is_alive(pid):
            return True
        await asyncio.sleep(0.01)
    return False


async def call(server: ToolServer, tool: str, **arguments: Any) -> ToolResult:
    return await server.call(tool, arguments, lambda text: None)


async def failure(server: ToolServer, tool: str, **arguments: Any) -> str:
    with pytest.raises(ToolFailed) as raised:
        await call(server, tool, **arguments)
    return str(raised.value)


def why_not(server: McpServer, cwd: Path, **environ: str) -> str:
    async def go() -> None:
        async with connected(server, cwd, **environ):
            raise AssertionError("connected")

    with pytest.raises(ConfigError) as raised:
        asyncio.run(go())
    assert raised.value.key == "mcp_servers.t"
    return raised.value.why


# --- one server, many calls ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one server over pipes answered, and what was heard meanwhile."""
    folder = tmp_path_factory.mktemp("mcp")
    (folder / "sub").mkdir()
    heard: list[str] = []

    async def go() -> dict[str, Any]:
        settings = by_pipes(cwd="sub", env={"MODE": "fast"}, env_vars=("DOCS_TOKEN",), disabled_tools=("long",))
        async with connected(settings, folder, DOCS_TOKEN="t", OPENAI_API_KEY="sk-secret") as server:
            found: dict[str, Any] = {"tools": server.offered, "folder": folder, "heard": heard}
            found["echo"] = await call(server, "echo", text="a\ud800b")
            found["wrong"] = await call(server, "echo", text=3, more="x")
            found["add"] = await call(server, "add", a=1, b=2)
            found["fail"] = await call(server, "fail")
            found["picture"] = await call(server, "picture")
            found["assorted"] = await call(server, "assorted")
            found["who"] = json.loads((await call(server, "who")).output)
            mark = str(folder / "unmarked")
            found["slow"] = await server.call("slow", {"seconds": 0, "mark": mark}, heard.append)
            found["unknown"] = await call(server, "nothing")
        found["alive"] = is_alive(found["who"]["pid"])  # while the loop still runs, whose end would end it
        return found

    return asyncio.run(go())


def test_the_tools_are_as_listed(answers: dict[str, Any]) -> None:
    names = [tool.name for tool in answers["tools"]]
    assert names[:3] == ["echo", "add", "who"]
    assert "long" not in names
    echo, add = answers["tools"][:2]
    assert (echo.description, echo.parallel, echo.needs_approval) == ("Says it again.", True, False)
    assert (add.parallel, add.needs_approval) == (False, True)
    assert echo.schema["properties"]["more"]["default"] is None  # a schema's own nulls are not left out


def test_text_goes_there_and_back(answers: dict[str, Any]) -> None:
    assert answers["echo"].output == "you said a\ufffdb"
    assert (answers["echo"].success, answers["echo"].details) == (True, {"server": "t", "tool": "echo"})
    assert json.loads(answers["add"].output) == {"sum": 3}


def test_the_server_checks_the_arguments_and_its_words_reach_the_model(answers: dict[str, Any]) -> None:
    assert not answers["wrong"].success
    assert "2 validation errors" in answers["wrong"].output
    assert "Input should be a valid string" in answers["wrong"].output


def test_an_error_result_is_no_success(answers: dict[str, Any]) -> None:
    assert not answers["fail"].success
    assert "the disk is full" in answers["fail"].output
    assert (answers["unknown"].success, answers["unknown"].output) == (False, "Unknown tool: nothing")


def test_pictures_and_what_else_there_is_become_parts(answers: dict[str, Any]) -> None:
    words, image = answers["picture"].output
    assert words == {"type": "input_text", "text": "a pixel"}
    assert image["image_url"].startswith("data:image/png;base64,iVBOR")
    kinds = [part["type"] for part in answers["assorted"].output]
    assert kinds == ["input_audio", "input_text", "input_text", "input_text"]


def test_progress_is_heard(answers: dict[str, Any]) -> None:
    assert answers["slow"].output == "slept"
    assert answers["heard"] == ["1 of 10: begun"]


def test_the_process_has_its_folder_and_a_small_environment(answers: dict[str, Any]) -> None:
    assert answers["who"]["cwd"] == str(answers["folder"] / "sub")
    environ = answers["who"]["environ"]
    assert (environ["MODE"], environ["DOCS_TOKEN"], environ["PATH"]) == ("fast", "t", os.environ["PATH"])
    assert "OPENAI_API_KEY" not in environ


def test_leaving_ends_the_process(answers: dict[str, Any]) -> None:
    assert not answers["alive"]


def test_a_tool_of_a_server_is_a_tool(answers: dict[str, Any]) -> None:
    tool: Tool = McpTool(ToolServer("t", by_pipes(), "/", {}), answers["tools"][0], "mcp__t__echo")
    assert (tool.name, tool.parallel, tool.needs_approval) == ("mcp__t__echo", True, False)
    assert tool.spec["parameters"]["required"] == ["text"]


# --- servers that do not come up ---------------------------------------------------------------------------


def test_a_command_that_is_missing_is_named(tmp_path: Path) -> None:
    assert why_not(McpServer(command="no-such-program"), tmp_path) == (
        "command 'no-such-program' is not there; install it, or give its path"
    )
    (tmp_path / "plain.txt").touch()
    assert "cannot be run: Permission denied" in why_not(McpServer(command="./plain.txt"), tmp_path)
    assert "nowhere is not a folder" in why_not(McpServer(command="true", cwd="nowhere"), tmp_path)


def test_a_command_that_ends_is_quoted(tmp_path: Path) -> None:
    server = McpServer(command="sh", args=("-c", "echo one >&2; echo 'no \x1b[31mlicence' >&2; exit 3"))
    assert why_not(server, tmp_path) == (
        "the command ended before it was ready; try it in a shell; it wrote: one / no  [31mlicence"
    )
    assert "no MCP message" in why_not(McpServer(command="echo", args=("hello",)), tmp_path)


def test_a_command_that_hangs_is_given_up_and_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    script = "echo $$ > pid; echo waiting >&2; exec sleep 60"
    server = McpServer(command="sh", args=("-c", script), startup_timeout_sec=2)
    assert why_not(server, tmp_path) == (
        "was not ready within 2 seconds; raise startup_timeout_sec if it needs longer; it wrote: waiting"
    )
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert time.monotonic() - began < 30


def test_a_flood_of_complaints_is_no_load(tmp_path: Path) -> None:
    script = "yes 'something to say' | head -c 34000000 >&2; exit 1"
    why = why_not(McpServer(command="sh", args=("-c", script), startup_timeout_sec=PATIENCE), tmp_path)
    assert why.endswith(" / ".join(["something to say"] * 3))
    assert len(why) < 300


def test_a_wrong_address_is_named_without_its_secrets(tmp_path: Path) -> None:
    why = why_not(McpServer(url="http://me:pass@127.0.0.1:9/mcp?key=secret"), tmp_path)
    assert why.startswith("http://127.0.0.1:9/mcp: ConnectError: ")
    assert why.endswith("; is it running, and is url right?")


def test_an_address_that_wants_a_token_says_so(tmp_path: Path) -> None:
    with http_server("--token", "sesame") as (url, _):
        assert why_not(McpServer(url=url), tmp_path) == (
            f"{url}: HTTP 401; set bearer_token_env_var or http_headers to what it asks for"
        )
        server = McpServer(url=url, bearer_token_env_var="DOCS_TOKEN")
        assert "names DOCS_TOKEN, which is not set" in why_not(server, tmp_path)
        wrong = McpServer(url=f"{url}x", bearer_token_env_var="DOCS_TOKEN")
        assert why_not(wrong, tmp_path, DOCS_TOKEN="sesame") == f"{url}x: HTTP 404; is it running, and is url right?"

        async def go() -> Any:
            async with connected(server, tmp_path, DOCS_TOKEN="sesame") as found:
                return (await call(found, "echo", text="hi")).output

        assert asyncio.run(go()) == "you said hi"


# --- calls that go wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("stdio",), ("stdio", "--old")], ids=["2026", "2025"])
def test_a_call_that_hangs_is_given_up_and_the_server_told(words: tuple[str, ...], tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def go() -> str:
        async with connected(by_pipes(*words, tool_timeout_sec=2), tmp_path) as server:
            text = await failure(server, "slow", seconds=60, mark=str(mark))
            assert (await call(server, "echo", text="on")).output == "you said on"
            return text

    assert asyncio.run(go()) == (
        "MCP tool t/slow gave no answer within 2 seconds (tool_timeout_sec) and was told to stop"
    )
    assert mark.read_text() == "cancelled"


def test_a_server_that_dies_in_a_call_costs_that_call(tmp_path: Path) -> None:
    async def go() -> tuple[str, Any]:
        async with connected(by_pipes(), tmp_path) as server:
            beside = asyncio.create_task(failure(server, "slow", seconds=60, mark=str(tmp_path / "m")))
            await asyncio.sleep(0.1)
            text = await failure(server, "die")
            assert "MCP tool t/slow failed: the server went away during the call" in await beside
            both = await asyncio.gather(call(server, "who"), call(server, "who"))
            pids = {json.loads(result.output)["pid"] for result in both}
            return text, pids

    text, pids = asyncio.run(go())
    assert text == (
        "MCP tool t/die failed: the server went away during the call (it ended; it wrote: Segmentation fault, or so); "
        "the next call connects to it again"
    )
    assert len(pids) == 1  # two calls at once bring one server back
    assert not is_alive(pids.pop())


def test_a_server_that_died_before_a_call_is_started_again(tmp_path: Path) -> None:
    async def go() -> tuple[int, int]:
        async with connected(by_pipes(), tmp_path) as server:
            first = json.loads((await call(server, "who")).output)["pid"]
            os.kill(first, 9)
            assert await gone(first)
            await asyncio.wait([server.links[-1].task], timeout=PATIENCE)
            return first, json.loads((await call(server, "who")).output)["pid"]

    first, second = asyncio.run(go())
    assert first != second


def test_a_server_that_does_not_come_back_costs_a_clear_error_each_time(tmp_path: Path) -> None:
    async def go(url: str, process: subprocess.Popen[str]) -> list[str]:
        async with connected(McpServer(url=url), tmp_path) as server:
            first = await failure(server, "die")
            process.wait(PATIENCE)
            return [first, await failure(server, "echo", text="x"), await failure(server, "echo", text="x")]

    with http_server() as (url, process):
        first, second, third = asyncio.run(go(url, process))
    assert first.startswith(f"MCP tool t/die failed: the server went away during the call ({url}: ")
    assert second.startswith(
        f"MCP tool t/echo cannot be called: the server is gone, and did not come back: {url}: ConnectError"
    )
    assert third == second


def test_a_server_that_has_forgotten_the_session_is_greeted_again(tmp_path: Path) -> None:
    async def go() -> tuple[str, Any]:
        with http_server("--old") as (url, process):
            port = url.split(":")[2].partition("/")[0]
            async with connected(McpServer(url=url), tmp_path) as server:
                await call(server, "echo", text="one")
                process.kill()
                process.wait(PATIENCE)
                with http_server("--old", "--port", port):
                    return await failure(server, "echo", text="two"), (await call(server, "echo", text="three")).output

    text, answer = asyncio.run(go())
    assert text == "MCP tool t/echo failed: the server has forgotten this session; the next call begins a new one"
    assert answer == "you said three"


def test_a_large_answer_comes_whole_over_both_ways(tmp_path: Path) -> None:
    async def go(server: McpServer) -> int:
        async with connected(server, tmp_path) as found:
            return len((await call(found, "long", size=3_000_000)).output)

    assert asyncio.run(go(by_pipes())) == 3_000_000
    for words in ((), ("--old",)):  # as JSON, and as a stream of events
        with http_server(*words) as (url, _):
            assert asyncio.run(go(McpServer(url=url))) == 3_000_000


def test_a_call_to_a_cancelled_task_stops_the_server_s_work(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def go(server: McpServer) -> None:
        async with connected(server, tmp_path) as found:
            begun = asyncio.Event()
            work = found.call("slow", {"seconds": 60, "mark": str(mark)}, lambda text: begun.set())
            task = asyncio.create_task(work)
            await asyncio.wait_for(begun.wait(), PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await call(found, "echo", text="on")).success

    with http_server() as (url, _):
        asyncio.run(go(McpServer(url=url)))
    assert mark.read_text() == "cancelled"


# --- changes and ends ---------------------------------------------------------------------------


@pytest.mark.parametrize("old", [(), ("--old",)], ids=["2026", "2025"])
@pytest.mark.parametrize("way", ["stdio", "http"])
def test_a_changed_list_of_tools_is_read_anew(way: str, old: tuple[str, ...], tmp_path: Path) -> None:
    async def go(server: McpServer) -> list[str]:
        async with connected(server, tmp_path) as found:
            before = found.offered
            for _ in range(10):  # until the server has heard that somebody listens
                await call(found, "grow")
                for _ in range(50):
                    if found.offered != before:
                        return [tool.name for tool in found.offered if tool not in before]
                    await asyncio.sleep(0.01)
            return []

    if way == "stdio":
        assert asyncio.run(go(by_pipes("stdio", *old))) == ["new"]
        return
    with http_server(*old) as (url, _):
        assert asyncio.run(go(McpServer(url=url))) == ["new"]


def test_leaving_ends_a_session_over_http(tmp_path: Path) -> None:
    async def go(url: str) -> None:
        async with connected(McpServer(url=url, http_headers={"X-Team": "blue"}), tmp_path) as found:
            await call(found, "echo", text="hi")

    log = tmp_path / "log"
    with http_server("--old", "--log", str(log)) as (url, _):
        asyncio.run(go(url))
    lines = log.read_text().splitlines()
    assert lines[-1] == "DELETE blue"
    assert set(lines) == {"POST blue", "GET blue", "DELETE blue"}


def test_a_process_that_heeds_nothing_is_killed(tmp_path: Path) -> None:
    async def go() -> None:
        async with connected(by_pipes("stubborn"), tmp_path) as found:
            pid = json.loads((await call(found, "who")).output)["pid"]
        assert not is_alive(pid)

    asyncio.run(go())


def test_no_process_is_left_when_leaving_is_cancelled(tmp_path: Path) -> None:
    async def go() -> None:
        async with connected(by_pipes("stubborn"), tmp_path) as found:
            pid = json.loads((await call(found, "who")).output)["pid"]
            closing = asyncio.create_task(close_links(found.links))
            await asyncio.sleep(0.1)
            closing.cancel()
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert not is_alive(pid)

    asyncio.run(go())


def test_context_progress_is_where_a_tool_s_progress_goes(tmp_path: Path) -> None:
    heard: list[str] = []

    async def go() -> None:
        async with connected(by_pipes(), tmp_path) as found:
            slow = next(tool for tool in found.offered if tool.name == "slow")
            context = ToolContext(call_id="c", cwd="/", progress=heard.append)
            await McpTool(found, slow, "mcp__t__slow").run({"seconds": 0, "mark": "/dev/null"}, context)

    asyncio.run(go())
    assert heard == ["1 of 10: begun"]
