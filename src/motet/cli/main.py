"""The list of commands, and the one place where errors become exit statuses."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from motet import __version__
from motet.cli import console
from motet.cli.bench import bench
from motet.cli.broker import broker
from motet.cli.chaos import chaos
from motet.cli.console import say
from motet.cli.demo import demo
from motet.cli.drain import drain
from motet.cli.experiment import experiment
from motet.cli.journal import journal
from motet.cli.log import log
from motet.cli.move import move
from motet.cli.options import switch
from motet.cli.order import order
from motet.cli.overlay import overlay
from motet.cli.pipeline import pipeline
from motet.cli.pub import pub
from motet.cli.rebalance import rebalance
from motet.cli.sequencer import sequencer
from motet.cli.sim import sim
from motet.cli.status import status
from motet.cli.sub import sub
from motet.cli.tx import tx
from motet.cli.up import up
from motet.errors import MotetError

WIDEST = 120
"""The longest line of a help page, however wide the terminal is."""

app = typer.Typer(
    name="motet",
    help="Content-based publish/subscribe: run brokers, publish and subscribe, simulate, measure.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST},
)


def _unbroken(command: Callable[..., int]) -> Callable[..., int]:
    """The reader of our output, such as `head`, may leave at any time: that is not an error."""

    @functools.wraps(command)
    def run_command(*arguments: Any, **options: Any) -> int:
        try:
            status = command(*arguments, **options)
            sys.stdout.flush()
            return status
        except BrokenPipeError:
            console.go_silently()
            return console.FINE

    return run_command


for command in (
    *(up, broker, pub, sub, move, drain, rebalance, status),
    *(sim, chaos, bench, demo),
):
    app.command()(_unbroken(command))
app.add_typer(journal)
app.add_typer(log)
app.add_typer(overlay)
app.add_typer(tx)
app.add_typer(sequencer)
app.add_typer(order)
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
        typer.Option(
            "--version", help="Print the version and exit.", callback=_tell_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool, switch("--debug", "Print tracebacks of errors; may be given anywhere.")
    ] = False,
) -> None:
    del wants_version, debug  # the first acts when it is parsed, `run` handles the second


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit status."""
    debug = console.debugging("--debug" in arguments)
    given = [word for word in arguments if word != "--debug"]
    try:
        result = app(given, prog_name="motet", standalone_mode=False)
        return result if isinstance(result, int) else console.FINE
    except KeyboardInterrupt:
        return console.INTERRUPTED
    except Exception as error:
        if debug:
            raise
        return _explain(error)


def _explain(error: Exception) -> int:
    if isinstance(error, MotetError):
        return console.status_of(error)
    # Usage errors come from the parser below typer; their class has moved between releases.
    explain = getattr(error, "format_message", None)
    if explain is not None and type(error).__name__ == "NoArgsIsHelpError":
        say(explain())
        return console.MISUSE
    if explain is not None:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "motet"
        problem = explain().strip().replace(": Value error, ", ": ") or "the command is incomplete"
        console.complain(problem.rstrip("."), f"`{command} --help` shows its usage")
        return console.MISUSE
    console.complain(f"{type(error).__name__}: {error}", "--debug prints the traceback")
    return console.FAILED


def _open_standard_streams() -> None:
    """If the caller has closed them, the next file or socket would take their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one


def main() -> None:
    _open_standard_streams()
    sys.exit(run(sys.argv[1:]))
