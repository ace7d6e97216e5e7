"""Checks of the telemetry of a run: the samples of host and devices, their power, clocks and energy, against each other and the work.

Some figures are possible but unlikely; these are accepted, and need a second run.
"""

from collections.abc import Iterator

from tunemark.collector.gate.machine_checks import MOST_WATTS, OWNERS_CARDS, board_words
from tunemark.collector.gate.trace_checks import BUSY_TRAINING
from tunemark.schema.derive import Derived
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.utilisation import executed_share
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import DeviceUse
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import DEVICE_INTERVAL_S, HOST_INTERVAL_S, SEEN_OF_RESERVED, SLOWEST_INTEGRATION_S, Backend, Status

POWER_TOLERANCE = 1.3
"""Board power is a limit of means over milliseconds; readings overshoot it."""
MOST_DEVICES_OF_A_NODE = 128
FASTEST_MHZ = 4_500
COOLANT_C, HOTTEST_C = 10, 120
IDLE_TOLERANCE = 0.8
ENERGY_AGREES, ENERGY_AGREES_WELL, ENERGY_USUAL = (0.5, 2.0), (0.75, 4 / 3), (0.92, 1.08)
"""Energy over mean power x time: with few samples, with MANY_SAMPLES, and of known runs. Counter and samples are two instruments."""
FEWEST_SAMPLES, MANY_SAMPLES, SURELY_VARIED = 5, 50, 100
LEAST_IDLE_W = 0.5
"""Watts below which no powered board idles."""
IDLE_PART = 0.03
COMPUTING, COLDEST_C = 0.2, 22
IDLE_POWER, USUAL_POWER = 0.25, (0.2, 0.5)
"""Share of its board power that a device takes at least at more than COMPUTING of its dense peak; usually at least the first plus the
second times that share."""
IDLE_OF_WORK = 0.8
"""Power before the run over power at more than COMPUTING of the dense peak, at most. Idle boards idle at 10 to 25% of their power."""
BUSY_AT_LEAST, CLOCK_TOLERANCE = 0.9, 1.1
"""Busy time over executed FLOP/s / peak, and executed FLOP/s over the peak at the mean clock: a peak is given for a nominal clock."""
OWN_LIMIT, NAMED_LIMIT = 1.1, 1.05
"""Mean power over the limit that is set, which is enforced over milliseconds; the limit over the board power of server boards, usually."""
RATE_TOLERANCE = 1.1
"""Samples over those that fit: a monitor waits the interval between two samples, and catches up after a delay."""
BUSY_TOLERANCE, MEAN_TOLERANCE, SURE_MEAN = 1.3, 1.1, 1.01
"""Busy cores over cores, of a sample, of the mean of some, and of MANY_SAMPLES: a sample is a difference of counters that tick apart."""
PART_OF_A_SAMPLE = 0.01
"""Least share of time x samples: only the first sample may stand for less than an interval, the time since the window began."""
SLOWEST_MHZ = 100
FASTEST_OVER_NOMINAL = 1.35
"""Clock over the one that the dense peak of a card is given for: the highest boost of a server board is a quarter above it."""
LEAST_FED, BUSY_USUALLY, WAITED = 0.1, 0.6, 0.1
"""Busy cores of the host for each GPU in training, usually at least; busy share of a device, usually at least; share of the time in which
both training waits for samples and its device is busy, usually at most."""
HBM_GB_S, HBM_GIB, FASTEST_HBM_MHZ = 1_500, 40, 2_500
"""Devices with so much memory of such a bandwidth have stacked memory; their compute units never run faster."""
WINDOW_AGREES, LATE_SAMPLES = (0.8, 1.05), 4
"""Time between the readings of energy over the time of the steady window, and intervals that its first and last reading may be late: the
harness takes the first and the last reading inside the window."""
FEWEST_OF_FITTING, LOST_SAMPLES = 0.6, 0.05
"""Samples over those that fit into the steady window, usually at least, and surely."""
HOST_SAMPLES = "utilisation.samples"
COOL_C = 60
"""Temperature below which no device lowers its clocks for heat; their limits begin above 80 degrees."""
SAME_READING = 1e-12
PAIRS = (("busy_mean", "busy_peak"), ("power_mean_w", "power_peak_w"), ("clock_mean_mhz", "clock_min_mhz"))
"""Figures that are made of the same readings: both are known, or neither."""
READ_PAST_S = 2**26
"""Bytes by which memory in use may differ between two readings at the same moment."""
THROTTLE_REASONS = {"application_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown"}
THROTTLE_REASONS |= {"hw_power_brake_slowdown", "display_clock_setting", "throttled"}


def telemetry_problems(submission: Submission, derived: Derived | None, facts: FactBase) -> Iterator[Problem]:
    """Yield each sample or sum of samples that is impossible, or that contradicts the work or another figure."""
    card = facts.accelerators.get(submission.plan.device.accelerator or "")
    yield from _host(submission)
    yield from _sampling(submission)
    yield from _lost_samples(submission, derived)
    yield from _use(submission, card)
    yield from _same_readings(submission)
    yield from _varied(submission)
    yield from _own_limit(submission)
    yield from _energy(submission, derived, card)
    yield from _energy_source(submission)
    share = executed_share(submission, facts.models.get(submission.plan.model.key), card)
    if share is not None and share > COMPUTING:
        yield from _at_work(submission, share, card)


def _host(s: Submission) -> Iterator[Problem]:
    """Yield more busy cores than the host has."""
    use, cores = s.utilisation, s.environment.cpu_logical_cores
    if use is None:
        return
    if use.cpu_busy_peak is not None and use.cpu_busy_peak > cores * BUSY_TOLERANCE + 0.5:
        yield Problem("utilisation.cpu_busy_peak", f"{use.cpu_busy_peak:g} cores", f"the host has {cores} logical cores")
    for name in ("cpu_busy_mean", "foreign_cpu_busy_mean"):
        if use.samples and getattr(use, name) is None:
            yield Problem(f"utilisation.{name}", "null", "each sample counts busy cores; keep the original record")
    own, foreign = use.cpu_busy_mean or 0.0, use.foreign_cpu_busy_mean or 0.0
    most = cores * SURE_MEAN + 0.25 if use.samples >= MANY_SAMPLES else cores * MEAN_TOLERANCE + 0.5
    if foreign > cores * BUSY_TOLERANCE + 0.5:
        yield Problem("utilisation.foreign_cpu_busy_mean", f"{foreign:g} cores", f"the host has {cores} logical cores")
    # The mean of own work is over all machines, and that of other work is of the machine where it is highest.
    elif s.plan.device.nodes == 1 and use.samples >= FEWEST_SAMPLES and own + foreign > most:
        fix = f"together with {own:g} busy cores of the run more than the {cores} logical cores of the host"
        yield Problem("utilisation.foreign_cpu_busy_mean", f"{foreign:g} cores", fix)


def _sampling(s: Submission) -> Iterator[Problem]:
    """Yield intervals that are not those of the harness, samples that do not fit into the time, and means without samples."""
    use, trained_s = s.utilisation, s.trace.completed_at_s[-1] - s.trace.started_at_s if len(s.trace) else s.process.wall_s
    if use is None:
        return
    if use.interval_s != HOST_INTERVAL_S:
        fix = f"the harness samples every {HOST_INTERVAL_S:g} s; keep the original record"
        yield Problem("utilisation.interval_s", f"{use.interval_s:g}", fix)
    most = trained_s / HOST_INTERVAL_S * RATE_TOLERANCE * s.plan.device.nodes + 2
    if use.samples > most:
        yield Problem("utilisation.samples", str(use.samples), f"at most {most:.0f} fit into {trained_s:.1f} s of training")
    mean, peak = use.cpu_busy_mean, use.cpu_busy_peak
    if not use.samples and mean is not None:
        yield Problem("utilisation.samples", "0", "a mean needs a sample")
    if mean is not None and peak is not None and s.plan.device.nodes == 1 and peak < mean * (1 - 1e-6):
        yield Problem("utilisation.cpu_busy_peak", f"{peak:g}", f"below the mean {mean:g}")
    if mean is not None and s.plan.device.backend is Backend.CPU and len(s.trace) and mean < BUSY_TRAINING:
        yield Problem("utilisation.cpu_busy_mean", f"{mean:g}", "a CPU that trains is busy")
    interval_s = DEVICE_INTERVAL_S.get(s.environment.backend)
    if interval_s is None:
        return
    between_s = use.energy.window_s if use.energy is not None and use.energy.window_s else trained_s
    most = min(trained_s, between_s) / interval_s * RATE_TOLERANCE + 2
    for index, device in enumerate(use.devices):
        if device.samples > most:
            fix = f"at most {most:.0f} fit into the time between the first and the last one at one every {interval_s:g} s"
            yield Problem(f"utilisation.devices.{index}.samples", str(device.samples), fix)
    for node in {device.node for device in use.devices}:
        counts = {device.samples for device in use.devices if device.node == node}
        if len(counts) > 1:
            fix = "all devices of a machine are read together, so that their numbers of samples are equal"
            yield Problem("utilisation.devices", ", ".join(map(str, sorted(counts))), fix)


def _varied(s: Submission) -> Iterator[Problem]:
    """Yield power that never changed in many samples, and throttling for less than a sample."""
    for index, use in enumerate(s.utilisation.devices if s.utilisation else ()):
        field = f"utilisation.devices.{index}"
        flat = use.power_mean_w and use.power_peak_w is not None and use.power_peak_w <= use.power_mean_w * (1 + 1e-9)
        if flat and use.samples >= SURELY_VARIED:
            fix = f"is the mean of {use.samples} samples too; the power of a device that trains changes from one to the next"
            yield Problem(f"{field}.power_peak_w", f"{use.power_peak_w:g} W", fix)
        for reason, share in use.throttle_shares.items():
            if share * use.samples < PART_OF_A_SAMPLE:
                fix = f"is less than one of {use.samples} samples; a reason is listed if a sample has it"
                yield Problem(f"{field}.throttle_shares.{reason}", f"{share:g}", fix)


def _own_limit(s: Submission) -> Iterator[Problem]:
    """Yield devices that took more power on average than they were limited to. The first machine lists its devices in order."""
    used = [use for use in s.utilisation.devices if not use.node] if s.utilisation else []
    if len(used) != len(s.environment.devices):
        return
    for index, (use, device) in enumerate(zip(used, s.environment.devices, strict=True)):
        limit_w = device.power_limit_w
        if limit_w and use.power_mean_w is not None and use.samples >= FEWEST_SAMPLES and use.power_mean_w > OWN_LIMIT * limit_w:
            fix = f"environment.devices.{index}.power_limit_w is {limit_w:g}; a device takes no more than its limit"
            yield Problem(f"utilisation.devices.{index}.power_mean_w", f"{use.power_mean_w:g} W", fix)


def _lost_samples(s: Submission, derived: Derived | None) -> Iterator[Problem]:
    """Yield devices whose monitor took hardly any of the samples that fit into the steady window, without a stated reason."""
    for share, problem in _shares_of_fitting(s, derived):
        if share < LOST_SAMPLES and problem.field != HOST_SAMPLES:
            yield problem


def _few_samples(s: Submission, derived: Derived) -> Iterator[Problem]:
    """Yield far fewer samples than fit into the steady window, of the host or of a device."""
    for share, problem in _shares_of_fitting(s, derived):
        if (share >= LOST_SAMPLES or problem.field == HOST_SAMPLES) and share < FEWEST_OF_FITTING:
            yield problem
    use, unstable = s.utilisation, derived.window is not None and derived.window.steps and not derived.window.stable
    # Any window, wherever it began, holds at least a few seconds of training.
    if use is not None and unstable and 0 < use.samples < FEWEST_SAMPLES and len(s.trace) > MANY_SAMPLES and s.plan.device.nodes == 1:
        fix = f"one every {HOST_INTERVAL_S:g} s; {len(s.trace)} steps took {s.trace.completed_at_s[-1] - s.trace.started_at_s:.1f} s"
        yield Problem(HOST_SAMPLES, str(use.samples), fix)


def _shares_of_fitting(s: Submission, derived: Derived | None) -> Iterator[tuple[float, Problem]]:
    """Yield samples over those that fit into the steady window, if many fit, with the problem of too few.

    Earlier rules began a window without a stable part elsewhere.
    """
    use, window_s, interval_s = s.utilisation, _window_s(s, derived), DEVICE_INTERVAL_S.get(s.environment.backend)
    if use is None or not window_s or derived is None or derived.window is None or not derived.window.stable:
        return
    counts = [(HOST_SAMPLES, use.samples, HOST_INTERVAL_S)]
    counts += [(f"utilisation.devices.{index}.samples", each.samples, interval_s) for index, each in enumerate(use.devices) if interval_s]
    for field, samples, every_s in counts:
        fitting = window_s / every_s
        if fitting > MANY_SAMPLES:
            fix = f"one every {every_s:g} s makes {fitting:.0f} in the {window_s:.1f} s of the steady window"
            yield samples / fitting, Problem(field, str(samples), fix)


def _use(s: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    devices, count = s.utilisation.devices if s.utilisation else (), s.plan.device.count
    if s.plan.device.backend is Backend.CPU and devices:
        yield Problem("utilisation.devices", f"{len(devices)} devices", "the CPU back end monitors no devices")
    indexes = [f"node {use.node}, device {use.index}" for use in devices]
    for index in sorted({index for index in indexes if indexes.count(index) > 1}):
        yield Problem("utilisation.devices", index, "is listed twice; list each device once")
    strange = [use for use in devices if use.node >= s.plan.device.nodes or use.index >= MOST_DEVICES_OF_A_NODE]
    if strange:
        place = f"node {strange[0].node}, device {strange[0].index}"
        yield Problem("utilisation.devices", place, f"plan.device.nodes is {s.plan.device.nodes}; list the devices used")
    per_node = s.plan.device.count // s.plan.device.nodes
    if devices and s.plan.device.backend in {Backend.CUDA, Backend.ROCM} and len({use.index for use in devices if not use.node}) < per_node:
        yield Problem("utilisation.devices", f"{len(devices)} devices", f"{per_node} were used on this machine; list each")
    if len(set(indexes)) > count:
        yield Problem("utilisation.devices", str(len(indexes)), f"plan.device.count is {count}; list the devices used")
    figures = [(use.power_mean_w, use.power_peak_w, use.clock_mean_mhz) for use in devices if use.power_mean_w and use.clock_mean_mhz]
    if len(figures) > len(set(figures)):
        yield Problem(
            "utilisation.devices", f"{len(figures)} devices", "two have the same figures to the digit; each is measured by itself"
        )
    memory = max((device.memory_bytes or 0 for device in s.environment.devices), default=0)
    ranked = [rank.device_reserved_bytes for rank in s.ranks if rank.device_reserved_bytes is not None]
    reached = s.outcome.status in {Status.OK, Status.OOM_DEVICE} and len(s.trace)
    least_reserved = min(ranked, default=s.memory.device_reserved.peak_bytes or 0) if reached else 0
    for position, use in enumerate(devices):
        yield from _use_of(use, f"utilisation.devices.{position}", memory, card)
        if (
            least_reserved
            and use.samples >= FEWEST_SAMPLES
            and (use.memory_used_peak_bytes or least_reserved) < least_reserved * SEEN_OF_RESERVED
        ):
            fix = f"the framework alone reserved {least_reserved} bytes on each device"
            yield Problem(f"utilisation.devices.{position}.memory_used_peak_bytes", str(use.memory_used_peak_bytes), fix)
        if use.busy_peak is not None and use.busy_peak < 0.01 and use.samples >= FEWEST_SAMPLES and len(s.trace):  # noqa: PLR2004 - never busy
            yield Problem(f"utilisation.devices.{position}.busy_peak", f"{use.busy_peak:g}", "a device that trains is busy at times")


def _use_of(use: DeviceUse, field: str, memory: int, card: AcceleratorCard | None) -> Iterator[Problem]:
    highest = (
        ("busy_mean", use.busy_mean, use.busy_peak),
        ("power_mean_w", use.power_mean_w, use.power_peak_w),
        ("clock_min_mhz", use.clock_min_mhz, use.clock_mean_mhz),
    )
    for name, low, high in highest:
        if low is not None and high is not None and low > high * 1.000001:
            what = "mean" if name == "clock_min_mhz" else "highest sample"
            yield Problem(f"{field}.{name}", f"{low:g}", f"above its {what} {high:g}")
    board_w = card.tdp_w if card else None
    for name, factor in (("power_mean_w", POWER_TOLERANCE), ("power_peak_w", 2 * POWER_TOLERANCE)):
        power = getattr(use, name)
        most = factor * (board_w or MOST_WATTS)
        if power is not None and power > most:
            yield Problem(f"{field}.{name}", f"{power:g} W", board_words(card))
    stacked = card is not None and (card.memory_gib or 0) >= HBM_GIB and (card.memory_bandwidth_gb_s or 0) >= HBM_GB_S
    fastest = FASTEST_HBM_MHZ if stacked else FASTEST_MHZ
    for name in ("clock_mean_mhz", "clock_min_mhz"):
        clock = getattr(use, name)
        if clock is not None and clock > fastest:
            yield Problem(f"{field}.{name}", f"{clock:g} MHz", f"no such accelerator runs above {fastest} MHz; check the unit")
    if use.clock_mean_mhz is not None and use.clock_mean_mhz < SLOWEST_MHZ:
        yield Problem(f"{field}.clock_mean_mhz", f"{use.clock_mean_mhz:g} MHz", "a device that trains has a clock; check the unit")
    unknown = sorted({*use.throttle_reasons, *use.throttle_shares} - THROTTLE_REASONS)
    if unknown:
        yield Problem(
            f"{field}.throttle_reasons", repr(unknown[0]), f"is not a reason of a driver; known are {', '.join(sorted(THROTTLE_REASONS))}"
        )
    if use.temperature_peak_c is not None and not COOLANT_C < use.temperature_peak_c < HOTTEST_C:
        yield Problem(f"{field}.temperature_peak_c", f"{use.temperature_peak_c:g}", "no device works at this temperature; check the unit")
    for name in ("memory_used_peak_bytes", "memory_used_before_bytes"):
        used = getattr(use, name)
        if memory and used is not None and used >= memory:
            yield Problem(f"{field}.{name}", str(used), f"the device has {memory} bytes, and its driver keeps some; check the unit")
    if sum(use.throttle_shares.values()) > len(use.throttle_shares) or set(use.throttle_shares) - set(use.throttle_reasons):
        yield Problem(f"{field}.throttle_shares", "", "a reason is not in throttle_reasons, or the shares sum to more than 1 per reason")


def _energy(s: Submission, derived: Derived | None, card: AcceleratorCard | None) -> Iterator[Problem]:
    energy = s.utilisation.energy if s.utilisation else None
    if energy is not None and energy.idle_w is not None and s.plan.device.backend is Backend.CPU:
        yield Problem("utilisation.energy.idle_w", f"{energy.idle_w:g} W", "the CPU back end reads no power")
    if energy is not None and energy.joules is None and energy.window_s is not None:
        yield Problem("utilisation.energy.window_s", f"{energy.window_s:g}", "no energy was measured over it; write null")
    if s.utilisation is None or energy is None or energy.joules is None:
        return
    if not energy.window_s:
        fix = "energy needs the time between the readings; write both"
        yield Problem("utilisation.energy.window_s", str(energy.window_s), fix)
        return
    if energy.window_s > s.process.wall_s:
        fix = f"longer than the whole process, {s.process.wall_s:g} s; it is the time between two readings"
        yield Problem("utilisation.energy.window_s", f"{energy.window_s:g}", fix)
    if s.plan.device.backend is Backend.CPU:
        yield Problem("utilisation.energy.source", repr(energy.source), "the CPU back end measures no energy")
    window_s, late_s = _window_s(s, derived), LATE_SAMPLES * DEVICE_INTERVAL_S.get(s.environment.backend, 1.0)
    low, high = WINDOW_AGREES
    if window_s and not low * window_s - late_s <= energy.window_s <= high * window_s + late_s:
        fix = f"the steady window lasted {window_s:.1f} s; energy is measured over it"
        yield Problem("utilisation.energy.window_s", f"{energy.window_s:g}", fix)
    count, watts = s.plan.device.count, energy.joules / energy.window_s
    board_w = card.tdp_w if card and card.tdp_w else MOST_WATTS
    if watts > count * board_w * POWER_TOLERANCE:
        fix = f"{watts:,.0f} W on {count} devices of {board_w:g} W; check the unit, and that no other device was counted"
        yield Problem("utilisation.energy.joules", f"{energy.joules:g}", fix)
    if energy.idle_w is not None and watts < energy.idle_w * IDLE_TOLERANCE:
        fix = f"{watts:.0f} W over the window, and {energy.idle_w:g} W before the run; training takes no less than idling"
        yield Problem("utilisation.energy.joules", f"{energy.joules:g}", fix)
    ratio, samples = _energy_ratio(s)
    low, high = ENERGY_AGREES_WELL if samples >= MANY_SAMPLES else ENERGY_AGREES
    if ratio is not None and not low <= ratio <= high:
        fix = f"{ratio:.2f} times the mean power of the devices over the same time; check the unit and the window"
        yield Problem("utilisation.energy.joules", f"{energy.joules:g}", fix)


def _window_s(s: Submission, derived: Derived | None) -> float | None:
    """Return the time of the steady window, or None without one."""
    window = derived.window if derived else None
    return sum(s.trace.step_times_s[window.first : window.stop]) if window and window.steps else None


def _same_readings(s: Submission) -> Iterator[Problem]:
    """Yield figures without those of the same readings: of one device, of the devices of a machine, and of memory in use."""
    devices = s.utilisation.devices if s.utilisation else ()
    for index, use in enumerate(devices):
        for one, other in PAIRS:
            if (getattr(use, one) is None) != (getattr(use, other) is None):
                fix = f"is known exactly if {other} is; both come from the same readings"
                yield Problem(f"utilisation.devices.{index}.{one}", str(getattr(use, one)), fix)
    for name in ("busy_mean", "power_mean_w", "clock_mean_mhz", "temperature_peak_c", "memory_used_peak_bytes"):
        known = {getattr(use, name) is not None for use in devices}
        if len(known) > 1 and s.environment.backend in {Backend.CUDA, Backend.ROCM}:
            yield Problem(f"utilisation.devices.0.{name}", "of some devices only", "one monitor reads all devices alike; list it for each")
    used = s.memory.device_used.peak_bytes
    if used is None or s.plan.device.nodes > 1:
        return
    grown_by = [use.memory_used_peak_bytes - use.memory_used_before_bytes for use in devices if _is_compared(use)]  # type: ignore[operator]
    if grown_by and len(grown_by) == len(devices) and used > max(0, *grown_by) + READ_PAST_S:
        fix = f"the devices used {max(grown_by):,} bytes more than before the run at most"
        yield Problem("memory.device_used.peak_bytes", f"{used:,}", fix)
    for index, use in enumerate(devices):
        if _is_compared(use) and use.memory_used_before_bytes > use.memory_used_peak_bytes + READ_PAST_S:  # type: ignore[operator]
            fix = "more than at its peak in the run: another program freed memory, so that the run's own is unknown; run it alone"
            yield Problem(f"utilisation.devices.{index}.memory_used_before_bytes", f"{use.memory_used_before_bytes:,}", fix)
        grown = (use.memory_used_peak_bytes or 0) - (use.memory_used_before_bytes or 0)
        if use.memory_used_before_bytes is not None and grown > used + READ_PAST_S:
            fix = f"{grown:,} bytes more than before the run; memory.device_used says that at most {used:,} were used"
            yield Problem(f"utilisation.devices.{index}.memory_used_peak_bytes", str(use.memory_used_peak_bytes), fix)


def _is_compared(use: DeviceUse) -> bool:
    """Return True if memory in use is known before and during the run."""
    return use.memory_used_peak_bytes is not None and use.memory_used_before_bytes is not None


def _energy_ratio(s: Submission) -> tuple[float | None, int]:
    """Return energy / (mean power of all devices x time), or None, and the least number of samples of a device."""
    use = s.utilisation
    energy = use.energy if use else None
    if use is None or energy is None or energy.joules is None or not energy.window_s:
        return None, 0
    powers = [device.power_mean_w for device in use.devices if device.power_mean_w is not None]
    samples = min((device.samples for device in use.devices), default=0)
    known = len(powers) == s.plan.device.count and sum(powers) > 0
    return (energy.joules / energy.window_s / sum(powers) if known else None), samples


def _energy_source(s: Submission) -> Iterator[Problem]:
    """Yield an integral of power that was not read or not often enough, and idle power that no board has."""
    use = s.utilisation
    energy = use.energy if use else None
    if use is None or energy is None:
        return
    unread = [device for device in use.devices if device.power_mean_w is None]
    dense = min((device.samples for device in use.devices), default=0) >= MANY_SAMPLES and not unread
    if energy.source == "none" and dense and s.environment.backend in {Backend.CUDA, Backend.ROCM} and s.plan.device.nodes == 1:
        fix = "the power of all devices was read, and the harness integrates it where there is no counter"
        yield Problem("utilisation.energy.source", "'none'", fix)
    if energy.source == "integrated" and (unread or not use.devices):
        yield Problem("utilisation.energy.source", "'integrated'", "a device has no power to integrate; keep the original record")
    samples = min((device.samples for device in use.devices), default=0)
    # A machine of several may have a counter, and the number of samples is its own.
    if energy.source == "integrated" and s.plan.device.nodes == 1 and samples > 1 and energy.window_s:
        interval_s = energy.window_s / (samples - 1)
        if interval_s > SLOWEST_INTEGRATION_S * RATE_TOLERANCE:
            fix = f"power was read every {interval_s:.2g} s; the harness integrates only if it is read every {SLOWEST_INTEGRATION_S:g} s"
            yield Problem("utilisation.energy.source", "'integrated'", fix)
    powered = s.environment.backend is Backend.CUDA or any(device.power_mean_w for device in use.devices)
    if energy.idle_w is not None and powered and energy.idle_w < LEAST_IDLE_W * s.plan.device.count:
        fix = "a board that reports its power takes some watts while it waits; write null if it was not read"
        yield Problem("utilisation.energy.idle_w", f"{energy.idle_w:g} W", fix)


def _at_work(s: Submission, share: float, card: AcceleratorCard | None) -> Iterator[Problem]:
    """Yield devices that compute at this share of their dense peak and take little power, are seldom busy, slow or cold."""
    devices = s.utilisation.devices if s.utilisation else ()
    powers = [use.power_mean_w for use in devices if use.power_mean_w is not None]
    if card and card.tdp_w and powers and max(powers) < IDLE_POWER * card.tdp_w:
        fix = f"training at {share:.0%} of the dense peak takes more than {IDLE_POWER:.0%} of the board power, {card.tdp_w:g} W"
        yield Problem("utilisation.devices.0.power_mean_w", f"{max(powers):g} W", fix)
    waited = _waited(s)
    if waited > WAITED and share > 1 - waited:
        fix = f"{waited:.0%} of the time, in which no product is computed; those of this run take {share:.0%} of it even at the dense peak"
        yield Problem("trace.data_wait_s", f"{s.trace.data_wait_s:g} s", fix)
    energy = s.utilisation.energy if s.utilisation else None
    # Before the run, other programs may use other devices of the machine.
    if energy and energy.idle_w and len(powers) == s.plan.device.count and energy.idle_w > IDLE_OF_WORK * sum(powers):
        fix = f"the devices took {sum(powers):.0f} W at {share:.0%} of their dense peak; while they wait they take far less"
        yield Problem("utilisation.energy.idle_w", f"{energy.idle_w:g} W", fix)
    for index, use in enumerate(devices):
        field = f"utilisation.devices.{index}"
        if use.samples < FEWEST_SAMPLES:
            continue
        if use.busy_mean is not None and use.busy_mean < BUSY_AT_LEAST * share:
            fix = f"the products of this run take {share:.0%} of the time even at the dense peak"
            yield Problem(f"{field}.busy_mean", f"{use.busy_mean:g}", fix)
        if use.temperature_peak_c is not None and use.temperature_peak_c < COLDEST_C:
            yield Problem(f"{field}.temperature_peak_c", f"{use.temperature_peak_c:g}", "a device at work is warmer")
        nominal_mhz = card.peak_clock_mhz if card else None
        if nominal_mhz and use.clock_mean_mhz is not None and use.clock_mean_mhz > FASTEST_OVER_NOMINAL * nominal_mhz:
            fix = f"the dense peak of {card.name if card else 'its card'} is for {nominal_mhz:g} MHz, and no board runs that far above it"
            yield Problem(f"{field}.clock_mean_mhz", f"{use.clock_mean_mhz:g} MHz", fix)
        if nominal_mhz and use.clock_mean_mhz is not None and share > CLOCK_TOLERANCE * use.clock_mean_mhz / nominal_mhz:
            fix = f"at this clock the dense peak is {use.clock_mean_mhz / nominal_mhz:.0%} of that at {nominal_mhz:g} MHz, and {share:.0%} was used"
            yield Problem(f"{field}.clock_mean_mhz", f"{use.clock_mean_mhz:g} MHz", fix)


def _waited(s: Submission) -> float:
    """Return the share of the time of all steps, with the first one, in which training waited for samples; 0 if unknown."""
    return (s.trace.data_wait_s or 0.0) / sum(s.trace.step_times_s) if len(s.trace) else 0.0


def unlikely_telemetry(s: Submission, derived: Derived, facts: FactBase) -> Iterator[Problem]:
    """Yield power and energy that are possible, but unlike those of known runs: a reason to ask for a second run."""
    use, card = s.utilisation, facts.accelerators.get(s.plan.device.accelerator or "")
    if use is None:
        return
    yield from _few_samples(s, derived)
    energy, share = use.energy, executed_share(s, facts.models.get(s.plan.model.key), card)
    powers = [device.power_mean_w for device in use.devices if device.power_mean_w is not None]
    ratio, samples = _energy_ratio(s)
    if energy is not None and ratio is not None and energy.idle_w and energy.window_s and samples >= MANY_SAMPLES:
        if energy.idle_w > (energy.joules or 0.0) / energy.window_s:
            fix = "more than the mean over the run; another program may have used the devices before"
            yield Problem("utilisation.energy.idle_w", f"{energy.idle_w:g} W", fix)
        without_idle = abs(ratio + energy.idle_w / sum(powers) - 1) < IDLE_PART / 3 and energy.idle_w > IDLE_PART * sum(powers)
        if without_idle or not ENERGY_USUAL[0] <= ratio <= ENERGY_USUAL[1]:
            fix = f"{ratio:.1%} of the mean power over the same time{', as if the idle power were left out' if without_idle else ''}"
            yield Problem("utilisation.energy.joules", f"{energy.joules:g}", fix)
    if energy is not None and ratio is not None and energy.source == "counter" and abs(ratio - 1) < SAME_READING:
        fix = "is the mean of the sampled power x time, to the digit; a counter is another instrument"
        yield Problem("utilisation.energy.joules", f"{energy.joules:g}", fix)
    for index, board in enumerate(s.environment.devices):
        raised = card and card.tdp_w and board.power_limit_w and board.power_limit_w > NAMED_LIMIT * card.tdp_w
        if raised and card and not OWNERS_CARDS.search(card.name):
            fix = f"the board power of {card.name} is {card.tdp_w:g} W, and few owners of such boards can raise its limit"
            yield Problem(f"environment.devices.{index}.power_limit_w", f"{board.power_limit_w:g} W", fix)
    least, slope = USUAL_POWER
    if share is not None and share > COMPUTING and card and card.tdp_w and powers and max(powers) < (least + slope * share) * card.tdp_w:
        fix = f"training at {share:.0%} of the dense peak usually takes more than {least + slope * share:.0%} of {card.tdp_w:g} W"
        yield Problem("utilisation.devices.0.power_mean_w", f"{max(powers):g} W", fix)
    for index, device in enumerate(use.devices):
        flat = device.power_mean_w and device.power_peak_w is not None and device.power_peak_w <= device.power_mean_w * (1 + 1e-9)
        if flat and FEWEST_SAMPLES * 2 <= device.samples < SURELY_VARIED:
            yield Problem(f"utilisation.devices.{index}.power_peak_w", f"{device.power_peak_w:g} W", "is the mean of all samples too")
        hot = [reason for reason in device.throttle_shares if "thermal" in reason]
        if hot and device.temperature_peak_c is not None and device.temperature_peak_c < COOL_C:
            fix = f"its highest temperature was {device.temperature_peak_c:g} degrees, far below the limits of any device"
            yield Problem(f"utilisation.devices.{index}.throttle_reasons", repr(hot[0]), fix)
    yield from _seldom_busy(s, share)


def _seldom_busy(s: Submission, share: float | None) -> Iterator[Problem]:
    """Yield GPUs at usual speed that are seldom busy, that hardly a core feeds, or that are busy while training waits for samples."""
    use, count, waited = s.utilisation, s.plan.device.count, _waited(s)
    if use is None or s.environment.backend not in {Backend.CUDA, Backend.ROCM} or not len(s.trace):
        return
    if use.cpu_busy_mean is not None and use.samples >= MANY_SAMPLES and use.cpu_busy_mean < LEAST_FED * count:
        fix = f"less than {LEAST_FED:g} of a core for each of {count} GPUs; the process that submits the work takes more"
        yield Problem("utilisation.cpu_busy_mean", f"{use.cpu_busy_mean:g} cores", fix)
    for index, device in enumerate(use.devices):
        if device.busy_mean is None or device.samples < MANY_SAMPLES:
            continue
        if share is not None and share > COMPUTING and device.busy_mean < BUSY_USUALLY and waited < 1 - BUSY_USUALLY:
            fix = f"at {share:.0%} of the dense peak a device is busy nearly all the time"
            yield Problem(f"utilisation.devices.{index}.busy_mean", f"{device.busy_mean:g}", fix)
        if waited + device.busy_mean > 1 + WAITED and waited > WAITED:
            fix = f"{waited:.0%} of the time, while device {index} was busy {device.busy_mean:.0%} of it; a waiting training leaves its device idle"
            yield Problem("trace.data_wait_s", f"{s.trace.data_wait_s:g} s", fix)
            return
