#!/usr/bin/env python
"""The same program as the `gpufleet` console script."""

import sys

from gpufleet.cli import main

if __name__ == "__main__":
    sys.exit(main())
