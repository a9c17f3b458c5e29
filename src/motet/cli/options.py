"""Options that several commands share, so that they look and read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Url = Annotated[
    str, typer.Argument(metavar="URL", help="A broker's address, like motet://127.0.0.1:7701.")
]

DEFAULT_DIRECTORY = Path("run")
"""Where an overlay keeps its topology, its logs, and a folder for each broker."""
