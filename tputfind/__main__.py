"""``python -m tputfind``: the same as the ``tputfind`` command."""

from tputfind.cli import main

if __name__ == "__main__":
    main()
