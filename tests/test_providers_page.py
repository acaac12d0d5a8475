"""docs/providers.md: every setting that it shows is one, and every provider that it promises is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from refold.core.config import parse_config

PAGE = (Path(__file__).parents[1] / "docs" / "providers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PROVIDERS = ["OpenAI", "Azure OpenAI", "vLLM", "Ollama", "llama.cpp server", "LM Studio", "OpenRouter"]


def section(name: str) -> str:
    """The part of the page under this heading."""
    return PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("block", BLOCKS)
def test_settings_are_understood(block: str):
    document = tomllib.loads(block)
    config = parse_config(document, "docs/providers.md")
    name = document.get("model_provider")
    assert name is None or config.provider({}).id == name
    for provider in config.model_providers.values():
        assert not provider.base_url.endswith("/")


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_has_settings_that_are_complete(name: str):
    first = tomllib.loads(re.findall(r"```toml\n(.*?)```", section(name), re.DOTALL)[0])
    assert {"model", "model_provider"} <= set(first)
    assert f"\n| {name} |" in section("What was verified, and how")


def test_python_on_the_page_is_python():
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        compile(block, "docs/providers.md", "exec")
