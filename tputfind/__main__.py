"""``tputfind``, and ``python -m tputfind``. It imports nothing before an interruption can be told in one line."""

import signal
import sys


def main() -> None:
    """Run the command line; Ctrl-C, SIGTERM and a lost terminal interrupt it from the first import on."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        from tputfind.commands import main as command_line

        command_line(prog_name="tputfind")
    except KeyboardInterrupt:  # while importing, or while something else was being told
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        sys.stderr.write("tputfind: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
