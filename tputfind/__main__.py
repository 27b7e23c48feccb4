"""Entry point of ``tputfind`` and ``python -m tputfind``. It handles interrupts before it imports anything."""

import signal
import sys


def main() -> None:
    """Run the command line; Ctrl-C, SIGTERM and SIGHUP interrupt it with one line from the first import on."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        from tputfind.commands import main as command_line

        command_line(prog_name="tputfind")
    except KeyboardInterrupt:  # during imports, or while another error was being printed
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        sys.stderr.write("tputfind: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
