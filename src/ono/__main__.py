"""Run the command line as `python -m ono`."""

from ono.cli.app import main

if __name__ == "__main__":
    main()
