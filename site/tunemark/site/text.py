"""Text of pages as inert Markup.

Text from submissions is untrusted: none of it may become Markdown, HTML, a link or a script.
"""

import re
import unicodedata
from functools import lru_cache

from markupsafe import Markup

# Every character that is active in HTML or inline Markdown. Numeric entities are inert in both, so that one
# function serves running text, table cells and attributes.
ACTIVE = re.compile(r"[&<>\"'`\\*_{}\[\]|~^#$]")
LOOKALIKES = str.maketrans({"<": "‹", ">": "›", "&": "＆", '"': "”", "'": "’", "`": "’", "\\": "/"})  # noqa: RUF001 - they look alike on purpose


def escape(value: object) -> Markup:
    """Return text as inert Markup. Markup is returned unchanged, None is empty, white space and control characters become single spaces."""
    if isinstance(value, Markup):
        return value
    return _escaped("" if value is None else str(value))


@lru_cache(maxsize=100_000)
def _escaped(text: str) -> Markup:
    """Return text as inert Markup. Thousands of pages repeat the same words, so they are kept."""
    return Markup(ACTIVE.sub(lambda match: f"&#{ord(match[0])};", one_line(text)))  # noqa: S704 - this is the escape itself


def code_spans(text: str) -> Markup:
    """Return our own text with its `code` marked up; everything else is escaped."""
    return Markup(re.sub("&#96;(.*?)&#96;", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - the text is escaped, with its backticks


def one_line(text: str) -> str:
    """Return text on one line, without control characters and bidirectional overrides."""
    if text.isprintable():
        return " ".join(text.split())
    kept = "".join(" " if unicodedata.category(char) in {"Cc", "Zl", "Zp"} else char for char in text if unicodedata.category(char) != "Cf")
    return " ".join(kept.split())


def title_text(text: str) -> str:
    """Return text for a page title without active characters, since the theme prints titles unescaped."""
    return one_line(text).translate(LOOKALIKES)
