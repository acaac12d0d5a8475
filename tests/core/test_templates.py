"""The texts that a model may see are the bytes that they have to be."""

from __future__ import annotations

from hashlib import sha256

import pytest

from refold.core.templates import FOLDER, template

NAMES = sorted(path.stem for path in FOLDER.glob("*.md"))


@pytest.mark.parametrize(
    ("name", "size", "digest"),
    [
        ("handoff", 426, "ab0c334d4faca17e3afbb9b16967c1b2fdcc7242a9a0880af57949fa236d6d07"),
        ("summary_prefix", 399, "e9b088e794a6bb9082ac053fcc760bd818d7e720ee4bcdc72c6e480de7b7cb0e"),
    ],
)
def test_protocol_constant_has_the_exact_bytes(name, size, digest):
    data = template(name).encode()
    assert (len(data), sha256(data).hexdigest()) == (size, digest)


def test_handoff_ends_with_one_newline_and_the_prefix_with_none():
    assert template("handoff").endswith("work.\n")
    assert template("summary_prefix").endswith("analysis:")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "summary_prefix"])
def test_text_ends_with_exactly_one_newline(name):
    text = template(name)
    assert text.strip()
    assert text == text.strip() + "\n"


def test_base_instructions_stay_small():
    assert len(template("base_instructions").encode()) <= 1500


@pytest.mark.parametrize("mode", ["read_only", "workspace_write", "danger_full_access"])
def test_every_sandbox_mode_has_a_text(mode):
    assert template(f"permissions_sandbox_{mode}").startswith("Sandbox: ")


@pytest.mark.parametrize("policy", ["never", "on_request", "untrusted", "on_failure"])
def test_every_approval_policy_has_a_text(policy):
    assert template(f"permissions_approval_{policy}").startswith(f"Approval: {policy.replace('_', '-')}. ")


def test_template_is_read_once():
    assert template("handoff") is template("handoff")


def test_unknown_template_is_named():
    with pytest.raises(FileNotFoundError, match="no_such_text"):
        template("no_such_text")
