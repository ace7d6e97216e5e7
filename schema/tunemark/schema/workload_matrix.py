"""A file of data/workloads may hold a whole matrix: settings that all cells share, and one line per cell.

Each cell becomes a workload of its own, named `FILE-CELL`, so that everything else knows single cards only.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from tunemark.schema.errors import Exit, TunemarkError


def cells(content: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, card content) of each workload in a file's content.

    A cell is a table `[[cells]]` with `cell`, the end of its name, and dotted settings that replace the shared ones.
    """
    if "cells" not in content:
        yield place, content
        return
    shared = {name: value for name, value in content.items() if name != "cells"}
    names = set()
    for number, cell in enumerate(content["cells"], start=1):
        name = cell.get("cell")
        if not isinstance(name, str) or name in names:
            raise TunemarkError(f"{place}: cells[{number}].cell", name, "give each cell a name of its own", exit_code=Exit.INVALID)
        names.add(name)
        card = deepcopy(shared) | {"key": f"{shared['key']}-{name}"}
        for field, value in cell.items():
            if field != "cell":
                _put(card, field.split("."), value)
        yield f"{place}: cell {name}", card


def _put(card: dict[str, Any], path: list[str], value: object) -> None:
    *sections, last = path
    for section in sections:
        card = card.setdefault(section, {})
    if value == "none" and last in {"lora", "quantisation"}:
        # TOML has no null: a cell without adapters says so.
        card.pop(last, None)
    else:
        card[last] = value
