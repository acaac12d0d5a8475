"""Redaction: what is looked for is replaced wherever it stands, and nothing else changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core import redaction
from refold.core.config import parse_config
from refold.core.items import message
from refold.core.records import (
    Compacted,
    CompactionAttempted,
    EventKept,
    ItemRecorded,
    Known,
    Named,
    Pinned,
    Record,
    SessionStarted,
    SettingsApplied,
    SteerQueued,
    TurnEnded,
    Unpinned,
    WorldObserved,
)
from refold.core.redaction import OVERLAP, PIECE, Redaction, holds_secret
from refold.core.redaction_settings import RedactionSettings
from refold.core.world import World
from refold.errors import ConfigError, UnusableItem

PATIENCE = 30  # seconds, of which a hundredth is needed
ALNUM = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
PEM = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\n" * 3
SECRETS = {
    "an OpenAI key": f"sk-proj-{ALNUM}",
    "a GitHub token": f"ghp_{ALNUM}",
    "a GitHub token of the newer kind": f"github_pat_{ALNUM}",
    "an AWS key id": "AKIA" + "ABCDEFGH12345678",
    "a Slack token": "xoxb-" + "123456789012-abcdefABCDEF",
    "a Google key": "AIza" + ALNUM[:35],
    "a Stripe key": "sk_live_" + ALNUM[:24],
    "a JSON web token": f"eyJ{ALNUM}.eyJ{ALNUM}.{ALNUM}",
    "a private key": f"-----BEGIN RSA PRIVATE KEY-----\n{PEM}-----END RSA PRIVATE KEY-----",
}


def redacting(environ: dict[str, str] | None = None, **given: Any) -> Redaction:
    return Redaction(parse_config({"redaction": given}, "test").redaction, environ or {})


def secrets() -> Redaction:
    return redacting(detectors=["secrets"])


# --- what is found -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS.keys())
@pytest.mark.parametrize("around", ["{}", "key={} ok", '"{}"', "export K='{}'\n", "({})", "a\\n{}\\nb", "[{}]"])
def test_a_secret_of_a_known_shape_is_replaced_and_what_stands_around_it_stays(secret: str, around: str) -> None:
    found = secrets().text(around.format(secret))
    before, after = around.split("{}")
    assert found.startswith(f"{before}[redacted:") and found.endswith(f"]{after}")
    assert secret not in found and ALNUM[:16] not in found


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("postgres://app:hunter2@db/x", "postgres://app:[redacted:password]@db/x"),
        ("http://h/p?a:b@c", "http://h/p?a:b@c"),
        ("https://user:$PASSWORD@host", "https://user:$PASSWORD@host"),
        ("Authorization: Bearer abcdef", "Authorization: Bearer [redacted:authorization]"),
        ('{"Authorization": "Basic dTpw"}', '{"Authorization": "Basic [redacted:authorization]"}'),
        ("authorization=0123456789abcdef", "authorization=[redacted:authorization]"),
        ("x-api-key: 0123456789abcdef", "x-api-key: [redacted:authorization]"),
        ("Authorization: Bearer $TOKEN", "Authorization: Bearer $TOKEN"),
        ("authorization: see the handbook", "authorization: see the handbook"),
        ("me@example.org", "me@example.org"),
        ("risk-assessment-of-many-things", "risk-assessment-of-many-things"),
        ("sk-learn-is-a-name-of-some-library", "sk-learn-is-a-name-of-some-library"),
        ("if text.startswith('-----BEGIN PUBLIC KEY-----'):", "if text.startswith('-----BEGIN PUBLIC KEY-----'):"),
    ],
)
def test_only_the_secret_part_of_a_text_is_replaced(text: str, redacted: str) -> None:
    assert secrets().text(text) == redacted


def test_a_private_key_that_was_cut_goes_too_and_the_words_behind_it_stay() -> None:
    found = secrets().text(f"-----BEGIN PRIVATE KEY-----\n{PEM}and then some words")
    assert found == "[redacted:private-key]\nand then some words"
    escaped = json.dumps({"key": f"-----BEGIN PRIVATE KEY-----\n{PEM}-----END PRIVATE KEY-----\n"})
    assert "MII" not in secrets().text(escaped)


def test_e_mail_is_looked_for_only_where_it_is_asked_for() -> None:
    assert secrets().text("to me@example.org now") == "to me@example.org now"
    assert redacting(detectors=["email"]).text("to me@example.org now") == "to [redacted:email] now"


def test_patterns_of_ones_own_have_names_replacements_and_a_group() -> None:
    found = redacting(
        patterns=[
            r"ACME-\d+",
            {"pattern": r"ticket (?P<secret>\d+)", "name": "ticket"},
            {"pattern": "hunter2", "replacement": r"\1***"},
        ]
    )
    assert found.text("ACME-12, ticket 77, hunter2") == r"[redacted:pattern], ticket [redacted:ticket], \1***"


def test_values_of_secret_variables_are_replaced_also_as_json_spells_them() -> None:
    environ = {
        "DB_PASSWORD": 'correct "horse"\nbattery',
        "SERVICE_TOKEN": "abcdefgh",
        "SHORT_TOKEN": "abc",
        "PWD": "/home/somebody",
        "SSH_KEY_PATH": "/home/somebody/.ssh/key",
        "EDITOR": "a-long-name-of-an-editor",
    }
    found = redacting(environ, environment=True)
    assert found.text('say correct "horse"\nbattery') == "say [redacted:DB_PASSWORD]"
    assert found.text(json.dumps({"p": environ["DB_PASSWORD"]})) == '{"p": "[redacted:DB_PASSWORD]"}'
    text = "xabcdefghx abc /home/somebody/.ssh/key a-long-name-of-an-editor"
    assert found.text(text) == text.replace("abcdefgh", "[redacted:SERVICE_TOKEN]")


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "MYSQL_PWD", "secret"])
def test_names_that_say_secret(name: str) -> None:
    assert holds_secret(name)


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "KEYBOARD", "SSH_AUTH_SOCK", "MONKEY_COUNT", "TOKEN_FILE"])
def test_names_that_do_not_say_secret(name: str) -> None:
    assert not holds_secret(name)


# --- long and cut texts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [PIECE - 20, PIECE, PIECE + OVERLAP - 20, 2 * PIECE - 5, 2 * PIECE + OVERLAP - 1])
def test_a_secret_across_the_end_of_a_piece_is_found_whole(place: int) -> None:
    secret = SECRETS["a GitHub token"]
    text = "." * place + secret + "." * (3 * PIECE - place)
    assert secrets().text(text) == text.replace(secret, "[redacted:api-key]")


HOSTILE = (
    *(
        "-----BEGIN PRIVATE KEY-----\n",
        "sk-",
        "eyJ-",
        "eyJaaaaaaaa.eyJ-",
        "uthorization=",
        "X-Api-Key:a",
        "://a:",
        "a@b.",
    ),
    *("ghp_", "[redacted:x]", "data:a/b;base64,", "…1 tokens truncated…aaaaaaaa"),
)
SEARCH = """
import sys
from refold.core.redaction import Redaction
from refold.core.redaction_settings import RedactionSettings
redaction = Redaction(RedactionSettings(detectors=("secrets", "email")), {})
for part in sys.argv[1:]:
    redaction.text(part * (300_000 // len(part)))
"""


def test_a_text_that_is_nothing_but_starts_of_secrets_does_not_stop_the_session() -> None:
    source = str(Path(redaction.__file__).parents[2])
    command = [sys.executable, "-c", SEARCH, *HOSTILE]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": source}, check=True, timeout=PATIENCE)


def test_a_private_key_ends_where_its_own_end_stands() -> None:
    begin, end = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
    text = secrets().text(
        f"{begin} is how it begins; - and -- are dashes.\n{begin}\nComment: my-key\n\n{PEM}{end} and on"
    )
    kept = "[redacted:private-key] is how it begins; - and -- are dashes.\n[redacted:private-key] and on"
    assert text == kept


def test_words_that_a_cut_went_through_go_because_they_may_be_halves() -> None:
    text = f"key sk-proj-{ALNUM[:9]}…120 tokens truncated…{ALNUM[9:]} end"
    assert secrets().text(text) == "key [redacted:cut]…120 tokens truncated…[redacted:cut] end"
    plain = "a word …120 tokens truncated… a word"
    assert secrets().text(plain) == plain


# --- what stays ----------------------------------------------------------------------------------------------------


def test_data_urls_stay_and_other_urls_of_images_do_not() -> None:
    hidden = "data:image/png;base64,AAAA" + SECRETS["an AWS key id"] + "=="
    item = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": hidden}]}
    assert secrets().item(item) is item
    text = f"look at {hidden} and {SECRETS['an AWS key id']}"
    assert secrets().text(text) == f"look at {hidden} and [redacted:api-key]"
    other = {**item, "content": [{"type": "input_image", "image_url": "https://u:pw@host/x.png"}]}
    assert "pw" not in json.dumps(secrets().item(other))


def test_ids_and_encrypted_content_of_items_stay_as_they_are() -> None:
    key = SECRETS["an OpenAI key"]
    item = {
        "type": "reasoning",
        "id": key,
        "encrypted_content": key,
        "summary": [{"type": "summary_text", "text": key}],
    }
    found = secrets().item(item)
    assert found == {**item, "summary": [{"type": "summary_text", "text": "[redacted:api-key]"}]}
    call = {"type": "function_call", "id": "fc_1", "call_id": key, "name": "f", "arguments": json.dumps({"id": key})}
    assert secrets().item(call) == {**call, "arguments": '{"id":"[redacted:api-key]"}'}


def test_arguments_stay_json_and_are_looked_at_without_their_escapes() -> None:
    spaced = '{"cmd": "true",  "n": 12345678}'
    assert arguments(secrets(), spaced) == spaced
    assert arguments(secrets(), '{"a": "\\u0073k-proj-' + ALNUM + '"}') == '{"a":"[redacted:api-key]"}'
    twice = json.dumps(SECRETS["a GitHub token"])
    assert "ghp" not in arguments(secrets(), f'{{"a": {twice}, "a": "b"}}')
    greedy = redacting(patterns=['"n": .*'])
    assert json.loads(arguments(greedy, spaced)) == {"cmd": "true", "n": 12345678}
    number = redacting({"PIN_SECRET": "12345678"}, environment=True)
    assert json.loads(arguments(number, spaced)) == {"cmd": "true", "n": "[redacted:PIN_SECRET]"}
    assert arguments(secrets(), f"no json {SECRETS['a GitHub token']}") == "no json [redacted:api-key]"


def arguments(found: Redaction, text: str) -> str:
    return found.item({"type": "function_call", "name": "f", "call_id": "c", "arguments": text})["arguments"]


def test_an_output_that_was_json_is_json_afterwards() -> None:
    item = {"type": "function_call_output", "call_id": "c", "output": '{"a": "x1", "b": 2}'}
    found = redacting(patterns=['x1".*']).item(item)["output"]
    assert json.loads(found) == {"a": "x1", "b": 2} or json.loads(found)["b"] == 2
    parts = {**item, "output": [{"type": "input_text", "text": SECRETS["a JSON web token"]}]}
    assert secrets().item(parts)["output"] == [{"type": "input_text", "text": "[redacted:json-web-token]"}]


def test_nothing_is_copied_where_nothing_is_found() -> None:
    record = ItemRecorded(message("user", ["nothing"]))
    assert secrets().record(record) is record
    world = World({"agents_md": {"text": "be kind"}})
    assert secrets().world(world) is world


# --- records -------------------------------------------------------------------------------------------------------

KEY = SECRETS["an OpenAI key"]
SAID = message("user", [f"it is {KEY}"])
RECORDS: list[Record] = [
    SessionStarted(thread_id="t", timestamp="", cwd="/w", base_instructions=KEY, payload={"x": [KEY]}),
    TurnEnded(turn_id="t", outcome="failed", last_message=KEY, error=f"no {KEY}"),
    ItemRecorded(SAID),
    WorldObserved(True, {"agents_md": {"directory": "/w", "text": KEY}}),
    SettingsApplied({"cwd": "/w", "note": KEY}),
    SteerQueued("msg_1", KEY),
    Pinned("t:1", KEY),
    Unpinned("t:1", KEY),
    Named(KEY),
    CompactionAttempted(method="local", outcome=f"the provider said {KEY}"),
    Known("00", [{"name": "f", "description": KEY, "parameters": {"properties": {"id": {"description": KEY}}}}]),
    EventKept({"type": "error", "message": KEY}),
    Compacted(
        message=KEY,
        history=(SAID,),
        addresses=("t:1",),
        world={"a": KEY},
        settings={"b": KEY},
        steers={"msg_1": KEY},
        pins=({"address": "t:1", "text": KEY},),
        dropped_rules=({"address": "t:1", "text": KEY},),
        facts={"shadow": KEY, "method": "local", "carried": {"settings": {"x": KEY}}},
        payload={"retained_context": [SAID]},
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda one: type(one).__name__)
def test_no_field_of_a_record_keeps_a_secret(record: Record) -> None:
    found = secrets().record(record)
    assert KEY not in repr(found) and "[redacted:api-key]" in repr(found)
    assert secrets().record(found) == found, "it is redacted once"
    assert repr(found) == repr(record).replace(KEY, "[redacted:api-key]"), "nothing else changed"


def test_a_record_that_is_nested_too_deeply_says_so() -> None:
    deep: Any = "x"
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(UnusableItem, match="nested too deeply"):
        secrets().record(EventKept({"type": "x", "deep": deep}))


# --- always --------------------------------------------------------------------------------------------------------

words = st.one_of(
    st.text(max_size=20), st.sampled_from([*SECRETS.values(), "://u:p@h", "[redacted:x]", "data:a/b;base64,"])
)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.lists(words, max_size=5).map(" ".join))
def test_redacting_twice_is_redacting_once(text: str) -> None:
    found = redacting({"A_TOKEN": "redacted"}, detectors=["secrets", "email"], environment=True)
    once = found.text(text)
    assert found.text(once) == once
    for secret in SECRETS.values():
        assert secret not in once


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    st.recursive(
        words,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    )
)
def test_arguments_are_json_of_the_same_shape_afterwards(value: Any) -> None:
    found = json.loads(arguments(secrets(), json.dumps({"v": value})))
    assert shape(found["v"]) == shape(value)


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(part) for key, part in value.items()}
    return [shape(part) for part in value] if isinstance(value, list) else "text"


# --- settings ------------------------------------------------------------------------------------------------------


def test_it_is_off_unless_it_is_asked_for() -> None:
    assert not RedactionSettings().is_on
    assert not parse_config({}, "test").redaction.is_on


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"patterns": ["ok", "(unclosed"]}, r"redaction.patterns, number 2: '\(unclosed' is no regular expression"),
        ({"patterns": ["a*"]}, r"number 1: 'a\*' also fits a text without anything in it"),
        ({"patterns": [{"pattern": "a", "name": "two words"}]}, "the name 'two words' must be"),
        ({"patterns": [{"pattern": "a", "flags": "i"}]}, "redaction: .*flags"),
        ({"detectors": ["api-key"]}, "redaction.detectors: 'api-key' is none; there are secrets, api-keys, "),
        ({"detector": ["secrets"]}, "did you mean detectors"),
        ({"environments": True, "x": 1}, "did you mean environment"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_config({"redaction": given}, "test")


def test_every_detector_has_a_mark_and_a_shape() -> None:
    assert set(redaction.MARKS) == set(redaction.SHAPES)
    assert RedactionSettings(detectors=("secrets", "email")).detected == set(redaction.SHAPES)
