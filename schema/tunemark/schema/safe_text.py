r"""Neutralise text from other people at the place where it is shown: terminals and logs, Markdown, CSV, workflow commands.

Every function returns one line. Characters that a reader cannot see, or that a terminal obeys, are shown as escapes: `\x1b`.
Text of our own, without such characters, is returned unchanged by `terminal`.
"""

import json
import re
import unicodedata

# Python calls these printable, but they take no room or show nothing: fillers, blanks, joiners and variation selectors.
_BLANK = frozenset(
    map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10)))
) | frozenset(map(chr, range(0xE0100, 0xE01F0)))
# GitHub obeys `::command` at the start of a line, after blanks, and the older `##[command]` anywhere in it.
_COMMAND = re.compile(r"\A(\s*):|##(?=\[|\Z)")
# A tag begins with one of these after its bracket; other brackets, as in `<=`, are text within HTML too.
_MARKUP = re.compile(r"\||<(?=[A-Za-z/!?])")
_UNSEEN_IN_JSON = re.compile(r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e01ef]")
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE)
# Spreadsheets run a cell that begins with one of these; the last four are the full-width forms.
_FORMULA = frozenset("=+-@\t\r\uff1d\uff0b\uff0d\uff20")


def terminal(text: str) -> str:
    r"""Return text as one visible line for a terminal or a log.

    Control, bidirectional, zero-width, tag and unassigned characters become escapes such as `\x1b`, and so do line breaks.
    The line cannot begin a workflow command of GitHub.
    """
    return _COMMAND.sub(lambda match: r"#\x23" if match[1] is None else rf"{match[1]}\x3a", _visible(text))


def markdown(text: str) -> str:
    r"""Return text as inline code for Markdown, also within a table or HTML.

    GitHub makes no link, mention, issue reference, formula or HTML of what is in inline code. A backtick, which could end it, is
    shown as an apostrophe. Bars, which end a cell of a table, and brackets that begin a tag become escapes such as `\x7c`.
    """
    shown = _MARKUP.sub(lambda match: _escape(match[0]), terminal(text).replace("`", "'"))
    return f"`{shown}`" if shown.strip() else "(empty)"


def is_formula(text: str) -> bool:
    """Return True if a spreadsheet may read a text as a formula."""
    return text.lstrip(" \n")[:1] in _FORMULA and not _NUMBER.fullmatch(text)


def shown_json(text: str) -> str:
    """Return JSON in which the characters that JSON allows, and that a terminal obeys or does not show, are escaped."""
    return _UNSEEN_IN_JSON.sub(lambda match: json.dumps(match[0])[1:-1], text)


def workflow_data(text: str) -> str:
    """Return the message of a workflow command of GitHub. Line breaks are kept, encoded."""
    return _visible(text, keep="\r\n").replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def workflow_property(text: str) -> str:
    """Return the value of a property of a workflow command of GitHub, such as `file`."""
    return workflow_data(text).replace(":", "%3A").replace(",", "%2C")


def shortened(text: str, most: int) -> str:
    """Return text cut to `most` characters, with its length if it was cut."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def _visible(text: str, keep: str = "") -> str:
    """Return text with an escape for each character that is not seen, except those to keep."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if character in keep or is_visible(character) else _escape(character) for character in text)


def is_visible(character: str) -> bool:
    """Return False for control, bidirectional, zero-width, filler and unassigned characters."""
    return character not in _BLANK and (character.isprintable() or unicodedata.category(character) == "Zs")


def _escape(character: str) -> str:
    letter, width = next((letter, width) for letter, width in (("x", 2), ("u", 4), ("U", 8)) if ord(character) < 16**width)
    return f"\\{letter}{ord(character):0{width}x}"
