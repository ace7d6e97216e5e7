"""The request of a run: the workload card and the options as they were given. Everything else in a plan follows from it."""

from typing import Annotated

from pydantic import Field

from tunemark.schema.records.base import Frozen, Key, Seconds, Setting, Sha256, Text
from tunemark.schema.records.plan import Launcher
from tunemark.schema.vocabulary import Backend, DataSource, Weights

OPTIONS = {
    "overrides": "--set",
    "max_steps": "--steps",
    "max_train_s": "--seconds",
    "timeout_s": "--timeout",
    "no_step_s": "--no-step-timeout",
}
"""Options of `tunemark run` whose name is not that of the field."""
LOCAL_WEIGHTS = "pretrained:DIRECTORY"
"""Weights from a local directory, whose path no record may hold."""


class Requested(Frozen):
    """The workload card and the options of `tunemark run`. Nothing in it is derived."""

    workload: Key
    """The workload card in data/workloads."""
    overrides: Annotated[tuple[Text, ...], Field(max_length=100)] = ()
    """`FIELD=VALUE` of each `--set`, in order."""
    weights: Text = "card"
    """`card`, `random`, `pretrained`, `pretrained:HUB_ID`, or `pretrained:DIRECTORY` for a local directory."""
    data: Text = "card"
    """`card`, `synthetic`, `hub:NAME`, or `file:NAME` with the name of the file without its folder."""
    data_sha256: Sha256 | None = None
    """Content hash of the training file."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """`--seed`."""
    max_steps: Setting | None = None
    """`--steps`."""
    epochs: Setting | None = None
    """`--epochs`."""
    max_train_s: Seconds | None = None
    """`--seconds`."""
    until_ci: Annotated[float, Field(gt=0, lt=1)] | None = None
    """`--until-ci`."""
    timeout_s: Seconds | None = None
    """`--timeout`."""
    no_step_s: Seconds | None = None
    """`--no-step-timeout`."""
    strict_timing: bool = False
    """`--strict-timing`."""
    probe: bool = True
    """False with `--no-probe`."""
    gates: bool = True
    """False with `--no-gates`."""
    save: bool = False
    """`--save`."""
    cold: bool = False
    """`--cold`."""
    backend: Backend | None = None
    """`--backend`."""
    devices: Setting | None = None
    """`--devices`."""
    strategy: Text | None = None
    """`--strategy`."""
    offload: Text | None = None
    """`--offload`."""
    launcher: Launcher = "torchrun"
    """`--launcher`."""
    nodes: Setting = 1
    """`--nodes`."""

    def sets(self, name: str) -> bool:
        """Return True if a field of the card is set by name, with --set."""
        return any(assignment.partition("=")[0] == name for assignment in self.overrides)

    @property
    def local_weights(self) -> bool:
        """True if pretrained weights come from a local directory."""
        return self.weights == LOCAL_WEIGHTS

    @property
    def pretrained(self) -> bool:
        """True if pretrained weights were asked for by option."""
        return self.weights.partition(":")[0] == Weights.PRETRAINED.value

    @property
    def has_file(self) -> bool:
        """True if the data is a local file."""
        return self.data.partition(":")[0] == DataSource.FILE.value

    def arguments(self) -> list[str]:
        """Return the words of the command after `tunemark run` that make this request."""
        words = [self.workload]
        for name, field in type(self).model_fields.items():
            value, option = getattr(self, name), OPTIONS.get(name, f"--{name.replace('_', '-')}")
            if name in {"workload", "data_sha256"} or value == field.default:
                continue
            if isinstance(value, tuple):
                words += [word for each in value for word in (option, each)]
            elif isinstance(value, bool):
                words.append(option if value else f"--no-{option.removeprefix('--')}")
            else:
                words += [option, str(value)]
        return words
