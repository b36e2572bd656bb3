"""`python -m posttrain`, and `accelerate launch posttrain`, which runs this folder as a script."""

import sys
from pathlib import Path

if not __package__:
    # Run as a script, the folder itself stands first on the path: its files would hide other modules, and `posttrain`
    # would be missing where it is not installed.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from posttrain.cli import process

if __name__ == "__main__":
    process()
