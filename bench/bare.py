"""The peer: the smallest agent loop that works: it keeps a list, encodes all of it each time, and stores nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2

TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("nop", "exec_command")]
HEADERS = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}


def sample(client: httpx2.Client, url: str, items: list[Any]) -> list[Any]:
    body = json.dumps({"model": "bench", "stream": True, "input": items, "tools": TOOLS}).encode()
    done: list[Any] = []
    with client.stream("POST", f"{url}/responses", content=body, headers=HEADERS) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                if event["type"] == "response.output_item.done":
                    done.append(event["item"])
    return done


def run(call: Any) -> str:
    if call["name"] == "nop":
        return "ok"
    command = json.loads(call["arguments"])["cmd"]
    finished = subprocess.run(["/bin/bash", "-lc", command], capture_output=True, check=False)
    return f"exit {finished.returncode}\n{finished.stdout.decode()}"


def turn(url: str, items: list[Any]) -> None:
    with httpx2.Client(trust_env=False, timeout=300) as client:
        while True:
            output = sample(client, url, items)
            items += output
            calls = [item for item in output if item["type"] == "function_call"]
            if not calls:
                return
            for call in calls:
                items.append({"type": "function_call_output", "call_id": call["call_id"], "output": run(call)})


if __name__ == "__main__":
    history = json.loads(Path(sys.argv[2]).read_bytes()) if len(sys.argv) > 2 else []
    turn(sys.argv[1], [*history, {"type": "message", "role": "user", "content": "go"}])
