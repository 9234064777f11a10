class InputError(ValueError):
    """What the user gave cannot be used.

    The message is one paragraph that says what came, what is allowed and what to set. The command line prints it
    without a traceback.
    """
