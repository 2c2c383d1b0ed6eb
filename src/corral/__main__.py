"""``python -m corral`` is ``corral``."""

from corral.cli import main

if __name__ == "__main__":
    main()
