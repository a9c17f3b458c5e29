"""The list of commands, and the one place where errors become exit statuses."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from motet import __version__
from motet.cli import ending
from motet.cli.bench import bench
from motet.cli.broker import broker
from motet.cli.chaos import chaos
from motet.cli.demo import demo
from motet.cli.experiment import experiment
from motet.cli.journal import journal
from motet.cli.log import log
from motet.cli.overlay import overlay
from motet.cli.pipeline import pipeline
from motet.cli.pub import pub
from motet.cli.sim import sim
from motet.cli.status import status
from motet.cli.sub import sub
from motet.cli.tx import tx
from motet.cli.up import up
from motet.cli.voice import say
from motet.errors import MotetError

app = typer.Typer(
    name="motet",
    help="Content-based publish/subscribe: brokers, events by hand, the simulator, benchmarks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _unbroken(command: Callable[..., int]) -> Callable[..., int]:
    """Whoever read our output may leave at any time, `head` for one: that is fine."""

    @functools.wraps(command)
    def run_command(*arguments: Any, **options: Any) -> int:
        try:
            status = command(*arguments, **options)
            sys.stdout.flush()
            return status
        except BrokenPipeError:
            ending.go_silently()
            return ending.FINE

    return run_command


for command in (up, broker, pub, sub, status, sim, chaos, bench, demo):
    app.command()(_unbroken(command))
app.add_typer(journal)
app.add_typer(log)
app.add_typer(overlay)
app.add_typer(tx)
app.add_typer(experiment)
app.add_typer(pipeline)


def _tell_version(wanted: bool) -> None:
    if wanted:
        say(f"motet {__version__}")
        raise typer.Exit


@app.callback()
def _before_every_command(
    wants_version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_tell_version, is_eager=True),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; allowed anywhere.")
    ] = False,
) -> None:
    del wants_version, debug  # the first acts when it is parsed, the second is taken by `run`


def run(arguments: Sequence[str]) -> int:
    """One command, to its exit status."""
    debug = ending.debugging("--debug" in arguments)
    given = [word for word in arguments if word != "--debug"]
    try:
        result = app(given, prog_name="motet", standalone_mode=False)
        return result if isinstance(result, int) else ending.FINE
    except KeyboardInterrupt:
        return ending.INTERRUPTED
    except Exception as error:
        if debug:
            raise
        return _explain(error)


def _explain(error: Exception) -> int:
    if isinstance(error, MotetError):
        return ending.status_of(error)
    # Usage errors come from the parser below typer, whose class has moved between releases.
    if type(error).__name__ == "NoArgsIsHelpError":
        return ending.MISUSE  # the help that was asked for by saying nothing is printed
    explain = getattr(error, "format_message", None)
    if explain is not None:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "motet"
        problem = explain().strip() or "something is missing"
        ending.complain(problem.rstrip("."), f"`{command} --help` shows how it is used")
        return ending.MISUSE
    ending.complain(f"{type(error).__name__}: {error}", "--debug shows where it comes from")
    return ending.FAILED


def _open_standard_streams() -> None:
    """A caller may have closed them; then the next file or socket would take their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one


def main() -> None:
    _open_standard_streams()
    sys.exit(run(sys.argv[1:]))
