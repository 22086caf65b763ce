"""`python -m graphopt`."""

from __future__ import annotations

from graphopt.cli.main import main

if __name__ == "__main__":
    main()
