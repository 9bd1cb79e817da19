"""Names that came from outside, made fit for a terminal, a log line or a plot.

A star or field may be named anything that is text: with control characters that clear a terminal or
begin a new log line, with marks that reverse the direction of writing, or with ``$``, at which
matplotlib begins a formula.
"""

from __future__ import annotations

__all__ = ["plot_text", "printable", "printable_lines"]


def printable(text: object, limit: int | None = None) -> str:
    """Put ``?`` in place of each character that does not print.

    Parameters
    ----------
    text : object
        Text, or what has one (a path, a number).
    limit : int, optional
        Longest result, characters; a longer text is cut and ends with ``...``.

    Returns
    -------
    str
        One line without control characters, marks of direction or lone surrogates.
    """
    shown = "".join(letter if letter.isprintable() else "?" for letter in str(text))
    return shown if limit is None or len(shown) <= limit else shown[: max(limit - 3, 0)] + "..."


def printable_lines(text: object) -> str:
    """Do as `printable` with each line of a text that may have several, such as an error's."""
    return "\n".join(printable(line) for line in str(text).split("\n"))


def plot_text(text: object, limit: int | None = None) -> str:
    r"""Do as `printable`, and let matplotlib show ``$`` as it is (written ``\$``)."""
    return printable(text, limit).replace("$", r"\$")
