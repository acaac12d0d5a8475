"""Main: the `refold` command, and the place where errors become a line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from refold import __version__

EXIT_RUN, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 it failed, 2 it was called wrongly."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:  # the one answer that should not wait for the rest
        print(f"refold {__version__}")
        sys.exit(0)
    if sys.stdout is None or sys.stderr is None:  # closed by the caller: there is nobody to tell
        sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, PTH123
        sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115, PTH123
    status = _run(words)
    if "asyncio" in sys.modules:  # all is told: a Ctrl-C that is passed on late must not change how it ended
        import signal

        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


def _run(words: list[str]) -> int:
    from refold.errors import ConfigError, RefoldError, RolloutCorrupt, RolloutNotFound

    try:
        if words in ([], ["chat"]) and _is_terminal():  # no options to parse: the prompt need not wait for that
            from refold.cli.talk import talk

            return talk()
        return _command(words)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _leave_pipe()
        return EXIT_RUN
    except RefoldError as error:
        _complain(str(error), words)
        return EXIT_USAGE if isinstance(error, (ConfigError, RolloutNotFound, RolloutCorrupt)) else EXIT_RUN
    except OSError as error:
        _complain(f"{error.filename or 'standard output'}: {error.strerror or error}", words)
        return EXIT_RUN
    except Exception as error:
        if os.environ.get("REFOLD_DEBUG"):
            raise
        _complain(f"{type(error).__name__}: {error} (a fault of refold's; REFOLD_DEBUG=1 shows where)", words)
        return EXIT_RUN


def _command(words: list[str]) -> int:
    import click

    from refold.cli.group import cli

    try:
        status = cli.main(args=words, prog_name="refold", standalone_mode=False)
        sys.stdout.flush()  # here a closed pipe can still be met quietly
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except click.Abort:
        return EXIT_INTERRUPTED
    return status if isinstance(status, int) else 0


def _is_terminal() -> bool:
    """Whether a person sits at both ends: without a command, they want to talk."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty() and sys.stdout.isatty()


def _complain(text: str, words: list[str]) -> None:
    from refold.views.shown import one_line

    line = one_line(text)
    if "--json" in words:
        from refold.core.jsonio import dump

        with suppress(OSError):
            print(dump({"type": "error", "message": line}).decode(), flush=True)
    print(f"refold: {line}", file=sys.stderr)


def _leave_pipe() -> None:
    """The reader has gone: say nothing, and keep the interpreter from trying again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
