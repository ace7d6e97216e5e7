"""An axolotl configuration as it is read: its settings, which defaults were needed, and what a card cannot express."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from tunemark.collector.importers.axolotl_keys import DEFAULTS
from tunemark.schema.errors import Exit, TunemarkError

LARGEST_FILE = 2**20


@dataclass(slots=True)
class Config:
    """A configuration, and which of its defaults were needed."""

    raw: Mapping[str, Any]
    assumed: list[str] = field(default_factory=list)
    not_expressed: list[str] = field(default_factory=list)

    def get(self, key: str) -> Any:  # noqa: ANN401 - any YAML value
        """Return a setting, or its default, which is then noted."""
        value = self.raw.get(key)
        if value is None and key in DEFAULTS:
            self.assumed.append(f"{key} ({DEFAULTS[key]} by default)")
            return DEFAULTS[key]
        return value

    def number(self, key: str) -> float:
        """Return a number; YAML reads 1e-4 as a word."""
        value = self.get(key)
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise wrong(key, value, "give a number") from error

    def whole(self, key: str) -> int:
        """Return a whole number."""
        value = self.number(key)
        if not value.is_integer():
            raise wrong(key, self.get(key), "give a whole number")
        return int(value)

    def cannot(self, key: str, why: str) -> None:
        """Note a setting that the card cannot express."""
        self.not_expressed.append(f"{key}: {shown(self.raw.get(key))} ({why})")


def loaded(content: bytes, file: str) -> Mapping[str, Any]:
    """Return the settings of a configuration; raises TunemarkError (exit code 3) for what is none."""
    if len(content) > LARGEST_FILE:
        raise TunemarkError(file, f"{len(content):,} bytes", "too large for a configuration", exit_code=Exit.INVALID)
    try:
        # Aliases can make a small file huge when it is walked; a configuration has no use for them.
        text = content.decode("utf-8")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise TunemarkError(file, "an alias (*name)", "write the setting out", exit_code=Exit.INVALID)
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise TunemarkError(file, "", f"not valid YAML: {' '.join(str(error).split())}", exit_code=Exit.INVALID) from error
    if not isinstance(raw, dict) or not raw.get("base_model"):
        raise TunemarkError(file, "", "not an axolotl configuration: it has no base_model", exit_code=Exit.INVALID)
    return {str(name): value for name, value in raw.items()}


def shown(value: object) -> str:
    """Return a value as one short line."""
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - one line of a terminal


def wrong(field_name: str, value: object, fix: str) -> TunemarkError:
    """Return the error that names a setting, its value and the fix."""
    return TunemarkError(field_name, value, fix, exit_code=Exit.INVALID)
