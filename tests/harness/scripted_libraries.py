"""Stand-ins of vendors' libraries: their constants and answers are those of data/tools."""

import json
from dataclasses import asdict, is_dataclass
from enum import IntEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace

from tunemark.harness.vendors.cuda import THROTTLE_REASONS

TOOLS = Path(__file__).parent / "data" / "tools"


def told(record):
    """Return the known fields of a reading or of facts in one line."""
    content = asdict(record) if is_dataclass(record) else dict(record)
    known = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in content.items() if value not in (None, {})}
    return ", ".join(f"{name} {value}" for name, value in known.items())


class ScriptedLibrary(ModuleType):
    """A module whose functions give the answers of a file, or of `answers`; those that are named `failing` raise its error. `asked` holds the calls."""

    def __init__(self, name, error, failing=(), **answers):
        super().__init__(name)
        content = json.loads((TOOLS / f"{name}.json").read_text(encoding="utf-8"))
        self.error, self.failing, self.asked = type(error, (Exception,), {"value": 3}), set(failing), []
        setattr(self, error, self.error)
        for key, value in content["constants"].items():
            setattr(self, key, IntEnum(key, value) if isinstance(value, dict) else value)
        for key, answer in {**content["answers"], **answers}.items():
            setattr(self, key, self._function(key, answer))

    def _function(self, name, answer):
        def ask(handle=None, *_):
            self.asked.append((handle, name))
            if name in self.failing:
                raise self.error
            return answer

        return ask


class Handle(str):
    """A handle of a device, which cannot be hashed, as those of pynvml."""

    __slots__ = ()
    __hash__ = None


class ScriptedNvml(ScriptedLibrary):
    """A module like pynvml with two devices."""

    def __init__(self, failing=()):
        super().__init__("pynvml", "NVMLError", failing)
        self.NVMLError_Timeout, self.xids = type("NVMLError_Timeout", (self.error,), {"value": 10}), []
        for place, name in enumerate(THROTTLE_REASONS):
            setattr(self, name, 2 << place)
        self.nvmlDeviceGetCurrentClocksEventReasons = self._function(
            "nvmlDeviceGetCurrentClocksEventReasons", 1 | self.nvmlClocksEventReasonSwPowerCap
        )

    def _function(self, name, answer):
        if isinstance(answer, dict):
            return super()._function(name, SimpleNamespace(**answer))
        return super()._function(
            name, [SimpleNamespace(**each) if isinstance(each, dict) else each for each in answer] if isinstance(answer, list) else answer
        )

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802 - NVML's name
        return Handle(f"handle {index}")

    def nvmlDeviceGetNvLinkState(self, _handle, link):  # noqa: N802 - NVML's name
        if "nvmlDeviceGetNvLinkState" in self.failing or link >= 18:
            raise self.error
        return 1

    def nvmlEventSetWait_v2(self, *_):  # noqa: N802 - NVML's name
        if not self.xids:
            raise self.NVMLError_Timeout
        return SimpleNamespace(eventData=self.xids.pop(0))


def scripted_amdsmi(*failing, **answers):
    """Return a module like amdsmi with two devices."""
    return ScriptedLibrary("amdsmi", "AmdSmiException", failing, **answers)
