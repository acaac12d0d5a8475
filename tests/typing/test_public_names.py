"""The file that the type checker reads uses every public name."""

from __future__ import annotations

import ast
from pathlib import Path

import refold
import refold.server


def test_every_public_name_is_used_with_its_types():
    tree = ast.parse((Path(__file__).parent / "public_names.py").read_text(encoding="utf-8"))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {*refold.__all__, *refold.server.__all__} <= used
