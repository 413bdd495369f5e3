"""`python -m l2dp` is the command line."""

from l2dp.cli import main

if __name__ == "__main__":
    main()
