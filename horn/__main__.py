"""``python -m horn`` is ``horn``."""

from horn.cli import main

if __name__ == "__main__":
    main()
