"""Where the program starts, as `l2dp` and as `python -m l2dp`."""

import sys


def start() -> None:
    """The command line; an interrupt while it is still being loaded is no traceback either."""
    try:
        from l2dp.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    start()
