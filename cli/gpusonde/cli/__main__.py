"""The entry point, also as ``python -m gpusonde.cli``: it imports nothing before it can take a Ctrl-C."""

import sys


def start() -> int:
    """Run the command; interrupted before it could begin, it ends as it does later."""
    try:
        from gpusonde.cli.main import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(start())
