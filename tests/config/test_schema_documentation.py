"""Every key of the `marsrl` node is documented where it is defined."""

from __future__ import annotations

import ast
from pathlib import Path

from marsrl_verl.config import schema


def test_every_field_has_a_docstring():
    undocumented = []
    for node in ast.parse(Path(schema.__file__).read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        assert ast.get_docstring(node), node.name
        for field, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and not _is_text(after):
                undocumented.append(f"{node.name}.{ast.unparse(field.target)}")
    assert undocumented == []


def _is_text(node: ast.stmt | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and len(node.value.value) > 5
    )
