"""The command line: ``tileoverlap`` and ``python -m tileoverlap``. One file a command.

Exit codes: 0 done (and, for run, correct), 1 a wrong result or a wait that reached its limit, 2 bad
input (one line on standard error, nothing written), 130 interrupted; launch has those of the
ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from tileoverlap import __version__
from tileoverlap.cli import bench, info, launch, plan, rates, run, simulate
from tileoverlap.cli._parser import Parser, UsageError
from tileoverlap.errors import Error, InvalidArgument

__all__ = ["main"]

EXIT_OK, EXIT_WRONG, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. `arguments`: without the program's name; None:
    sys.argv."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except (UsageError, InvalidArgument) as error:
        return _fail(str(error), EXIT_USAGE)
    except Error as error:
        return _fail(str(error), EXIT_WRONG)
    except MemoryError:
        return _fail("not enough memory for these sizes", EXIT_USAGE)
    except BrokenPipeError:
        # Whoever read our output has gone: nobody to tell. Python would complain once more while it
        # exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_WRONG
    except OSError as error:
        return _fail(
            f"{error.filename or 'standard output'}: {error.strerror or error}", EXIT_USAGE
        )
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)


def _run(arguments: Sequence[str] | None) -> int:
    parser = Parser(
        prog="tileoverlap", description="Overlapped return path of Mixture-of-Experts layers."
    )
    parser.add_argument("--version", action="version", version=f"tileoverlap {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for command in (bench, info, launch, plan, rates, run, simulate):
        command.add_parser(commands)
    options = parser.parse_args(arguments)
    if not hasattr(options, "command"):
        raise UsageError(
            "say what to do: bench, info, launch, plan, rates, run or simulate (tileoverlap --help)"
        )
    code: int = options.command(options)
    return code


def _fail(message: str, code: int) -> int:
    print("tileoverlap: error: " + " ".join(message.split()), file=sys.stderr)
    return code
