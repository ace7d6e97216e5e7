"""Cards as TOML text: the standard library reads TOML and does not write it."""

import json
import re
from typing import Any

from pydantic import BaseModel

BARE = re.compile(r"[A-Za-z0-9_-]+")


def card_text(card: BaseModel) -> str:
    """Return a card as the TOML of its file: plain fields first, then one table for each part.

    TOML has no null: fields that are null are left out, so a card must not hold null where the default is something else.
    """
    content = card.model_dump(mode="json", exclude_none=True)
    plain = {name: value for name, value in content.items() if not isinstance(value, dict) and value != []}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in plain.items()]
    for name, part in content.items():
        if isinstance(part, dict) and part:
            lines += ["", f"[{_key(name)}]", *(f"{_key(inner)} = {_value(value)}" for inner, value in part.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(name)} = {_value(inner)}' for name, inner in value.items())} }}" if value else "{}"
    # JSON's strings are TOML's basic strings, but TOML wants the delete character escaped too.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")
