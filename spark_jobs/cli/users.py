"""Who types a command."""

import getpass
import os


def user_of_system() -> str:
    """The user, as the operating system knows them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # as in a container that runs under a number that has no name
        return f"user {os.getuid()}"
