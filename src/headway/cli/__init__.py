"""The command line: `headway COMMAND`. Each command lives in a module that is imported only when it is called."""

import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from headway.errors import HeadwayError

COMMANDS = {
    "doctor": "stack",
    "up": "stack",
    "down": "stack",
    "demo": "demo",
    "demo-prescale": "demo_prescale",
    "status": "models",
    "plan": "models",
    "release": "models",
    "rollback": "models",
    "pause": "models",
    "resume": "models",
    "report": "models",
    "webhook": "webhook",
    "judge": "judge",
    "calibrate": "calibrate",
    "forecast": "forecast",
    "backtest": "backtest",
    "schema": "models",
}
"""Command to module of `headway.cli`; the function has its name, `_` for `-`. The order is that of `--help`."""

DEBUG = "--debug"
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Where engines keep all cores busy, the threads of a linear algebra library wait for each other in loops: a forecast
of one second took one minute. One thread is as fast for what the commands calculate."""


def build(commands: Iterable[str]) -> typer.Typer:
    """Return the application with these commands; importing them is what costs time."""
    app = typer.Typer(
        name="headway",
        help="Bring a promoted model to all of the traffic, step by step and with proof.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def root(
        debug: Annotated[bool, typer.Option(DEBUG, help="Show the stack trace of an error.")] = False,
    ) -> None:
        """Bring a promoted model to all of the traffic, step by step and with proof."""

    for name in commands:
        app.command(name)(getattr(import_module(f"headway.cli.{COMMANDS[name]}"), name.replace("-", "_")))
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 failed with one message, 2 wrong usage."""
    for name in ONE_THREAD:
        os.environ.setdefault(name, "1")
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = DEBUG in given or os.environ.get("HEADWAY_DEBUG", "") not in ("", "0", "false")
    given = [argument for argument in given if argument != DEBUG]
    command = next((argument for argument in given if not argument.startswith("-")), None)
    try:
        app = build([command] if command in COMMANDS else COMMANDS)
        app(given, prog_name="headway")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except HeadwayError as error:
        return _failed(error.message, debug=debug)
    except KeyboardInterrupt:
        return _failed("interrupted; the same command again goes on from here", debug=False, code=130)
    except Exception as error:  # noqa: BLE001 - a bug is told in one line too; --debug shows the rest
        return _failed(f"unexpected {type(error).__name__}: {error}; run again with {DEBUG} to see where", debug=debug)
    return 0


def _failed(message: str, *, debug: bool, code: int = 1) -> int:
    if debug:
        traceback.print_exc()
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]error[/] {escape(message)}")
    return code
