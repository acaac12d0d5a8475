"""Seals: only the gateway that made a token reads it, for the tenant that got it."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from refold.errors import ConfigError, RequestRefused
from refold.model.sealed import UNREADABLE, is_unreadable, named_item
from refold.server.seal import KEY_BYTES, KeyRing, is_ours, key_file, new_key, read_keys

OLD, NEW = bytes(KEY_BYTES), bytes([7]) * KEY_BYTES


def refused(ring: KeyRing, token: str, tenant: str = "a") -> None:
    with pytest.raises(RequestRefused) as caught:
        ring.open(token, tenant, item_id="cmp_1")
    assert (caught.value.status, caught.value.code) == (400, UNREADABLE)


def test_what_was_sealed_opens_for_the_same_tenant() -> None:
    ring = KeyRing((OLD,))
    token = ring.seal(b"the summary", "a")
    assert ring.open(token, "a") == b"the summary"
    assert is_ours(token) and token.isascii() and "=" not in token


def test_same_text_is_never_sealed_alike() -> None:
    ring = KeyRing((OLD,))
    assert len({ring.seal(b"the summary", "a") for _ in range(50)}) == 50


def test_token_of_another_tenant_is_refused() -> None:
    ring = KeyRing((OLD,))
    refused(ring, ring.seal(b"the summary", "a"), "b")


def test_every_changed_character_is_refused() -> None:
    ring = KeyRing((OLD,))
    token = ring.seal(b"the summary", "a")
    for place, character in enumerate(token):
        other = "A" if character != "A" else "B"
        refused(ring, token[:place] + other + token[place + 1 :])


def test_truncated_and_longer_tokens_are_refused() -> None:
    ring = KeyRing((OLD,))
    token = ring.seal(b"the summary", "a")
    for length in range(len(token)):
        refused(ring, token[:length])
    for more in ("A", "=", " ", "\n", token):
        refused(ring, token + more)


@pytest.mark.parametrize("token", ["", "gAAAAABo", "cmYB", "é" * 40, "A" * 100, "\0" * 64, "cmYB" + "A" * 200])
def test_foreign_tokens_are_refused(token: str) -> None:
    refused(KeyRing((OLD,)), token)


def test_rotation_seals_with_the_newest_key_and_opens_with_all() -> None:
    before = KeyRing((OLD,)).seal(b"before", "a")
    both = KeyRing((NEW, OLD))
    after = both.seal(b"after", "a")
    assert (both.open(before, "a"), both.open(after, "a")) == (b"before", b"after")
    assert KeyRing((NEW,)).open(after, "a") == b"after"
    refused(KeyRing((NEW,)), before)


def test_refusal_is_one_that_refold_knows_as_the_providers_own() -> None:
    with pytest.raises(RequestRefused) as caught:
        KeyRing((OLD,)).open("nothing", "a", item_id="cmp_9")
    assert is_unreadable((), str(caught.value)) and named_item(str(caught.value)) == "cmp_9"


# --- keys ------------------------------------------------------------------------------------------------------------


def test_key_file_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "gateway" / "keys"
    first = key_file(path, make=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key_file(path, make=True).open(first.seal(b"x", "a"), "a") == b"x"
    assert [one.name for one in path.parent.iterdir()] == ["keys"]


def test_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: cannot be read"):
        key_file(tmp_path / "nowhere", make=False)


def test_keys_are_read_from_lines_or_commas_with_remarks() -> None:
    new, old = base64.b64encode(NEW).decode(), base64.urlsafe_b64encode(OLD).decode()
    for text in (f"# keys\n{new} # the newest\n\n{old}\n", f"{new},{old}"):
        ring = read_keys(text, "here")
        assert KeyRing((NEW,)).open(ring.seal(b"x", "a"), "a") == b"x"
        assert ring.open(KeyRing((OLD,)).seal(b"y", "a"), "a") == b"y"


def test_wrong_key_is_named_by_its_line_and_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        read_keys(f"{new_key()}\nc2VjcmV0LXNlY3JldA==\n", "here")
    assert "line 2" in str(caught.value) and "c2VjcmV0" not in str(caught.value)
    with pytest.raises(ConfigError, match="holds no key"):
        read_keys("# nothing\n", "here")


def test_ring_does_not_show_its_keys() -> None:
    ring = KeyRing((NEW,))
    assert repr(ring) == "KeyRing(1 keys)" and str(ring) == repr(ring)
