"""A peer: the OpenAI Agents SDK in the bare loop's place, run by a Python that has it (`make peers`)."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import agents
import openai

NEVER = 1_000_000  # turns


@agents.function_tool
def nop() -> str:
    """Does nothing."""
    return "ok"


@agents.function_tool
async def exec_command(cmd: str) -> str:
    """Run a command."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("/bin/bash", "-lc", cmd, stdout=pipe, stderr=pipe)
    output, _ = await process.communicate()
    return f"exit {process.returncode}\n{output.decode()}"


async def turn(url: str, items: list[Any]) -> None:
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=url, api_key="none")
    model = agents.OpenAIResponsesModel("bench", client)
    agent = agents.Agent(name="bench", model=model, tools=[nop, exec_command])
    run = agents.Runner.run_streamed(agent, items, max_turns=NEVER)
    async for _ in run.stream_events():
        pass


if __name__ == "__main__":
    history = json.loads(Path(sys.argv[2]).read_bytes()) if len(sys.argv) > 2 else []
    asyncio.run(turn(sys.argv[1], [*history, {"type": "message", "role": "user", "content": "go"}]))
