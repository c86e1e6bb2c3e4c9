"""The one exception for bad input: a single line saying what was given, what is allowed, what to do."""


class InputError(ValueError):
    """Bad input from a person: a spec file, a shape, a table row or a flag.

    The message is one line and complete in itself; the command line prints it and exits with code 2.
    """
