"""Rows of the registry for what `physics.py` and `derive.py` compute of a measured run: FLOPs, energy, ranks, compiling."""

from tunemark.schema import formats
from tunemark.schema.quantity import Quantity


def physics_rows() -> list[Quantity]:
    """Return the rows, in the order in which tables show them."""
    s, share, flops, joules, gib, q = (
        formats.duration,
        formats.percent,
        formats.flop_per_s,
        formats.joules,
        formats.gib,
        Quantity,
    )
    return [
        q("mfu_palm", "MFU, PaLM's count", "1", share, "higher", "MFU with FLOPs as PaLM counts them, on slots; to compare with others."),
        q("mafu", "MAFU", "1", share, "higher", "Model FLOPs over time times the matrix rate that the device itself reached in a probe."),
        q(
            "model_flop_per_s",
            "Model FLOP/s",
            "FLOP/s",
            flops,
            "higher",
            "Model FLOPs a second over all devices, recomputed ones left out.",
        ),
        q(
            "flop_per_step",
            "FLOPs per step",
            "FLOP",
            formats.flop,
            None,
            "Model FLOPs of a mean steady step over all devices, recomputed ones left out.",
        ),
        q(
            "probe_flop_per_s",
            "Probed rate",
            "FLOP/s",
            flops,
            "higher",
            "Matrix rate that all devices reached in a short probe before training.",
        ),
        q("compile_overhead_s", "Compiling", "s", s, "lower", "What steps with compiled graphs took beyond a median steady step."),
        q("own_work_s", "Own work", "s", s, "lower", "Median time of a process from a step's start to the exchange of gradients."),
        q(
            "rank_behind",
            "Behind",
            "1",
            share,
            "lower",
            "How much longer the slowest process needs for its own work than the median of all.",
        ),
        q(
            "energy_j",
            "Energy",
            "J",
            joules,
            "lower",
            "Energy of all devices over the steady window, idle power included; never an estimate from TDP.",
        ),
        q("energy_per_step_j", "Energy per step", "J", joules, "lower", "Energy of all devices in a steady step, idle power included."),
        q("energy_per_sample_j", "Energy per sample", "J", joules, "lower", "Energy of all devices per document, idle power included."),
        q(
            "energy_per_1k_tokens_j",
            "Energy per 1k tokens",
            "J",
            joules,
            "lower",
            "Energy of all devices per thousand real tokens, idle power included.",
        ),
        q("power_w", "Power", "W", formats.watts, None, "Mean power over the steady window."),
        q("device_busy_mean", "Device busy", "1", share, "higher", "Mean share of time in which something ran on the device."),
        q(
            "predicted_memory_bytes",
            "Predicted peak memory",
            "bytes",
            gib,
            None,
            "Peak of the allocator on one device as the memory model has it, before it is measured.",
        ),
    ]
