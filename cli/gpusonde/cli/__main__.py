"""``python -m gpusonde.cli``: the command without its entry point, as the demo starts its processes."""

import sys

from gpusonde.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
