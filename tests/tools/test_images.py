"""view_image: a file becomes an image part that the model sees."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import pytest

from refold.errors import ToolFailed
from refold.tools import ToolContext
from refold.tools.images import view_image

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def look(cwd: Path, modalities: tuple[str, ...] = ("text", "image"), **arguments: Any) -> Any:
    context = ToolContext(call_id="call_1", cwd=str(cwd), modalities=modalities)
    return asyncio.run(view_image.run(arguments, context))


def test_file_becomes_one_image_part(tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(PNG)
    result = look(tmp_path, path="dot.png")
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert result.output == [{"type": "input_image", "image_url": url, "detail": "high"}]
    assert result.details == {"path": str(tmp_path / "dot.png")}
    assert look(tmp_path, path=str(tmp_path / "dot.png"), detail="low").output[0]["detail"] == "low"


def test_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("words")
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("notes", "is not a PNG"), ("missing", "cannot be read"), (".", "not a file"), ("pipe", "not a")):
        with pytest.raises(ToolFailed, match=f"view_image failed: .*{why}"):
            look(tmp_path, path=name)


def test_model_that_takes_no_images_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(PNG)
    with pytest.raises(ToolFailed, match="takes no images"):
        look(tmp_path, ("text",), path="dot.png")


def test_wrong_arguments_are_told_with_the_right_ones(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match=r"missing field `path`\nExpected: view_image\(path: string"):
        look(tmp_path)
