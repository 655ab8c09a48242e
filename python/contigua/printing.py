"""Text of others, without what terminals obey and what cannot be written."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    r"""Return text without characters that cannot be seen or that terminals obey.

    Parameters
    ----------
    text
        What somebody else wrote.
    keep
        Such characters that stay, such as line ends of a message.

    Examples
    --------
    >>> print(printable("a\x1b[2J\u202eb\udc80\n"), printable("Größe [/x]"))
    a\x1b[2J\u202eb\udc80\n Größe [/x]
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )
