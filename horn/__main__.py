"""The command ``horn``, which is ``python -m horn``, too."""

import signal


def main() -> None:
    """Load the commands and run one (``horn.cli.main``)."""
    # While they are loaded nobody answers Ctrl-C in words: it ends the process as it ends others,
    # without Python's traceback.
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import horn.cli  # not above, since the signal is set before

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    horn.cli.main()


if __name__ == "__main__":
    main()
