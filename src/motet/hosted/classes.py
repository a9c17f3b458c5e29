"""Classes of hosted clients, by their names in the topology file."""

from __future__ import annotations

from importlib import import_module

from motet.errors import MisuseError
from motet.hosted.application import Hosted


def load(path: str) -> type[Hosted]:
    """The class of `package.module:Class`; `MisuseError` if there is none that can be hosted."""
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as problem:  # whatever the module does when it is imported
        text = f"{path} cannot be imported: {type(problem).__name__}: {problem}"
        raise MisuseError(f"{text}; install it where the broker runs, or set PYTHONPATH") from None
    if not isinstance(found, type) or not issubclass(found, Hosted):
        raise MisuseError(f"{path} is no class that derives from motet.hosted.Hosted")
    return found
