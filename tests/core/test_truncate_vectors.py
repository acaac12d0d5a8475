"""All 525 recorded outputs of the real program's exec_command, made again by collector and shaper (oracle §3)."""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from refold.core.truncate import Budget, exec_output, policy_with_limit
from refold.tools import ToolContext
from refold.tools.collector import Collector
from refold.tools.commands import exec_command

DATA = Path(__file__).parent.parent / "data" / "oracle" / "truncation_exec.json.gz"
VECTORS: list[dict[str, Any]] = json.loads(gzip.decompress(DATA.read_bytes()))["vectors"]
CHUNK = 65_536  # what one read of a pipe gives


def generated(recipe: dict[str, Any]) -> bytes:
    """The bytes that a vector's generator describes."""
    match recipe["kind"]:
        case "text":
            text = recipe["text"]
        case "repeat":
            text = recipe.get("prefix", "") + recipe["unit"] * recipe["count"] + recipe.get("suffix", "")
        case "seq":
            text = "".join(f"{n}\n" for n in range(recipe["from"], recipe["to"] + 1))
        case "lines":
            end = recipe.get("eol", "\n")
            text = "".join(recipe["format"] % n + end for n in range(1, recipe["count"] + 1))
        case "random":
            text = random_text(recipe["seed"], recipe["alphabet"], recipe["count"])
        case kind:
            raise AssertionError(f"unknown generator {kind}")
    return text.encode()


def random_text(state: int, alphabet: str, count: int) -> str:
    letters: list[str] = []
    for _ in range(count):
        state = (1_103_515_245 * state + 12_345) % 2**31
        letters.append(alphabet[(state >> 16) % len(alphabet)])
    return "".join(letters)


@functools.cache
def input_bytes(recipe: str) -> bytes:
    return generated(json.loads(recipe))


def test_the_vectors_are_all_there() -> None:
    assert len(VECTORS) == 525
    assert sum(1 for vector in VECTORS if vector.get("tty")) == 7


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_output_reaches_the_model_as_the_real_program_sends_it(vector: dict[str, Any]) -> None:
    raw = input_bytes(json.dumps(vector["input"]))
    assert (len(raw), hashlib.sha256(raw).hexdigest()) == (vector["input_bytes"], vector["input_sha256"])
    if vector.get("tty"):
        raw = raw.replace(b"\n", b"\r\n")  # what a terminal's line discipline makes of a command's newlines

    collector = Collector()
    for start in range(0, len(raw), CHUNK):
        collector.feed(raw[start : start + CHUNK])
    text = exec_output(
        collector.captured(),
        policy_with_limit(Budget(**vector["model_policy"]), vector["tool_output_token_limit"]),
        chunk_id="000000",
        wall_seconds=0.0,
        exit_code=0,
        max_output_tokens=vector["max_output_tokens"],
    )

    expected = vector["output"]
    if "text" in expected:
        assert text == expected["text"]
    else:
        assert text.startswith(expected["head"])
        assert text.endswith(expected["tail"])
        assert expected.get("marker", "") in text
    assert (len(text.encode()), hashlib.sha256(text.encode()).hexdigest()) == (expected["bytes"], expected["sha256"])


@pytest.mark.parametrize("vector", [one for one in VECTORS if one.get("tty")], ids=lambda vector: vector["id"])
def test_a_real_terminal_gives_what_was_recorded(vector: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(input_bytes(json.dumps(vector["input"])))
    policy = policy_with_limit(Budget(**vector["model_policy"]), vector["tool_output_token_limit"])
    arguments = {"cmd": "cat input", "tty": True, "max_output_tokens": vector["max_output_tokens"]}
    result = asyncio.run(exec_command.run(arguments, ToolContext(call_id="c", cwd=str(tmp_path), policy=policy)))
    text = re.sub(r"Wall time: [\d.]+", "Wall time: 0.0000", str(result.output), count=1)
    assert text == vector["output"]["text"]
