"""Modules of ours as the translator of script.py reads them: definitions and imports by name."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

import tunemark

OURS = "tunemark."
TABLE = re.compile(r"""tomllib\.loads\(Path\(__file__\)\.with_name\("([\w.]+)"\)\.read_text\(encoding="utf-8"\)\)""")


class NotTranslatedError(Exception):
    """Python that this module does not translate, with its place."""


@dataclass(frozen=True)
class Module:
    """A module with its definitions."""

    name: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed source."""
        # Found by its path where it is ours: looking for a module imports the package around it.
        folders, parts = (tunemark.__path__, self.name.split(".")[1:]) if self.name.startswith(OURS) else (sys.path, self.name.split("."))
        places = (Path(folder, *parts) for folder in folders)
        files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
        path = next((file for file in files if file.is_file()), None)
        if path is None:
            raise NotTranslatedError(f"{self.name} is not found")
        # A table in a file beside a module is a part of it.
        text = TABLE.sub(lambda file: repr(tomllib.loads(path.with_name(file[1]).read_text("utf-8"))), path.read_text("utf-8"))
        return ast.parse(text, str(path))

    @cached_property
    def definitions(self) -> dict[str, ast.stmt]:
        """Functions, classes and constants by name."""
        found: dict[str, ast.stmt] = {}
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    found |= {each.id: node for each in ast.walk(target) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                # `NAME |= more` is a part of the constant.
                before = found[node.target.id]
                whole = ast.BinOp(before.value, node.op, node.value)  # type: ignore[attr-defined]
                found[node.target.id] = ast.copy_location(ast.Assign([node.target], whole, lineno=node.lineno), node)
        return found

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Name -> module and name there, of what is imported from our own modules."""
        nodes = [node for node in self.tree.body if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS)]
        return {alias.asname or alias.name: (str(node.module), alias.name) for node in nodes for alias in node.names}

    def place(self, node: ast.expr) -> tuple[str, str] | None:
        """Return module and name of what a name, or a name in an imported module, stands for; None if it is not ours."""
        match node:
            case ast.Name(name) if name in self.definitions:
                return self.name, name
            case ast.Name(name):
                return self.imports.get(name)
            case ast.Attribute(ast.Name(alias), name) if alias in self.imports and is_module(".".join(self.imports[alias])):
                return ".".join(self.imports[alias]), name
        return None


@cache
def is_module(name: str) -> bool:
    """Return True for the name of a module."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def public_functions(name: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the functions of a module's `__all__` by name, with signature and paragraphs, also those imported from our other modules."""
    module = Module(name)
    for public in ast.literal_eval(
        next(node.value for node in module.tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    ):
        owner, own = (name, public) if public in module.definitions else module.imports[public]
        node = Module(owner).definitions[own]
        if isinstance(node, ast.FunctionDef):
            returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            paragraphs = [" ".join(part.split()) for part in (ast.get_docstring(node) or "").split("\n\n")]
            yield public, f"tunemark.{public}({ast.unparse(node.args)}){returned}", paragraphs
