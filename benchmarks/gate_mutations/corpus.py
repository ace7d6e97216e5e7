"""All corruptions of submissions: those of the modules that register theirs on import, and those of the file of values."""

from pathlib import Path

from gate_mutations import copy_corruptions, setting_corruptions, trace_corruptions  # noqa: F401 - they register their corruptions
from gate_mutations.corruptions import CORRUPTIONS, read_values

read_values(Path(__file__).with_name("value_corruptions.toml"))
__all__ = ["CORRUPTIONS"]
