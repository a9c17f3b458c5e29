"""The source of Motet, read without running it: its files, rooms, classes and imports."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE, LABS = ROOT / "src" / "motet", ROOT / "labs" / "motet_labs"
SUFFIXES = (".py", ".pyi", ".c", ".h")


def room_of(relative: Path) -> str:
    """A room is a top folder, or file, of `src/motet`, each folder of `protocol`, and `labs`."""
    parts = relative.parts
    if parts[0] == "protocol" and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0].removesuffix(".py")


class Class(NamedTuple):
    module: str
    name: str
    bases: tuple[str, ...]
    """Full names, of our own classes and of others."""
    methods: frozenset[str]

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"


class Source:
    """Two packages, of this repository unless others are named: `motet` in `src`, and `motet_labs`
    in `labs`."""

    def __init__(self, package: Path = PACKAGE, labs: Path = LABS) -> None:
        self.package, self.labs = package, labs
        self.files = sorted(self._glob("*.py"))
        self.trees = {path: ast.parse(path.read_text()) for path in self.files}

    def relative(self, path: Path) -> Path:
        """The path in its package; the labs are a room beside those of `motet`."""
        if path.is_relative_to(self.labs):
            return Path("labs") / path.relative_to(self.labs)
        return path.relative_to(self.package)

    def path(self, relative: str) -> Path:
        """The inverse of `relative`."""
        first, _, rest = relative.partition("/")
        return self.labs / rest if first == "labs" else self.package / relative

    def module(self, path: Path) -> str:
        package = self.labs if path.is_relative_to(self.labs) else self.package
        parts = path.relative_to(package.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def _glob(self, pattern: str) -> Iterator[Path]:
        return chain(self.package.rglob(pattern), self.labs.rglob(pattern))

    # ── lines ────────────────────────────────────────────────────────────────────────────

    @cached_property
    def lines(self) -> dict[str, int]:
        """By top folder; C files count, too."""
        found: dict[str, int] = defaultdict(int)
        for path in self._glob("*"):
            if path.suffix in SUFFIXES:
                room = self.relative(path).parts[0].removesuffix(".py")
                found[room] += path.read_bytes().count(b"\n")
        return dict(found)

    def files_with(self, word: str) -> list[Path]:
        pattern = re.compile(rf"\b{re.escape(word)}\b")
        return [path for path in self.files if pattern.search(path.read_text())]

    # ── imports ──────────────────────────────────────────────────────────────────────────

    def imports(self, path: Path) -> Iterator[str]:
        """Full names of what a file imports: modules, and names in them."""
        for node in ast.walk(self.trees[path]):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative imports hide the direction"
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    # ── classes ──────────────────────────────────────────────────────────────────────────

    @cached_property
    def classes(self) -> dict[str, Class]:
        """By full name."""
        found: dict[str, Class] = {}
        for path, tree in self.trees.items():
            module, known = self.module(path), self._names[self.module(path)]
            for node in ast.walk(tree):
                if not isinstance(node, ast.ClassDef):
                    continue
                bases = tuple(
                    self._defined(_spelt(text, known, module))
                    for text in map(_base, node.bases)
                    if text
                )
                methods = frozenset(
                    each.name
                    for each in node.body
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                )
                made = Class(module, node.name, bases, methods)
                found[made.full_name] = made
        return found

    @cached_property
    def _names(self) -> dict[str, dict[str, str]]:
        """By module: what imported names stand for."""
        return {self.module(path): _names(tree) for path, tree in self.trees.items()}

    def _defined(self, name: str) -> str:
        """The full name under which something is defined, if this one comes from a package that
        only imports it for others."""
        passed = {name}
        while True:
            module, _, last = name.rpartition(".")
            while module and module not in self._names:
                module, _, before = module.rpartition(".")
                last = f"{before}.{last}"
            first, _, rest = last.partition(".")
            origin = self._names.get(module, {}).get(first)
            if origin is None:
                return name
            name = f"{origin}.{rest}" if rest else origin
            if name in passed:
                return name
            passed.add(name)

    def own_bases(self, name: str) -> list[str]:
        """Those of our own classes that a class inherits from, itself included; nearest first."""
        found = [name]
        for each in found:
            found += [b for b in self.classes[each].bases if b in self.classes and b not in found]
        return found

    def depth(self, name: str) -> int:
        """Own classes in the longest chain from this one upwards: 1 if it has no own base."""
        own = [base for base in self.classes[name].bases if base in self.classes]
        return 1 + max(map(self.depth, own), default=0)

    def is_error(self, name: str) -> bool:
        """Exceptions form a tree by whose fault it is, as deep as there are kinds of faults."""
        bases = {b for each in self.own_bases(name) for b in self.classes[each].bases}
        return any(base.rpartition(".")[2] in ("Exception", "BaseException") for base in bases)

    def methods(self, name: str) -> set[str]:
        """With those that are inherited from own classes."""
        return {m for each in self.own_bases(name) for m in self.classes[each].methods}

    def public_methods(self, name: str) -> set[str]:
        return {method for method in self.methods(name) if not method.startswith("_")}

    @cached_property
    def split(self) -> list[str]:
        """Classes with a base that is a part of them in another file: nobody else inherits from
        it or imports it, tests and planted bugs apart."""
        children: dict[str, list[str]] = defaultdict(list)
        for name, each in self.classes.items():
            for base in each.bases:
                children[base].append(name)
        users: dict[str, set[str]] = defaultdict(set)
        for path in self.files:
            if self.relative(path).parts[0] != "testing":
                for name in self.imports(path):
                    users[self._defined(name)].add(self.module(path))
        return [
            only
            for base, (only, *others) in children.items()
            if base in self.classes
            and not others
            and users[base] == {self.classes[only].module}
            and self.classes[only].module != self.classes[base].module
        ]

    @cached_property
    def defined_twice(self) -> dict[str, list[str]]:
        """Names of classes that are defined in several places; private ones count, too."""
        places: dict[str, list[str]] = defaultdict(list)
        for each in self.classes.values():
            places[each.name].append(each.module)
        return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def _names(tree: ast.Module) -> dict[str, str]:
    """What imported names stand for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:  # `import a.b` names a
                name = alias.asname or alias.name.partition(".")[0]
                found[name] = alias.name if alias.asname else name
    return found


def _base(node: ast.expr) -> str:
    """How a base is written, without its parameters."""
    if isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _spelt(text: str, known: dict[str, str], module: str) -> str:
    """The full name of what a module writes like this."""
    first, _, rest = text.partition(".")
    if rest:
        return f"{known.get(first, f'{module}.{first}')}.{rest}"
    return known.get(first, f"{module}.{first}")
