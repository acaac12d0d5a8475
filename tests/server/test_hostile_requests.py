"""Requests of any shape: answered or refused, never a fault of the gateway's own."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.errors import RequestRefused
from refold.server.callers import Caller
from refold.server.compacting import Compacting
from refold.server.counting import counted, estimated
from refold.server.incoming import body_of, read_request
from refold.server.plain import spelled_for
from refold.server.seal import KeyRing
from refold.server.settings import GatewaySettings
from refold.server.windows import Sealed, fingerprint, kept_of, opened, seal

RING = KeyRing((bytes(32),))
SETTINGS = GatewaySettings(upstream="http://localhost:1/v1", compaction="outline")
TOKEN = seal(Sealed(text="x", method="outline", model="m", at=0, count=1, sha256="", is_inline=True), RING, "t")
TOP = ["model", "input", "stream", "store", "tools", "instructions", "context_management", "previous_response_id"]
TYPES = """message function_call function_call_output custom_tool_call custom_tool_call_output local_shell_call
tool_search_call tool_search_output reasoning compaction compaction_summary agent_message additional_tools
web_search_call image_generation_call item_reference mystery""".split()  # noqa: SIM905
KEYS = """role content id call_id name namespace arguments input output action tools summary encrypted_content status
author recipient result revised_prompt internal_chat_message_metadata_passthrough""".split()  # noqa: SIM905
WORDS = st.sampled_from(
    ["user", "assistant", "developer", "x", "", "c1", "é", TOKEN, "input_text", "update_plan", "{}"]
)
PARTS = st.fixed_dictionaries({}, optional=dict.fromkeys(["type", "text", "image_url", "encrypted_content"], WORDS))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | WORDS | PARTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=5,
)
ITEMS = st.builds(
    lambda kind, rest: {"type": kind, **rest},
    st.sampled_from(TYPES),
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5),
)
TOOLS = st.dictionaries(
    st.sampled_from(["type", "name", "tools", "format", "parameters", "function"]), VALUES, max_size=4
)


@settings(max_examples=400, deadline=None)
@given(st.lists(ITEMS, max_size=6), st.lists(TOOLS, max_size=3), VALUES, st.sampled_from(["drop", "pass", "refuse"]))
def test_no_shape_of_a_request_is_a_fault(items: list[Any], tools: list[Any], choice: Any, policy: str) -> None:
    body = msgspec.json.encode({"model": "m", "input": items, "tools": tools, "tool_choice": choice, "include": choice})
    mine = msgspec.structs.replace(SETTINGS, unknown_items=policy)
    try:
        asked = read_request(body)
        told = opened(asked.items, RING, "t", window=4_000, keeps=False)
        said = spelled_for(asked, told, mine)
    except RequestRefused as error:
        assert error.status == 400
        return
    assert read_request(body_of(said.keys, said.items)).model == "m"
    assert estimated(asked, told) >= 0 and counted(asked, told) >= 0 and fingerprint(asked.items)
    assert len(kept_of(asked.items, 4_000)) <= len(asked.items)
    caller: Any = Caller("t")
    compacting = Compacting(asked, told, settings=mine, upstream=None, caller=caller, headers={})  # type: ignore[arg-type]
    assert asyncio.run(compacting.run()).text


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(TOP), VALUES))
def test_no_value_of_a_key_is_a_fault(keys: dict[str, Any]) -> None:
    try:
        read_request(msgspec.json.encode(keys))
    except RequestRefused as error:
        assert error.status == 400


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_are_a_fault(body: bytes) -> None:
    try:
        read_request(body)
    except RequestRefused as error:
        assert error.status == 400
