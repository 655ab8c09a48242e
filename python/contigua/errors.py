"""The base of every error that is the user's to mend: its message is one clear line."""


class ContiguaError(Exception):
    """Something foreseeable went wrong; the message says what, and what to do."""


class ImpossibleError(ContiguaError):
    """Missing on this computer: a program or a part of the system; the message says which."""
