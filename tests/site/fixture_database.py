"""A small database made from the collector's own DDL: one row of each kind that a page must be able to tell."""

import math
from pathlib import Path
from typing import Any

import duckdb

from tunemark.schema.statistics.comparison import ArmRun

ROOT = Path(__file__).resolve().parents[2]
DDL = ROOT / "collector" / "tunemark" / "collector" / "store" / "views.sql"
GIB = 2**30
HOSTILE = """<script>window.hacked=1</script> | [x](javascript:alert(1)) `tick` *star* <img src=x onerror=window.hacked=1> {{ 7*7 }} "quote" &amp;"""
MEASURED, SLOWER, OTHER, CRASHED, STRANGE = "0a1b2c3d4e5f", "1a1b2c3d4e5f", "2a1b2c3d4e5f", "3a1b2c3d4e5f", "4a1b2c3d4e5f"
ENTRY, STRANGE_ENTRY = "mlperf-v9.1-acme-box", "mlperf-v9.1-stranger"
ROUND, LABEL = "mlperf-v9.1", "MLPerf, unofficial conversion, not verified by MLCommons Association"
AB, STRANGE_STUDY = "ab0123456789", "cd0123456789"
STEPS, WARMUP = 150, 20


def make_database(path: Path) -> Path:
    """Write the database and return its path."""
    with duckdb.connect(str(path)) as connection:
        connection.execute(DDL.read_text(encoding="utf-8"))
        # One table may have rows in several of them.
        for part in ({**_facts(), **_documents(), **_published(), **_measured()}, _audit(), _predictions(), _converted()):
            for table, rows in part.items():
                for row in rows:
                    insert(connection, table, **row)
    return path


def insert(connection: duckdb.DuckDBPyConnection, table: str, **values: Any) -> None:
    """Insert one row; columns that are not named are NULL."""
    names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" for _ in values)
    connection.execute(f'insert into "{table}" ({names}) values ({marks})', list(values.values()))  # noqa: S608 - our own names


def _facts() -> dict[str, list[dict[str, Any]]]:
    h100 = {"memory_gib": 80.0, "memory_bandwidth_gb_s": 3350.0, "peak_bf16_tflops": 989.0, "tdp_w": 700.0, "launch_year": 2022}
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "layers": 2,
        "attention_heads": 4,
        "key_value_heads": 2,
        "head_dim": 16,
        "vocabulary": 256,
        "context_length": 512,
    }
    llama = {
        **shape,
        "hidden_size": 4096,
        "layers": 32,
        "vocabulary": 128_256,
        "context_length": 131_072,
        "parameters": 8_030_261_248,
        "hub_id": "meta-llama/Llama-3.1-8B",
        "gated": True,
    }
    price = {"region": "us-east-1", "effective_on": "2025-06-01", "dated_by": "provider", "source": "https://example.org/prices"}
    return {
        "accelerators": [
            {
                "accelerator": "nvidia-h100",
                "name": "H100 SXM5 80GB",
                "vendor": "NVIDIA",
                "architecture": "Hopper",
                "unit": "device",
                "aliases": ["NVIDIA H100 80GB HBM3", "H100 80GB"],
                **h100,
                "source": "vendor sheet @ 744d01e18b79512572f64a6bbd8b5f4a725203a7",
                "read_on": "2025-05-05",
                "unverified": ["launch_year"],
            },
            {
                "accelerator": "nvidia-t4",
                "name": "Tesla T4",
                "vendor": "NVIDIA",
                "unit": "device",
                "aliases": [],
                "memory_gib": 16.0,
                "source": "vendor sheet",
                "unverified": [],
            },
        ],
        "models": [
            {
                "model": "tiny-llama",
                "name": "Tiny Llama",
                "aliases": [],
                "family": "llama",
                "parameters": 4_200_000,
                **shape,
                "source": "ours",
            },
            {
                "model": "llama-3.1-8b",
                "name": "Llama 3.1 8B",
                "aliases": ["unsloth/Meta-Llama-3.1-8B"],
                "family": "llama",
                **llama,
                "source": "config.json",
                "read_on": "2025-05-06",
            },
        ],
        "workloads": [
            {
                "workload": "smoke-lora",
                "title": "LoRA on a tiny Llama",
                "description": "Runs in a minute.",
                "tier": "smoke",
                "source": "Tunemark",
                "task": "causal_lm",
                "model": "tiny-llama",
                "method": "lora",
                "dataset": "markov-tokens",
                "sequence_length": 128,
                "micro_batch": 4,
                "gradient_accumulation": 1,
                "learning_rate": 2e-3,
                "matrix": "smoke",
                "weights": "random",
                "optimizer": "adamw",
                "compute": "auto",
                "padding": "none",
                "packing": False,
                "attention": "sdpa",
                "gradient_checkpointing": "none",
                "fused_kernels": "none",
                "compile": "none",
                "lora": "rank 8, alpha 16, on q_proj, v_proj",
                "devices": 1,
                "strategy": "auto",
                "offload": "none",
                "tensor_parallel": 1,
                "pipeline_parallel": 1,
                "not_stated": ["seed", HOSTILE],
            }
        ],
        "prices": [
            {
                "price": "a/p5/od",
                "provider": "aws",
                "instance": "p5.48xlarge",
                "accelerator": "nvidia-h100",
                "accelerator_count": 8,
                "kind": "on_demand",
                "usd_per_hour": 55.04,
                **price,
            },
            {
                "price": "l/h1/od",
                "provider": "lambda",
                "instance": "gpu_1x_h100",
                "accelerator": "nvidia-h100",
                "accelerator_count": 1,
                "kind": "on_demand",
                "usd_per_hour": 3.29,
                **price,
            },
            {
                "price": "l/h1/sp",
                "provider": "lambda",
                "instance": "gpu_1x_h100",
                "accelerator": "nvidia-h100",
                "accelerator_count": 1,
                "kind": "spot",
                "usd_per_hour": 2.0,
                **price,
            },
        ],
        "load_problems": [
            {"file": "submissions/bad.json", "field": "outcome.status", "value": HOSTILE, "fix": "write one of the known words"}
        ],
    }


def _documents() -> dict[str, list[dict[str, Any]]]:
    cells = [
        ("{003-001/model}", "{003-001/peak_memory_bytes} ({003-001/model_memory_bytes})", "{003-001/step_time_s}"),
        ("{003-002/model} **", "{003-002/peak_memory_bytes}", "{003-002/step_time_s}"),
    ]
    return {
        "sources": [
            {
                "source": "003",
                "title": "GPU Test",
                "authors": "Somebody",
                "url": "https://example.org/gpu-test",
                "summary": "Memory and step time.",
                "caveats": ["GiB may be GB."],
            },
            {"source": "004", "title": f"Bad {HOSTILE}", "url": "javascript:alert(1)", "summary": HOSTILE, "caveats": [HOSTILE]},
        ],
        "document_tables": [
            {
                "source": "003",
                "table_id": "h100",
                "position": 1,
                "title": "1. NVIDIA H100",
                "columns": ["Model", "Peak Mem. (Model Mem.)", "Sec/step"],
            }
        ],
        "document_cells": [
            {
                "source": "003",
                "table_id": "h100",
                "row_number": row,
                "column_number": column,
                "template": template,
                "result_ids": [f"003-{row:03}"],
            }
            for row, templates in enumerate(cells, start=1)
            for column, template in enumerate(templates, start=1)
        ],
        "statements": [{"statement_id": "003-S01", "source": "003", "section": "Prices", "note": "A price, not a result."}],
    }


def _published() -> dict[str, list[dict[str, Any]]]:
    common = {
        "source": "003",
        "trust": "published",
        "section": "1. NVIDIA H100",
        "model": "llama-3.1-8b",
        "accelerator": "nvidia-h100",
        "accelerator_printed": "H100 x 1",
        "accelerator_count": 1,
    }
    conditions = {"sequence_length": 8192, "rankable": False, "file": "data/published/003/results.json", "sha256": "ab" * 32}
    first = {
        "peak_memory_bytes": 78.0 * GIB,
        "peak_memory_method": "as claimed",
        "step_time_s": 4.7,
        "step_definition": "ambiguous",
        "samples_per_s": 0.426,
        "tokens_per_s": 3486.0,
    }
    claims = [
        ("003-001", "peak_memory_bytes", 78.0 * GIB, "78 GiB"),
        ("003-001", "model_memory_bytes", 16.0 * GIB, "16 GiB"),
        ("003-001", "step_time_s", 4.7, "4.7"),
        ("003-S01", "price_usd_per_hour", 3.29, "$3.29/h"),
    ]
    labels = [
        ("003-001", "model", "Llama 3.1 8B"),
        ("003-002", "model", "Gemma 2 9B"),
        ("003-002", "peak_memory_bytes", "OOM (8.4 GiB)"),
        ("003-002", "step_time_s", "OOM"),
    ]
    readings = [("one optimizer step", 4.7), ("one micro-batch", 150.4)]
    hostile = {
        "source": "004",
        "trust": "published",
        "section": HOSTILE,
        "accelerator_printed": HOSTILE,
        "method": "lora",
        "status": "ok",
        "note": HOSTILE,
        "message": HOSTILE,
        "dataset": HOSTILE,
        "peak_memory_method": HOSTILE,
        "peak_memory_bytes": 1.0,
    }
    return {
        "result_rows": [
            {
                "result_id": "003-001",
                "method": "full",
                "status": "ok",
                "note": "Trained at twice its context.",
                **common,
                **first,
                **conditions,
            },
            {"result_id": "003-002", "method": "qlora", "status": "oom", **common, **conditions},
            {"result_id": "004-001", **hostile, **conditions},
            *_measured_rows(),
        ],
        "claims": [{"record_id": record, "quantity": key, "value": value, "printed": printed} for record, key, value, printed in claims],
        "labels": [
            {"record_id": record, "label": label, "printed": printed} for record, label, printed in [*labels, ("004-001", "model", HOSTILE)]
        ],
        "readings": [
            {"record_id": "003-001", "quantity": "step_time_s", "meaning": meaning, "value": value} for meaning, value in readings
        ],
    }


def _measured_rows() -> list[dict[str, Any]]:
    plan = {
        "model": "tiny-llama",
        "task": "causal_lm",
        "method": "lora",
        "dataset": "markov-tokens",
        "sequence_length": 128,
        "padding": "none",
        "packing": False,
        "global_batch": 4,
        "precision": "fp32",
        "optimizer": "adamw",
        "step_definition": "optimizer_step",
    }
    machine = {"accelerator_printed": "AMD EPYC 7B13", "accelerator_count": 1, "backend": "cpu", "strategy": "single"}
    common = {
        "source": "measured",
        "trust": "measured",
        "division": "standard",
        "workload": "smoke-lora",
        **plan,
        **machine,
        "micro_batch": 4,
        "gradient_accumulation": 1,
        "weights": "random",
        "harness_version": "0.1.0",
        "sha256": "cd" * 32,
    }
    rates = {
        "tokens_per_s": 12_473.0,
        "tokens_per_s_low": 12_350.0,
        "tokens_per_s_high": 12_590.0,
        "samples_per_s": 97.4,
        "samples_per_s_low": 96.5,
        "samples_per_s_high": 98.4,
    }
    spread = {
        "step_time_s": 0.0411,
        "step_time_p5_s": 0.0395,
        "step_time_p95_s": 0.0452,
        "step_time_cv": 0.043,
        "padding_efficiency": 1.0,
        "stable": True,
        "steady_steps": STEPS - WARMUP,
        "steady_verdict": "the interval is within 1%",
    }
    memory = {"peak_memory_bytes": 0.75 * GIB, "peak_memory_method": "peak resident memory of the process tree"}
    group = "tiny-llama/causal_lm/lora/markov-tokens/128/none/False/4/fp32/adamw/optimizer_step"
    fine = {
        "status": "ok",
        "rankable": True,
        "comparability_group": group,
        "steps": STEPS,
        "wall_s": 20.0,
        "train_time_s": 7.0,
        "loss_start": 5.4,
        "train_loss": 1.2,
        "eval_loss": 1.3,
        "evaluation_rows": 64,
        **rates,
        **spread,
        **memory,
    }
    physics = {"mafu": 0.325, "probe_flop_per_s": 6.5e10, "probe_after_flop_per_s": 6.4e10, "attention": "eager", "process_group": "gloo"}
    arm = {"study_id": AB, "study_kind": "ab"}
    slower = {
        **fine,
        **arm,
        "study_point": ArmRun("a", "attention=eager", 1).point,
        "study_position": 1,
        "tokens_per_s": 12_400.0,
        "tokens_per_s_low": 12_300.0,
        "tokens_per_s_high": 12_500.0,
    }
    second = {**arm, "study_point": ArmRun("b", "attention=sdpa", 1).point, "study_position": 2}
    crash = {
        "status": "crash",
        "rankable": False,
        "comparability_group": group,
        "message": "RuntimeError: <removed> cannot be opened",
        "fix": "free some disk space",
        "steps": 0,
        "wall_s": 3.0,
    }
    return [
        {
            "result_id": MEASURED,
            "started_at": "2026-11-01 10:00:00+00",
            "file": f"submissions/2026/{MEASURED}.json",
            **common,
            **fine,
            **physics,
            **second,
        },
        {"result_id": SLOWER, "started_at": "2026-11-02 10:00:00+00", "file": f"submissions/2026/{SLOWER}.json", **common, **slower},
        {
            "result_id": OTHER,
            "started_at": "2026-11-03 10:00:00+00",
            "file": f"submissions/2026/{OTHER}.json",
            **common,
            **fine,
            "precision": "bf16",
            "comparability_group": group.replace("fp32", "bf16"),
        },
        {"result_id": CRASHED, "started_at": "2026-11-04 10:00:00+00", "file": f"submissions/2026/{CRASHED}.json", **common, **crash},
        {
            "result_id": STRANGE,
            "started_at": "2026-11-05 10:00:00+00",
            "file": HOSTILE,
            **common,
            **fine,
            "accelerator_printed": HOSTILE,
            "study_id": STRANGE_STUDY,
            "study_kind": "sweep",
            "study_point": HOSTILE,
            "study_position": 1,
            "comparability_group": None,
            "padding": None,
            "rankable": False,
        },
    ]


def _measured() -> dict[str, list[dict[str, Any]]]:
    times = [
        0.2 if step == 1 else 0.06 - 0.001 * step if step <= WARMUP else 0.041 + 0.003 * math.sin(step) for step in range(1, STEPS + 1)
    ]
    counts = {"slot_tokens": 512, "real_tokens": 512, "supervised_tokens": 508, "documents": 4, "rows": 4}
    phases = {
        "import": 8.0,
        "load": 0.5,
        "data": 0.3,
        "first_step": 0.2,
        "warmup": 1.0,
        "steady": 5.8,
        "eval": 0.6,
        "save": 0.6,
        "teardown": 3.0,
    }
    facts = [
        ("environment", "os", "Linux 6.1", None),
        ("environment", "memory_bytes", str(24 * GIB), None),
        ("packages", "torch", "2.8.0", None),
        ("plan", "precision.compute", "fp32", "the CPU has no fast bf16"),
        ("memory", "host_rss", str(int(0.75 * GIB)), "peak resident memory of the process tree"),
        ("memory", "device_allocated", None, "the CPU has no allocator of its own"),
        ("process", "user_s", "31.5", None),
        ("environment", "cpu", HOSTILE, HOSTILE),
        ("derived", "mfu", None, "the device is not in the catalogue, so its peak is unknown"),
        ("derived", "mafu", "0.325", "model FLOPs / (time x rate in the probe): 2 x 32.6 GFLOP/s fp32"),
        ("derived", "energy_per_step_j", None, "energy was not looked at"),
    ]
    return {
        "steps": [
            {
                "result_id": MEASURED,
                "step": step,
                "label": "warmup" if step <= WARMUP else "steady",
                "completed_at_s": sum(times[:step]),
                "step_time_s": seconds,
                "loss": 1.2 + 4.2 * math.exp(-step / 40),
                **counts,
            }
            for step, seconds in enumerate(times, start=1)
        ],
        "phases": [
            {"result_id": MEASURED, "position": position, "phase": phase, "duration_s": seconds, "share": seconds / 20.0}
            for position, (phase, seconds) in enumerate(phases.items(), start=1)
        ],
        "result_facts": [
            {"result_id": MEASURED, "topic": topic, "name": name, "value": value, "reason": reason} for topic, name, value, reason in facts
        ],
        **_evidence(),
        "warnings": [{"result_id": MEASURED, "doubt": "random_weights", "message": "The weights are random."}],
    }


def _evidence() -> dict[str, list[dict[str, Any]]]:
    """Return what the measured run saw beside its steps, and what the harness says of device families."""
    tables: dict[str, list[dict[str, Any]]] = {
        "step_events": [{"step": 1, "kind": "compile", "amount": 3}, {"step": 4, "kind": "allocator_growth", "amount": 2**21}],
        "effective": [
            {"position": 1, "setting": "attention", "requested": "sdpa", "effective": "eager", "agrees": False},
            {"position": 2, "setting": "optimizer", "requested": "adamw", "effective": HOSTILE},
        ],
        "gates": [
            {"gate": "adapter_gradient", "passed": True, "detail": "a gradient reaches 28 of 28 adapters"},
            {"gate": "loss_band", "passed": None, "detail": HOSTILE},
        ],
        "ranks": [
            {"rank": 0, "own_work_s": 0.030, "behind": -0.02, "slowest": False, "host_rss_bytes": GIB},
            {"rank": 1, "own_work_s": 0.032, "behind": 0.02, "slowest": True, "host_rss_bytes": GIB},
        ],
        "device_use": [{"device": 0, "samples": 60, "busy_mean": 0.93, "power_mean_w": 480.0, "throttle_reasons": ["sw_power_cap"]}],
        "flops": [
            {"position": 1, "class": "forward_matmul", "flop": 3e9, "formula": "2 x 3,145,728 x 512 x 4 blocks"},
            {"position": 2, "class": "backward_input", "flop": 1e9, "formula": "as forward_matmul"},
            {"position": 3, "class": "recompute", "flop": 0.0, "formula": "nothing is recomputed"},
        ],
        "memory_lines": [
            {"position": 1, "line": "base weights", "kind": "state", "predicted_bytes": 99, "measured_bytes": 100, "note": "99 x 1 bytes"},
            {"position": 2, "line": "peak allocated", "kind": "peak", "predicted_bytes": GIB, "note": "no allocator that counts"},
            {"position": 3, "line": "activations", "kind": "part", "predicted_bytes": 4096, "note": "4 blocks"},
        ],
    }
    rows = {name: [{"result_id": MEASURED, **row} for row in found] for name, found in tables.items()}
    support = [
        {"backend": backend, "position": position, "feature": feature, "supported": backend == "cuda" or feature == "LoRA"}
        for backend in ("cpu", "cuda")
        for position, feature in enumerate(("LoRA", "flash attention"), start=1)
    ]
    axes = [{"workload": "smoke-lora", "position": 1, "field": "batch.micro_batch", "choices": ["4", HOSTILE]}]
    refused = [{**row, **({} if row["supported"] else {"reason": "its kernels are for GPUs"})} for row in support]
    return {**rows, "support": refused, "workload_axes": axes}


def _converted() -> dict[str, list[dict[str, Any]]]:
    """Two entries of a round: one of six runs, the last of which ends early, and one of a stranger."""
    reached, curve = [1500.0, 1510.0, 1520.0, 1540.0, 1600.0], [1.3, 0.97, 0.93]
    common = {
        "source": ROUND,
        "trust": "converted",
        "model": "llama-3.1-8b",
        "task": "causal_lm",
        "method": "lora",
        "packing": True,
        "sequence_length": 8192,
        "rankable": False,
        "sha256": "ef" * 32,
    }
    figures = {
        "accelerator": "nvidia-h100",
        "accelerator_count": 16,
        "global_batch": 8,
        "samples_per_s": 2.1,
        "samples_per_s_low": 2.08,
        "samples_per_s_high": 2.12,
        "step_time_s": 3.81,
        "time_to_target_s": 1520.0,
        "time_to_target_low_s": 1500.0,
        "time_to_target_high_s": 1600.0,
    }
    runs = [{"run": number, "status": "ok", "time_to_target_s": time, "samples": 3072} for number, time in enumerate(reached, start=2)]
    facts = {
        ENTRY: {
            ("entry", "round"): "v9.1",
            ("entry", "division"): "closed",
            ("entry", "submitter"): "Acme",
            ("entry", "label"): LABEL,
            ("entry", "target_eval_loss"): "0.925",
            ("system", "name"): "Box of sixteen",
            ("system", "nodes"): "2",
            ("derived", "time_to_target.score_s"): "1542.5",
            ("packages", "framework"): "NeMo 2",
        },
        STRANGE_ENTRY: {(topic, "submitter" if topic == "entry" else "name"): HOSTILE for topic in ("entry", "system")},
    }
    return {
        "sources": [{"source": ROUND, "title": "MLPerf Training v9.1", "summary": "Time to target.", "caveats": [f"{LABEL}."]}],
        "result_rows": [
            {"result_id": ENTRY, "status": "ok", "file": "data/a.json", "note": f"{LABEL}. Two racks.", **common, **figures},
            {
                "result_id": STRANGE_ENTRY,
                "status": "partial",
                "file": "data/b.json",
                "note": HOSTILE,
                "accelerator_printed": HOSTILE,
                **common,
            },
        ],
        "runs": [
            {"result_id": ENTRY, "run": 1, "file": "result_0.txt", "status": "incomplete", "samples": 1024},
            *({"result_id": ENTRY, "file": f"result_{run['run'] - 1}.txt", "samples_per_s": 2.1, "init_s": 90.0, **run} for run in runs),
            {"result_id": STRANGE_ENTRY, "run": 1, "file": HOSTILE, "status": "aborted"},
        ],
        "run_curves": [
            {
                "result_id": ENTRY,
                "run": run,
                "evaluation": step,
                "samples": 1024 * step,
                "seconds": 500.0 * step,
                "eval_loss": loss + run / 1e3,
            }
            for run in range(1, 7)
            for step, loss in enumerate(curve[:1] if run == 1 else curve, start=1)
        ],
        "result_facts": [
            {"result_id": result, "topic": topic, "name": name, "value": value}
            for result, recorded in facts.items()
            for (topic, name), value in recorded.items()
        ],
    }


def _audit() -> dict[str, list[dict[str, Any]]]:
    """Return a result that cannot be true, a statement that contradicts it, and a finding with a stranger's words."""
    rules = {
        "utilisation": ("utilisation", "utilisation of the device above 1", ["impossible", "suspicious"]),
        "text-against-table": ("statements", "text against the table that it sums up", ["inconsistent"]),
        "silent": ("statements", "something that nobody has done", ["ambiguous"]),
    }
    findings = [
        ("utilisation", "impossible", ["003-001"], "Step time 4.7", "9.9e15 FLOP/s / 9.89e14 FLOP/s = 10.0"),
        ("text-against-table", "inconsistent", ["003-S01", "003-001"], "4.7 s are 9 s", "9 / 4.7 = 1.9"),
        ("utilisation", "suspicious", [STRANGE], HOSTILE, HOSTILE),
    ]
    return {
        "audit_rules": [
            {"rule": rule, "family": family, "title": title, "why": f"Because of {rule}.", "verdicts": verdicts}
            for rule, (family, title, verdicts) in rules.items()
        ],
        "findings": [
            {
                "finding": number,
                "rule": rule,
                "verdict": verdict,
                "record_ids": records,
                "claim": claim,
                "calculation": calculation,
                "numbers": "{}",
            }
            for number, (rule, verdict, records, claim, calculation) in enumerate(findings, start=1)
        ],
    }


def _predictions() -> dict[str, list[dict[str, Any]]]:
    """Return a result that is met, one that is missed and one without data, each with its accelerator left out."""
    row = {
        "left_out": "accelerator",
        "left_out_group": "nvidia-h100",
        "stack": "003",
        "model": "llama-3.1-8b",
        "method": "lora",
        "accelerator": "nvidia-h100",
        "accelerator_count": 1,
        "tokens_per_s": 2560.0,
        "same": [],
    }
    met = {"predicted_tokens_per_s": 2816.0, "predicted_low": 2400.0, "predicted_high": 3300.0, "error": 0.1, "covered": True}
    missed = {"predicted_tokens_per_s": 1280.0, "predicted_low": 1000.0, "predicted_high": 1600.0, "error": -0.5, "covered": False}
    return {
        "throughput_errors": [
            {**row, "result_id": "003-001", **met},
            {**row, "result_id": MEASURED, "stack": "measured", **missed},
            {**row, "result_id": SLOWER, "stack": "measured", "model": HOSTILE, "no_data": HOSTILE},
        ],
        "throughput_model": [
            {
                "parameter": "factor: matmul",
                "kind": "factor",
                "level": "matmul",
                "value": 1.5,
                "low": 1.2,
                "high": 1.9,
                "rows": 3,
                "meaning": "matrix products",
            }
        ],
        "throughput_refused": [{"result_id": OTHER, "reason": HOSTILE}],
        "memory_errors": [
            {
                "result_id": "003-001",
                "model": "llama-3.1-8b",
                "method": "lora",
                "accelerator": "nvidia-h100",
                "accelerator_count": 1,
                "published_bytes": 36e9,
                "predicted_bytes": 37.8e9,
                "formula_004_bytes": 72e9,
                "error": 0.05,
                "reading": "GB, as the code prints.",
            }
        ],
    }
