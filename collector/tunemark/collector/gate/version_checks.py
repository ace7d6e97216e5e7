"""Checks of versions: of the harness, of Python and of the libraries, against their releases, each other and the plan."""

import re
from collections.abc import Iterator
from datetime import date, timedelta

from packaging.version import InvalidVersion, Version

from tunemark.schema import VERSION
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import PACKAGES, VENDOR_PACKAGES, Backend, Method, Strategy

OLDEST_TORCH = Version("2.1")
BUILDS = {Backend.CUDA: "cpu|rocm|xpu", Backend.ROCM: "cpu|cu|xpu", Backend.XPU: "cpu|cu|rocm", Backend.NEURON: "rocm|xpu"}
"""Builds of torch that have no kernels for a family."""
RUNTIMES = {
    Backend.CUDA: "cuda|cudnn|nccl",
    Backend.ROCM: "rocm|hip|miopen|rccl",
    Backend.NEURON: "neuronx?-.+|aws-neuronx-.+",
    Backend.XPU: ".+",
    Backend.MPS: "metal|macos",
}
DAY = timedelta(days=1)
FIRST_VERSION = Version("0.1.0")
PYTHONS = range(9, 20)
"""Minor versions of Python 3 that the libraries support, or may soon."""
MOST_PATCHES, FIRST_PATCHES = 30, 4
"""Largest patch release of a Python, and of one that has just come out. They come every two months, sometimes faster."""
BUILD_KINDS = {"the CPU": "cpu", "CUDA": r"cu\d{2,3}", "ROCm": r"rocm\d*", "Intel GPUs": "xpu"}
"""Kinds of devices by the part of torch's local version that names them. Other parts are of source builds and vendors."""
OLDEST_CUDA, NEWEST_CUDA, MOST_CUDA_MINORS, CUDA_13 = (11, 0), (14, 2), 9, 13
"""Toolkits for which a torch of today is built, and those of some years ahead: a major release comes every two to three years."""
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Major release of CUDA -> oldest driver of NVIDIA that runs it (release notes of CUDA)."""
BEFORE_CUDA_13 = {"Kepler", "Maxwell", "Pascal", "Volta"}
REBUILT = 1
"""Minor versions of Python for which others than its authors may build a library before they do."""
FIRST_NF4 = Version("0.39.0")
"""First bitsandbytes with 4-bit weights (its changelog)."""
MINORS_AHEAD = 6
LARGEST_MAJOR = 100
"""Largest first number of a version; some packages use the year."""


def version_problems(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield each version that does not exist, that came after the run, or that cannot run what the plan asks for."""
    yield from _versions(s, facts)
    yield from _build(s, facts)
    yield from _requirements(s, facts)
    yield from _needed_packages(s)


def _versions(s: Submission, facts: FactBase) -> Iterator[Problem]:
    yield from _python(s.environment.python, s.started_at.date())
    yield from _harness(s)
    backend = s.environment.backend
    for package, text in s.environment.packages.items():
        field = f"environment.packages.{package}"
        if package not in {*PACKAGES, *VENDOR_PACKAGES}:
            yield Problem(field, repr(text), "is not among the packages that a record lists; see `tunemark doctor`")
            continue
        version = _version(text)
        if version is None or version.major > LARGEST_MAJOR:
            yield Problem(field, repr(text), "is not a version of a Python package")
            continue
        if package == "torch" and len(s.trace):
            if version < OLDEST_TORCH and backend is not Backend.NEURON:
                yield Problem(field, repr(text), f"the harness needs torch {OLDEST_TORCH} or newer")
            wrong = BUILDS.get(backend)
            if wrong and version.local and re.match(wrong, version.local):
                yield Problem(field, repr(text), f"this build has no kernels for the {backend.value} back end")
        listed = next((library for library in facts.known.libraries if library.library == package), None)
        if listed is None:
            continue
        day = listed.released_on.get(version.base_version) if not version.is_prerelease else None
        newest = listed.newest
        if day is not None:
            if s.started_at.date() < day - DAY:
                fix = f"was released on {day}, after this run on {s.started_at:%Y-%m-%d}; set the clock of the machine"
                yield Problem(field, repr(text), fix)
        elif (
            version > newest and (_far_ahead(version, newest) or s.started_at.date() <= listed.read_on) and not version.is_prerelease
        ) or (version.is_prerelease and version.major > newest.major + 1):
            yield Problem(field, repr(text), f"does not exist: the newest release of {package} is {newest}")
        elif version < newest and not (version.is_prerelease or _own_build(package, version) or version.is_postrelease):
            yield Problem(field, repr(text), f"{package} has no release of this version; keep the version that is installed")
    for name, text in s.environment.runtime.items():
        if backend in RUNTIMES and not re.fullmatch(RUNTIMES[backend], name):
            yield Problem(f"environment.runtime.{name}", repr(text), f"belongs to another stack than that of the {backend.value} back end")
        if not re.fullmatch(r"\d+(\.\d+){0,4}[\w.+~-]*", text):
            yield Problem(f"environment.runtime.{name}", repr(text), "is not a version")


def _own_build(package: str, version: Version) -> bool:
    """Return True for a local version that the authors do not use. Torch's authors use the kind of device only, such as +cpu."""
    kinds = "|".join(BUILD_KINDS.values())
    return version.local is not None and not (package == "torch" and re.fullmatch(kinds, version.local))


def _far_ahead(version: Version, newest: Version) -> bool:
    """Return True for a version that no library reaches before its list of releases is read again."""
    if version.major == newest.major:
        return version.minor > newest.minor + MINORS_AHEAD
    return version.major > newest.major + 1 or version.minor > MINORS_AHEAD


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _python(text: str, day: date) -> Iterator[Problem]:
    """Yield a Python that the libraries do not support, or that did not exist on the day of the run."""
    form = re.fullmatch(r"3\.(\d+)\.(\d+)((a|b|rc)\d+)?\+?", text)
    if form is None or int(form[1]) not in PYTHONS:
        yield Problem("environment.python", repr(text), f"is not a version of Python that the libraries support, 3.{PYTHONS[0]} or newer")
        return
    minor, patch = int(form[1]), int(form[2])
    # 3.9 came out in October 2020, and each next one a year later.
    released = date(2011 + minor, 10, 1)
    months = (day - released).days / 30
    if form[3] is None and months < 0:
        yield Problem("environment.python", repr(text), f"Python 3.{minor} came out in October {released.year}, after this run")
    elif patch > min(MOST_PATCHES, FIRST_PATCHES + max(0.0, months)):
        fix = f"Python 3.{minor} has fewer than {min(MOST_PATCHES, FIRST_PATCHES + max(0.0, months)):.0f} patch releases; they come every two months"
        yield Problem("environment.python", repr(text), fix)


def _build(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield builds of torch for two kinds of devices, for a CUDA that does not exist, or for one without kernels for the device."""
    text = s.environment.packages.get("torch", "")
    version, card = _version(text), facts.accelerators.get(s.plan.device.accelerator or "")
    parts = re.split(r"[.+_-]", version.local) if version is not None and version.local else []
    kinds = {kind for kind, pattern in BUILD_KINDS.items() if any(re.fullmatch(pattern, part) for part in parts)}
    field = "environment.packages.torch"
    if len(kinds) > 1:
        yield Problem(field, repr(text), f"is a build for {' and '.join(sorted(kinds))}; torch is built for one of them")
    toolkits = [(int(found[1]), int(found[2])) for part in parts if (found := re.fullmatch(r"cu(\d{2})(\d)", part))]
    runtime = re.match(r"(\d+)\.(\d+)", s.environment.runtime.get("cuda", ""))
    toolkits += [(int(runtime[1]), int(runtime[2]))] if runtime else []
    requirement = facts.known.requirements_of("torch", Version(version.base_version)).get("cuda") if version is not None else None
    # Builds of torch's authors have no local version, or only the toolkit. Others build for other toolkits, under names of their own.
    theirs = version is not None and re.fullmatch(r"(cu\d+)?", version.local or "") is not None
    own = theirs and version is not None and version.local is not None
    oldest = Version(requirement.least).major if requirement is not None and theirs else 0
    for major, minor in toolkits:
        if (
            own
            and requirement is not None
            and not Version(requirement.least) <= Version(f"{major}.{minor}") <= Version(requirement.newest or "99")
        ):
            fix = f"this torch is built for CUDA {requirement.least}{f' to {requirement.newest}' if requirement.newest else ' or newer'}"
            yield Problem(field, repr(text), fix)
            continue
        if major < oldest:
            yield Problem(field, repr(text), f"this torch is built for CUDA {oldest} or newer, and the record has CUDA {major}.{minor}")
        elif not OLDEST_CUDA <= (major, minor) <= NEWEST_CUDA or minor > MOST_CUDA_MINORS:
            yield Problem(field, repr(text), f"there is no CUDA {major}.{minor} for which torch is built")
        elif (driver := _driver_of(s)) and driver < OLDEST_DRIVER.get(major, 0):
            yield Problem(field, repr(text), f"CUDA {major} needs driver {OLDEST_DRIVER[major]} or newer, but its driver is {driver}")
        elif card is not None and card.architecture in BEFORE_CUDA_13 and major >= CUDA_13:
            yield Problem(field, repr(text), f"CUDA {major} has no kernels for {card.architecture}, the architecture of {card.name}")
    if not toolkits and (driver := _driver_of(s)) and driver < OLDEST_DRIVER.get(oldest, 0):
        fix = f"this torch is built for CUDA {oldest} or newer, which needs driver {OLDEST_DRIVER[oldest]} or newer"
        yield Problem("environment.devices.0.driver", repr(s.environment.devices[0].driver), fix)


def _driver_of(s: Submission) -> int:
    """Return the major version of the driver of an NVIDIA GPU, or 0."""
    driver = re.match(r"\d+", s.environment.devices[0].driver or "") if s.environment.devices else None
    return int(driver[0]) if driver and s.environment.backend is Backend.CUDA else 0


def _requirements(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield versions that cannot be installed together, and a transformers from before the family of the model."""
    versions = {name: version for name, text in s.environment.packages.items() if (version := _version(text)) is not None}
    python = re.match(r"3\.\d+", s.environment.python)
    known = versions | ({"python": Version(python[0])} if python else {})
    for name, version in versions.items():
        for needed, requirement in facts.known.requirements_of(name, Version(version.base_version)).items():
            other, field = known.get(needed), f"environment.packages.{name}"
            if other is None:
                continue
            if Version(other.base_version) < Version(requirement.least):
                yield Problem(
                    field, str(version), f"needs {needed} {requirement.least} or newer, but the record lists {other}; correct one of them"
                )
            elif requirement.newest is None:
                continue
            elif needed == "python":
                if other.minor > Version(requirement.newest).minor + REBUILT * (not requirement.closed):
                    yield Problem(field, str(version), f"has builds for Python up to {requirement.newest}, and this is {other}")
            elif other.release[:2] > Version(requirement.newest).release[:2] and not other.is_prerelease:
                yield Problem(
                    field, str(version), f"needs {needed} {requirement.newest} at most, but the record lists {other}; correct one of them"
                )
    transformers, model = versions.get("transformers"), facts.models.get(s.plan.model.key)
    if len(s.trace) and model is not None and transformers is not None and not transformers.is_prerelease:
        added = next((each for each in facts.known.architectures if (each.family, each.library) == (model.family, "transformers")), None)
        release = facts.known.released_on("transformers", transformers.base_version)
        if added is not None and release is not None and release.released_on < added.added_on - DAY:
            fix = f"came out on {release.released_on}, and the family {model.family} was added on {added.added_on}"
            yield Problem("environment.packages.transformers", str(transformers), fix)
    quantiser = versions.get("bitsandbytes")
    if len(s.trace) and s.plan.method is Method.QLORA and quantiser is not None and quantiser < FIRST_NF4:
        yield Problem("environment.packages.bitsandbytes", str(quantiser), f"4-bit weights came with {FIRST_NF4}")


def unlikely_versions(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a library on a Python that it has no build for, which others may have built: a reason to ask for a second run."""
    python = re.match(r"3\.(\d+)", s.environment.python)
    for name, text in s.environment.packages.items():
        version = _version(text)
        requirement = facts.known.requirements_of(name, Version(version.base_version)).get("python") if version is not None else None
        if python and requirement is not None and requirement.newest is not None and int(python[1]) > Version(requirement.newest).minor:
            fix = f"has builds for Python up to {requirement.newest}, and this is {s.environment.python}"
            yield Problem(f"environment.packages.{name}", repr(text), fix)


def _harness(s: Submission) -> Iterator[Problem]:
    harness = s.harness
    version = _version(harness.version)
    if version is None or not FIRST_VERSION <= version <= Version(VERSION):
        yield Problem("harness.version", repr(harness.version), f"is not a version of Tunemark; the newest is {VERSION}")
    if harness.commit is not None and len(set(harness.commit)) == 1:
        yield Problem("harness.commit", repr(harness.commit), "is not a commit")
    if (harness.commit is None) != (harness.dirty is None):
        fix = "a checkout and a package that was built from one have both, others have neither"
        yield Problem("harness.dirty", str(harness.dirty), f"harness.commit is {harness.commit!r}; {fix}")


def _needed_packages(s: Submission) -> Iterator[Problem]:
    """Yield the packages without which the run could not have trained."""
    plan, backend = s.plan, s.plan.device.backend
    if not len(s.trace) or not s.environment.packages:
        if len(s.trace):
            yield Problem("environment.packages", "{}", "a run that trained used torch and transformers; list their versions")
        return
    needed = {"torch": True, "transformers": True, "accelerate": True, "peft": plan.method is not Method.FULL}
    needed["bitsandbytes"] = plan.method is Method.QLORA or "8bit" in plan.optimizer.name
    needed["deepspeed"] = plan.device.strategy in {Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3}
    # All that is read of a GPU of NVIDIA is read through it.
    needed["nvidia-ml-py"] = backend is Backend.CUDA and (
        s.memory.device_used.peak_bytes is not None or bool(s.utilisation and s.utilisation.devices)
    )
    needed["liger-kernel"] = s.effective is not None and s.effective.fused_kernels == "liger"
    needed["torchao"] = plan.model.fp8_training != "none"
    # optimum-neuron has a kernel of its own under this name.
    needed["flash-attn"] = plan.model.attention == "flash_attention_2" and backend is not Backend.NEURON
    needed["flash-attn-3"] = plan.model.attention == "flash_attention_3" and backend is not Backend.NEURON
    for package, used in needed.items():
        if used and package not in s.environment.packages:
            yield Problem("environment.packages", f"no {package}", "the plan cannot run without it; list the versions of all packages used")
