"""The base of every error that is the user's to mend: its message is one clear line."""


class ContiguaError(Exception):
    """Something foreseeable went wrong; the message says what, and what to do."""
