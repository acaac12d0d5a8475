"""Images: view_image lets the model look at an image file (spec §3.2; the real program has the same tool)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import msgspec

from refold.core.truncate import well_formed
from refold.errors import ToolFailed
from refold.tools import ToolContext, ToolResult
from refold.tools.functions import convert_arguments
from refold.tools.media_files import read_medium

SPEC: dict[str, Any] = {
    "type": "function",
    "name": "view_image",
    "description": "Shows you an image file (PNG, JPEG, GIF or WebP). Use it only for a path that you know.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file; relative to the session's directory."},
            "detail": {
                "type": "string",
                "enum": ["low", "high", "original"],
                "description": "How closely to look; original costs the most. Default high.",
            },
        },
        "required": ["path"],
        "additionalProperties": False,
    },
}


class Arguments(msgspec.Struct, frozen=True):
    """What the model may say."""

    path: str
    detail: Literal["low", "high", "original"] | None = None


class ViewImage:
    """The tool `view_image`. Its output is one image part; `ToolResult.details` has the file's `path`."""

    name = "view_image"
    spec = SPEC
    parallel = True
    needs_approval = False  # it reads one file; a sandbox lets any be read, too

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        asked = convert_arguments(arguments, Arguments, SPEC)
        if "image" not in context.modalities:
            raise ToolFailed("view_image failed: this model takes no images")
        path = Path(context.cwd, well_formed(asked.path))
        try:
            url = await asyncio.to_thread(read_medium, "image", path)
        except ValueError as error:
            raise ToolFailed(f"view_image failed: {error}") from error
        part = {"type": "input_image", "image_url": url, "detail": asked.detail or "high"}
        return ToolResult(output=[part], shaped=True, details={"path": str(path)})


view_image = ViewImage()
