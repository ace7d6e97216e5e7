"""The catalogue: instances, devices, models and versions that exist, and what they can do."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.store.rates import precision_class
from tunemark.schema.errors import bare
from tunemark.schema.facts.names import suggest_instance
from tunemark.schema.physics.architecture import FAMILIES
from tunemark.schema.vocabulary import Dtype

STATE = re.compile(r"/\s*(P(?:[2-9]|1[0-5]))\b")
"""Performance states of NVIDIA devices, P0 to P15 from fastest to idle (nvidia-smi's manual)."""
NUMBER = re.compile(r"[0-9]+")
TOTAL_TOLERANCE = 0.09
"""GB against GiB, 7%, and rounding."""
INSTANCE = re.compile(r"\b[a-z]{1,3}\d[a-z0-9]*(?:-[a-z0-9]+)?[.-]\d*x?large\b", re.IGNORECASE)
"""Names of the form of AWS in other words, such as a device that is called by its instance."""


def named_instances(base: Base) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each instance name that a source prints, with the records that print it."""
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    records = [(run.id, run.source, run.labels) for run in base.runs]
    records += [(statement.id, statement.id[:3], dict(statement.labels)) for statement in base.statements.values()]
    for record, source, labels in records:
        found = {labels["instance"]} if "instance" in labels else set()
        found |= {match[0] for text in labels.values() for match in INSTANCE.finditer(text)}
        for name in sorted(found):
            names[source, name].append(record)
    for (_, name), ids in names.items():
        yield tuple(ids), name


def instance_exists(base: Base) -> Iterator[Found]:
    """Yield names of instances that nobody rents out, and names that are nearly right."""
    known = {name.lower(): name for name in base.facts.instances}
    plain = {bare(name): name for name in base.facts.instances}
    for records, name in named_instances(base):
        if name.lower() in known:
            continue
        if bare(name) in plain:
            right = plain[bare(name)]
            yield Found(
                SUSPICIOUS,
                records,
                f"instance {name!r}",
                f"the provider writes {right!r}; {name!r} is no name of it",
                {"printed": name, "name": right},
            )
        elif (refused := base.facts.refused_aws_size(name)) is not None:
            yield Found(
                IMPOSSIBLE, records, f"instance {name!r}", refused, {"printed": name, "near": suggest_instance(name, base.facts.instances)}
            )
        elif sizes := _other_sizes(name, base.facts.instances):
            yield Found(
                SUSPICIOUS,
                records,
                f"instance {name!r}",
                f"the price book has {', '.join(sizes)} and no {name}",
                {"printed": name, "near": sizes[0]},
            )


def _other_sizes(name: str, instances: Iterable[str]) -> list[str]:
    """Return the instances that differ from a name in one number only, as the sizes of a family do."""
    forms = _without_one_number(name)
    return sorted(known for known in instances if forms & _without_one_number(known))


def _without_one_number(name: str) -> set[str]:
    text = name.lower()
    return {f"{text[: digits.start()]}#{text[digits.end() :]}" for digits in NUMBER.finditer(text)}


def instance_holds(base: Base) -> Iterator[Found]:
    """Yield results whose instance has other devices, fewer of them, or other memory than is claimed."""
    rows = {row.instance.lower(): row for row in base.facts.prices}
    for run in base.runs:
        printed = run.labels.get("instance", run.conditions.instance or "")
        row = rows.get(printed.lower()) or rows.get((run.conditions.instance or "").lower())
        if row is None or run.accelerator is None:
            continue
        name = base.facts.accelerators[row.accelerator].name if row.accelerator in base.facts.accelerators else row.accelerator
        if row.accelerator != run.accelerator.key:
            yield Found(
                INCONSISTENT,
                (run.id,),
                f"{run.labels.get('accelerator', run.accelerator.name)} on {printed}",
                f"{row.instance} holds {row.accelerator_count:g} x {name}, and the run was on {run.accelerator.name}",
                {"holds": row.accelerator, "claimed": run.accelerator.key},
            )
            continue
        if run.conditions.accelerator_count and run.conditions.accelerator_count > row.accelerator_count:
            yield Found(
                IMPOSSIBLE,
                (run.id,),
                f"{run.conditions.accelerator_count} devices on {printed}",
                f"{row.instance} holds {row.accelerator_count:g}",
                {"holds": row.accelerator_count, "claimed": run.conditions.accelerator_count},
            )
        memory = base.facts.accelerators[row.accelerator].memory_gib
        totals = (
            ("device_memory_total_bytes", (memory or 0) * 2**30 * row.accelerator_count, "device memory"),
            ("device_memory_each_bytes", (memory or 0) * 2**30, "memory of one device"),
            ("host_memory_total_bytes", (row.memory_gib or 0) * 2**30, "host memory"),
        )
        for quantity, there, what in totals:
            claimed = run.span(quantity)
            if claimed and there and abs(claimed.value / there - 1) > TOTAL_TOLERANCE:
                yield Found(
                    INCONSISTENT,
                    (run.id,),
                    run.printed(quantity),
                    f"{row.instance} has {there / 2**30:g} GiB of {what}, {claimed.value / 2**30:.1f} GiB is claimed",
                    {"there": there, "claimed": claimed.value},
                )


def context_length(base: Base) -> Iterator[Found]:
    """Yield lengths of rows beyond what a model was made for, once for all results of a source."""
    longer: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    for run in base.runs:
        length = run.conditions.sequence_length
        if run.model is not None and length is not None and length > run.model.context_length:
            longer[run.source, run.model.key, length].append(run)
    for (_, key, length), runs in longer.items():
        model = base.facts.models[key]
        learned = FAMILIES[model.family].learned_positions
        why = (
            "its positions are a table of that many rows, so the run ends at once"
            if learned
            else "rotary positions beyond it run, and the model has never seen them"
        )
        yield Found(
            INCONSISTENT if learned else SUSPICIOUS,
            tuple(run.id for run in runs),
            f"{model.name} at {length:,} tokens",
            f"{length:,} > {model.context_length:,}, the context of {model.name}; {why}",
            {"sequence_length": length, "context_length": model.context_length},
        )


def precision_on_device(base: Base) -> Iterator[Found]:
    """Yield number formats that the matrix units of a device do not have."""
    for run in base.runs:
        named = precision_class(run.conditions.precision)
        if run.accelerator is None or named is None or "/" in named or not run.accelerator.peak_tflops:
            continue
        if Dtype(named) not in run.accelerator.peak_tflops:
            has = ", ".join(dtype.value for dtype in run.accelerator.peak_tflops)
            yield Found(
                SUSPICIOUS,
                (run.id,),
                f"{run.conditions.precision} on {run.accelerator.name}",
                f"the matrix units of {run.accelerator.name} know {has}, not {named}: it was another format, or emulated",
                {"claimed": named, "has": has},
            )


def device_names(base: Base) -> Iterator[Found]:
    """Yield names of devices with a performance state in them, which is no part of a name."""
    for run in base.runs:
        found = STATE.search(run.labels.get("accelerator", ""))
        if found and run.accelerator is not None:
            name = run.labels["accelerator"]
            yield Found(
                SUSPICIOUS,
                (run.id,),
                f"device {name!r}",
                f"the device is {run.accelerator.name}; {found[1]} is the performance state that nvidia-smi shows beside it, and {found[1]} is that of an idle device",
                {"printed": name, "state": found[1]},
            )


RULES = (
    Rule(
        "instance-exists",
        "an instance that nobody rents out",
        "catalogue",
        "A machine is one of those that a provider lists (data/prices).",
        (IMPOSSIBLE, SUSPICIOUS),
        instance_exists,
    ),
    Rule(
        "instance-holds",
        "an instance with other devices or memory than claimed",
        "catalogue",
        "An instance has the devices and the memory that its provider lists.",
        (INCONSISTENT, IMPOSSIBLE),
        instance_holds,
    ),
    Rule(
        "context-length",
        "rows longer than the model's context",
        "catalogue",
        "A model has as many positions as it was made for; learned positions end there.",
        (SUSPICIOUS, INCONSISTENT),
        context_length,
    ),
    Rule(
        "precision-on-device",
        "a number format that the device has not",
        "catalogue",
        "A format without matrix units is emulated, or another one was used.",
        (SUSPICIOUS,),
        precision_on_device,
    ),
    Rule(
        "device-name",
        "a device's name with something else in it",
        "catalogue",
        "Devices are called as their maker calls them; a state of a moment is no part of it.",
        (SUSPICIOUS,),
        device_names,
    ),
)
