"""`tunemark estimate`: a ledger for people, the same for programs, and errors that can be mended."""

import json

import pytest
from factories import Tunemark

BASE = ("estimate", "--model", "llama-3.1-8b", "--method", "lora", "--seq", "8192", "--micro-batch", "2", "--checkpointing", "full")


def test_each_line_has_its_formula_and_each_accelerator_its_margin(tunemark: Tunemark) -> None:
    done = tunemark(*BASE, "-a", "nvidia-rtx-4090", "-a", "A100 80GB")
    assert done.code == 0
    assert "8,030,261,248 x 2 bytes" in done.out
    assert "needed on each device" in done.out
    small, large = done.out.splitlines()[-2:]
    assert " no " in small
    assert "-23." in small
    assert " fits " in large
    assert "90% interval" in done.out
    assert "+32." in large


def test_all_accelerators_are_judged_when_none_is_named_smallest_first(tunemark: Tunemark) -> None:
    answer = json.loads(tunemark(*BASE, "--json").out)
    sizes = [one["memory_bytes"] for one in answer["accelerators"]]
    assert len(sizes) > 40
    assert sizes == sorted(sizes)
    for one in answer["accelerators"]:
        assert (one["margin_bytes"] >= 0) == (one["largest_micro_batch"] >= 2)
        low, high = answer["needed_interval_bytes"]
        assert (one["fit"] == "no") == (one["memory_bytes"] < low)
        assert (one["fit"] in {"fits", "probably"}) == (one["memory_bytes"] >= high)
        assert one["margin_bytes"] == one["memory_bytes"] - answer["needed_bytes"]


def test_sharding_brings_a_70b_model_onto_80_gib(tunemark: Tunemark) -> None:
    large = (
        "estimate",
        "-m",
        "llama-3.1-70b",
        "--method",
        "full",
        "--seq",
        "4096",
        "--checkpointing",
        "full",
        "--set",
        "loss=fused",
        "--json",
    )
    alone, shared = (
        json.loads(tunemark(*large, "-a", "nvidia-h100-80gb-sxm", *more).out)["accelerators"][0] for more in ((), ("--devices", "32"))
    )
    assert alone["fit"] == "no"
    assert shared["fit"] == "fits"


def test_levers_of_the_command_line_lower_the_estimate(tunemark: Tunemark) -> None:
    plain = ("estimate", "-m", "llama-3.1-8b", "--method", "full", "--seq", "2048", "--micro-batch", "2", "--json")
    levers = (
        ("--checkpointing", "full"),
        ("--set", "loss=chunked"),
        ("--set", "compiled=true"),
        ("--optimizer", "paged-adamw-8bit"),
        ("--set", "activation_offload=true"),
    )
    needed, given = [json.loads(tunemark(*plain).out)["needed_bytes"]], list(plain)
    for lever in (*levers, ("--set", "optimizer_in_backward=true")):
        given += lever
        needed.append(json.loads(tunemark(*given).out)["needed_bytes"])
    assert needed == sorted(needed, reverse=True)
    assert needed[-1] < 20 * 2**30 < 60 * 2**30 < needed[0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("-m", "llama-3.1-8b", "-a", "A100 81GB"), "did you mean"),
        (("-m", "llama-3.1-8b", "--method", "lra"), "did you mean 'lora'"),
        (("-m", "llama-3.1-8b", "--checkpointing", "ful"), "did you mean 'full'"),
        (("-m", "llama-3.1-8b", "--set", "loss=fuse"), "did you mean 'fused'"),
        (("-m", "llama-3.1-8b", "--sharding", "fsdp"), "did you mean 'fsdp"),
        (("-m", "llama-3.1-8b", "--set", "lora_targets=q_prj"), "did you mean 'q_proj'"),
        (("-m", "llama-3.1-8b", "--micro-batch", "0"), "--micro-batch: '0': must be a whole number of 1 or more"),
        (("-m", "llama-3.1-8b", "--seq", "2.5"), "--seq: '2.5': must be a whole number of 1 or more"),
    ],
)
def test_a_wrong_word_gets_a_suggestion(tunemark: Tunemark, arguments: tuple[str, ...], complaint: str) -> None:
    done = tunemark("estimate", *arguments)
    assert done.code == 2
    assert complaint in done.err


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("--method", "full", "--rank", "8"), "--rank"),
        (("--method", "full", "--set", "lora_targets=q_proj"), "--set lora_targets"),
        (("--epochs", "3"), "--epochs"),
        (("--usd-per-hour", "2.5"), "--usd-per-hour"),
    ],
)
def test_an_option_without_effect_is_an_error_not_ignored(tunemark: Tunemark, arguments: tuple[str, ...], option: str) -> None:
    done = tunemark("estimate", "--model", "llama-3.1-8b", *arguments)
    assert done.code == 2
    assert f"{option}: " in done.err
    assert "no effect" in done.err


def test_rows_longer_than_the_context_are_a_warning(tunemark: Tunemark) -> None:
    long = ("estimate", "-m", "llama-3.1-8b", "-a", "L4", "--json", "--seq")
    done = tunemark(*long, 131_073)
    warning = "--seq: rows of 131,073 tokens are longer than the context of Llama 3.1 8B, 131,072 tokens"
    assert (done.code, done.err) == (0, f"tunemark: warning: {warning}\n")
    assert json.loads(done.out)["warnings"] == [warning]
    done = tunemark(*long, 131_072)
    assert (json.loads(done.out)["warnings"], done.err) == ([], "")


def test_rows_longer_than_a_table_of_positions_are_an_error_and_never_the_default(tunemark: Tunemark) -> None:
    done = tunemark("estimate", "-m", "gpt2", "--seq", 1025)
    assert (done.code, done.err) == (2, "tunemark: --seq: 1025: GPT-2 small has positions for 1,024 tokens; give at most that number\n")
    assert json.loads(tunemark("estimate", "-m", "gpt2", "--json").out)["shape"]["sequence_length"] == 1024
    assert json.loads(tunemark("estimate", "-m", "llama-3.1-8b", "--json").out)["shape"]["sequence_length"] == 2048
