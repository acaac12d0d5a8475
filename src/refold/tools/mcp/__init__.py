"""MCP: tools that other programs offer, reached through the official SDK.

Public names: ToolServer, McpTool, load. The SDK itself is imported by `load` alone: it takes a second.
"""

from __future__ import annotations

from refold.tools.mcp.link import close_links
from refold.tools.mcp.server import McpTool, ToolServer, load

__all__ = ["McpTool", "ToolServer", "close_links", "load"]
