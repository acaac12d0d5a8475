"""The file that the type checker reads uses every public name."""

from __future__ import annotations

import ast
from pathlib import Path

import refold


def test_every_public_name_is_used_with_its_types():
    tree = ast.parse((Path(__file__).parent / "public_names.py").read_text(encoding="utf-8"))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert set(refold.__all__) <= used
