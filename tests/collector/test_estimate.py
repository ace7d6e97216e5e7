"""`tunemark estimate`: a ledger for people, the same for programs, and errors that can be mended."""

import json
import re
import shlex
from pathlib import Path

import pytest
from factories import FACTS, Tunemark

from tunemark.collector.predict import cross_validation
from tunemark.collector.predict.cross_validation import throughput_rows
from tunemark.collector.predict.estimate import read_evidence as READ_EVIDENCE  # noqa: N812 - before a fixture replaces it
from tunemark.collector.predict.fit import fit
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.option_rates import beyond_context

BASE = ("estimate", "--model", "llama-3.1-8b", "--method", "lora", "--seq", "8192", "--micro-batch", "2", "--checkpointing", "full")


pytestmark = pytest.mark.usefixtures("calibrated_once")


def test_each_line_has_its_formula_and_each_accelerator_its_margin(tunemark: Tunemark) -> None:
    done = tunemark(*BASE, "--stack", "hf", "-a", "nvidia-rtx-4090", "-a", "A100 80GB")
    assert done.code == 0
    assert "8,030,261,248 x 2 bytes" in done.out
    assert "needed on each device" in done.out
    large, small = (line for line in done.out.splitlines() if "micro-batch 2, checkpointing full" in line)
    assert re.search(r"RTX 4090 +no +47\.9 GiB of 24\.0 GiB ", small)
    assert re.search(r"A100 .+ fits +47\.9 GiB of 80\.0 GiB +[\d,]+ +[\d,]+ to [\d,]+ ", large), (
        "without the size of the data there is a rate"
    )
    assert done.out.index("A100") < done.out.index("needed on each device"), "the answer stands before the memory"
    assert "each device lacks 23.9 GiB" in done.out


def test_all_accelerators_are_judged_when_none_is_named_smallest_first(tunemark: Tunemark) -> None:
    answer = json.loads(tunemark(*BASE, "--stack", "hf", "--json").out)
    sizes = [one["memory_bytes"] for one in answer["accelerators"]]
    assert len(sizes) > 40
    assert sizes == sorted(sizes)
    for one in answer["accelerators"]:
        low, high = one["needed_interval_bytes"]
        assert (one["fit"] == "no") == (one["memory_bytes"] < low)
        assert (one["fit"] in {"fits", "probably"}) == (one["memory_bytes"] >= high)
        assert one["margin_bytes"] == one["memory_bytes"] - one["needed_bytes"]


def test_without_a_stack_the_verdict_names_one_that_fits(tunemark: Tunemark) -> None:
    full = ("estimate", "-m", "llama-3.1-8b", "--method", "full", "--seq", "4096", "--checkpointing", "full", "-a", "H100 80GB", "--json")
    usual, torchtune = (json.loads(tunemark(*full, *more).out) for more in ((), ("--stack", "torchtune")))
    assert usual["needed_bytes"] == usual["stacks"]["hf"]["needed_bytes"]
    assert torchtune["needed_interval_bytes"][1] < usual["needed_interval_bytes"][0]
    assert [(fit["fit"], fit["with_stack"]) for answer in (usual, torchtune) for fit in answer["accelerators"]] == [
        ("no", "torchtune"),
        ("fits", None),
    ]


def test_a_chosen_stack_keeps_what_is_given(tunemark: Tunemark) -> None:
    given = ("estimate", "-m", "llama-3.1-8b", "--method", "full", "--set", "parameters=bf16", "--json")
    shape = json.loads(tunemark(*given, "--stack", "hf").out)["shape"]
    assert (shape["parameters"], shape["autocast"], shape["reentrant"]) == ("bf16", None, True)
    assert json.loads(tunemark(*given[:-3], "-a", "B200", "--json", "--stack", "hf").out)["shape"]["autocast"] == "bf16"
    assert "did you mean 'torchtune'" in tunemark(*given, "--stack", "torchtun").err


def test_levers_of_the_command_line_lower_the_estimate(tunemark: Tunemark) -> None:
    plain = shlex.split("estimate -m llama-3.1-8b --method full --seq 2048 --micro-batch 2 --stack hf-pure-bf16 -a B200 --json")
    levers = shlex.split(
        "--checkpointing=full --set=loss=chunked --set=compiled=true --optimizer=paged-adamw-8bit --set=activation_offload=true"
    )
    needed, given = [json.loads(tunemark(*plain, "--checkpointing", "none").out)["needed_bytes"]], list(plain)
    for lever in (*levers, "--set=optimizer_in_backward=true"):
        given.append(lever)
        needed.append(json.loads(tunemark(*given).out)["needed_bytes"])
    assert needed == sorted(needed, reverse=True)
    assert needed[-1] < 20 * 2**30 < 60 * 2**30 < needed[0]


def test_devices_in_the_name_stacks_and_settings_without_effect_on_the_rate_are_said(tunemark: Tunemark) -> None:
    done = tunemark("estimate", "-m", "llama-3.1-8b", "-a", "8xH100", "--set", "compiled=true")
    assert "H100 SXM5 80GB \N{MULTIPLICATION SIGN} 8  fits" in done.out
    assert "--set compiled: no effect on the rate of this plan, which is that of any plain loop" in done.err
    assert "TPU v6e" not in tunemark("estimate", "-m", "llama-3.1-8b", "--stack", "unsloth").out
    for options, words in ((("8xH100", "--devices", "4"), "differs from 8"), (("TPU v6e", "--stack", "unsloth"), "these do: hf, ")):
        refused = tunemark("estimate", "-m", "llama-3.1-8b", "-a", *options)
        assert (refused.code, words in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("Llama 3.1 8B LoRA on 1 x H100: 9,000 tokens/s, seq 4k, MFU 30%", "Plausible: 9,000 tokens/s is within "),
        (
            "Llama 3.1 8B LoRA on 1 x H100: 45,000 tokens/s, seq 4096, bf16",
            "Impossible: 45,000 tokens/s x 33.24 GFLOP = 1,495.9 TFLOP/s, 151.3%",
        ),
        ("Qwen3 8B QLoRA on RTX 4090: 100 tokens/s, seq 2048, 9 GiB", "Suspicious: 100 tokens/s is below "),
        (
            "Qwen2.5 7B QLoRA on RTX 4090: 1,200 steps at 3.1 s/step, total training time 45 minutes",
            "Inconsistent: 1,200 x 3.1 x 1 = 3,720, but ",
        ),
        ("Llama 2 13B full fine-tuning on 8x A100 80GB took 6.5 hours at $40.97/hour and cost $180", "Inconsistent: 40.97 x 23,400 / "),
        ("Full fine-tuning of Llama 2 70B on one A100 80GB took 12 hours with 78 GB peak memory", "Impossible: weights 137.95 GB"),
        ("Mistral 7B QLoRA on a T4 with FlashAttention-2 in fp16: 450 tokens/s, seq 1024", "Suspicious: Tesla T4 has tensor cores of "),
        ("Llama 2 7B LoRA on 8 A100 80GB: 12.8 samples/s, 0.4 steps/s, 3 epochs, 25 min per epoch, total time 1h 15m", "Ambiguous: "),
        (
            "Llama 3.1 70B full on RTX 4090: 500 tokens/s",
            "Suspicious: a step of usual settings, without offload to the host, does not fit: ",
        ),
        ("LoRA Llama 3.1 8B on one H100: 9k tokens/s", "Plausible: 9k tokens/s is within "),
        ("full fine-tuning of Llama 3 70B on 4 A100 40GB GPUs at 1,500 tokens/s in bf16", "Suspicious: a step of usual settings, without "),
        ("Qwen3 8B LoRA fits in 24 GB on a RTX 3090", "Plausible: by the memory model, a step of usual settings needs "),
        ("Qwen3 8B LoRA fits in 12 GB on two H100s", "Suspicious: a step of usual settings, without offload to the host, does not fit: "),
        ("Llama 3.1 8B LoRA on 1 x H100: 40,000 tokens/s", "Suspicious: 128% of the bf16 peak: impossible unless it ran in fp8 (64%); "),
        ("Llama 3.1 8B LoRA on H100: MFU 40%", "Not judged: it is not compared with other results: it states no tokens/s."),
        ("Llama 3.1 8B LoRA on 1 x H100: 40,000 tokens/s in bf16", "Impossible: 40,000 tokens/s x "),
        ("LoRA of Mistral 7B on M3 Max: 490 tokens/s, seq 1024", "Impossible: 490 tokens/s x 29.25 GFLOP = 14.3 TFLOP/s, 100.2%"),
        ("Training all parameters of Qwen2.5 7B on 5B tokens took 6 hours on 16 A100s", "Impossible: 5,000,000,000 tokens / 21,600.00 s"),
        ("Llama 2 7B full fine-tuning on 8x A100 80GB: 5,900 tok/s per GPU at 4k context, 62% MFU", "Inconsistent: 5,900 tokens/s x "),
        ("We used 4 nodes of 8 H100s for 10 hours, 80 GPU-hours in total.", "Inconsistent: 32 x 36,000 / 3,600 = 320, but "),
        ("9,000 sequences of 1,024 tokens each are 92M tokens", "Inconsistent: 9,000 x 1,024 = "),
        ("A micro-batch of 2 with gradient accumulation 16 on 4 GPUs: effective batch size 64", "Inconsistent: 2 x 16 x 4 = 128, but "),
        ("Memory fell from 62 GB to 31 GB, a 75% saving", "Inconsistent: 1 - 31 GB / 62 GB = 0.5, but "),
        ("Rank 4 on all linear layers of Llama 3.1 8B with LoRA: 100M trainable parameters", "Inconsistent: 100M trainable parameters = "),
        ("Yi 34B has 43 billion parameters and was tuned on one A100", "Inconsistent: Yi 34B has "),
        ("We fine-tuned Gemma 2 9B in January 2024 on a single A100.", "Impossible: Gemma 2 9B has weights that were released on "),
        ("Training used the FP8 tensor cores of an RTX 3090.", "Impossible: the matrix units of GeForce RTX 3090 "),
        ("8 H100s at 650 W each for 24 hours used 125 kWh", "Plausible: 650 x 8 x 86,400, which agrees with 125 kWh."),
        ("Each step took 3.2 s with a global batch of 64 sequences of 2,048 tokens: 41k tokens/s on 8x A100", "Plausible: "),
        ("MLX 4-bit LoRA of Qwen3 8B on an M2 Max with 64 GB: 150 tokens/s, 9 GB", "Not judged: "),
        ("Full fine-tuning of Llama 3.1 8B on H100s with FSDP: 6,000 tokens/s per GPU, 50 GiB", "Plausible: "),
    ],
)
def test_a_claim_in_words_is_judged_in_one_sentence(tunemark: Tunemark, claim: str, verdict: str) -> None:
    assert tunemark("audit", claim).out.startswith(verdict)


def test_rows_longer_than_the_context_are_a_warning(tunemark: Tunemark) -> None:
    long = ("estimate", "-m", "llama-3.1-8b", "-a", "L4", "--json", "--seq")
    done = tunemark(*long, 131_073)
    warning = f"--seq: {beyond_context(FACTS.models['llama-3.1-8b'], 131_073)}"
    assert (done.code, done.err) == (0, f"tunemark: warning: {warning}\n")
    assert json.loads(done.out)["warnings"] == [warning]
    done = tunemark(*long, 131_072)
    assert (json.loads(done.out)["warnings"], done.err) == ([], "")


def test_a_cpu_is_refused_because_its_memory_is_unknown(tunemark: Tunemark) -> None:
    done = tunemark("estimate", "-m", "llama-3.1-8b", "-a", "L4", "-a", "EPYC 7452")
    assert (done.code, "'amd-epyc-7452': has no memory that is known: predictions are for accelerators" in done.err) == (2, True), done.err


def test_the_default_length_is_within_a_table_of_positions(tunemark: Tunemark) -> None:
    assert json.loads(tunemark("estimate", "-m", "gpt2", "--json").out)["shape"]["sequence_length"] == 1024
    assert json.loads(tunemark("estimate", "-m", "llama-3.1-8b", "--json").out)["shape"]["sequence_length"] == 2048


def test_the_fit_is_kept_until_data_changes(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    """Nothing is fitted twice for the same facts and results, and a kept fit of other ones is not used."""
    fits = list[int]()
    tables = throughput_rows(fit(()), (), {}, ()) | {"throughput_refused": []}
    monkeypatch.setattr(cross_validation, "evidence_rows", lambda *_: fits.append(1) or tables)
    for changes, fitted in ((False, 1), (False, 1), (True, 2)):
        if changes:
            (checkout / "data" / "models" / "notes.txt").write_text("a new file")
        assert READ_EVIDENCE(checkout, FactBase.of_root(checkout)).results == ()
        assert len(fits) == fitted
