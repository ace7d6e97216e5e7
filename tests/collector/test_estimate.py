"""`tunemark estimate`: a ledger for people, the same for programs, and errors that can be mended."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from factories import FACTS, Tunemark

from tunemark.collector.predict import cross_validation
from tunemark.collector.predict.cross_validation import throughput_rows
from tunemark.collector.predict.estimate import read_evidence as READ_EVIDENCE  # noqa: N812 - before a fixture replaces it
from tunemark.collector.predict.fit import fit
from tunemark.collector.predict.predicted_vs_measured import memory_needs
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.option_rates import cautions
from tunemark.schema.vocabulary import METHODS

AS_TYPED = tomllib.loads(Path(__file__).with_name("as_typed.toml").read_text(encoding="utf-8"))
BASE = ("estimate", "--model", "llama-3.1-8b", "--method", "lora", "--seq", "8192", "--micro-batch", "2", "--checkpointing", "full")


def test_each_line_has_its_formula_and_each_accelerator_its_margin(tunemark: Tunemark) -> None:
    done = tunemark(*BASE, "--stack", "hf", "-a", "nvidia-rtx-4090", "-a", "A100 80GB")
    assert done.code == 0
    assert "8,030,261,248 x 2 bytes" in done.out
    assert "needed: a device must have it" in done.out
    large, small = (line for line in done.out.splitlines() if re.match("A100.+micro-batch 2, checkpointing full|GeForce RTX 4090 ", line))
    assert re.search(r"RTX 4090 +no +47\.9 GiB of 23\.6 GiB ", small)
    assert re.search(r"A100 .+ fits +47\.9 GiB of 79\.1 GiB +[\d,]+ +[\d,]+ to [\d,]+ ", large), (
        "without the size of the data there is a rate"
    )
    assert done.out.index("A100") < done.out.index("needed: a device must have it"), "the answer stands before the memory"
    assert "each device lacks 24.3 GiB" in done.out
    longest = re.search(r"Longest rows that fit on A100 .+, of powers of 2: ([\d,]+) tokens, micro-batch 2, checkpointing full ", done.out)
    assert longest[1] == "8,192", "the next one, of 16,384, needs twice the activations and logits"


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


def test_without_a_stack_the_verdict_names_one_and_the_methods_that_fit(tunemark: Tunemark) -> None:
    full = ("estimate", "-m", "llama-3.1-8b", "--method", "full", "--seq", "4096", "--checkpointing", "full", "-a", "H100 80GB", "--json")
    usual, torchtune = (json.loads(tunemark(*full, *more).out) for more in ((), ("--stack", "torchtune")))
    assert usual["needed_bytes"] == usual["stacks"]["hf"]["needed_bytes"]
    assert usual["needed_interval_bytes"][0] < torchtune["needed_interval_bytes"][1] < usual["needed_bytes"]
    verdicts = [(fit["fit"], fit["with_stacks"][:2], fit["fitting"]) for answer in (usual, torchtune) for fit in answer["accelerators"]]
    assert verdicts == [("no", ["hf-pure-bf16", "unsloth"], ["lora", "qlora"]), ("fits", [], [])]


def test_without_a_model_the_largest_that_fit_are_named_largest_first(tunemark: Tunemark) -> None:
    found = json.loads(tunemark("estimate", "-a", "RTX 4090", "--json").out)["models"]
    assert all(each["fit"] in {"fits", "probably"} or each["with_stacks"] for each in found)
    fitting = [each for each in found if not each["with_stacks"]]
    sizes = {method: [FACTS.models[each["model"]].parameters or 0 for each in fitting if each["method"] == method] for method in METHODS}
    assert all(each == sorted(each, reverse=True) for each in sizes.values())
    assert sizes["full"][-1] < sizes["lora"][-1] < sizes["qlora"][-1]
    told = tunemark("estimate", "-a", "RTX 4090", "--method", "qlora")
    assert re.search(r"QLoRA +Mistral Small 22B \(2409\) +GeForce RTX 4090 +fits ", told.out)
    assert "--model/-m: missing" in tunemark("estimate").err


def test_all_methods_stand_side_by_side_if_any_is_asked_for(tunemark: Tunemark) -> None:
    asked = ("estimate", "-m", "qwen3-8b", "--method", "any", "-a", "A100 SXM4 80GB")
    assert re.findall(r"^(LoRA|QLoRA|full fine-tuning) +A100 SXM4 80GB +(fits|no)", tunemark(*asked).out, re.MULTILINE) == [
        ("LoRA", "fits"),
        ("QLoRA", "fits"),
        ("full fine-tuning", "no"),
    ]
    answer = json.loads(tunemark(*asked, "--json").out)
    assert {one["method"] for one in answer["accelerators"]} == {"full", "lora", "qlora"}


def test_a_chosen_stack_keeps_what_is_given(tunemark: Tunemark) -> None:
    given = ("estimate", "-m", "llama-3.1-8b", "--method", "full", "--set", "parameters=bf16", "--json")
    shape = json.loads(tunemark(*given, "--stack", "hf").out)["shape"]
    assert (shape["parameters"], shape["autocast"], shape["reentrant"]) == ("bf16", None, True)
    assert json.loads(tunemark(*given[:-3], "-a", "B200", "--json", "--stack", "hf").out)["shape"]["autocast"] == "bf16"
    assert "did you mean 'tuned'" in tunemark(*given, "-a", "B200", "--software", "tunned").err


def test_levers_of_the_command_line_lower_the_estimate(tunemark: Tunemark) -> None:
    plain = shlex.split("estimate -m llama-3.1-8b --method full --seq 2048 --micro-batch 2 --stack hf-pure-bf16 -a B200 --json")
    levers = shlex.split(
        "--checkpointing=full --set=loss=chunked --set=compile=blocks --optimizer=paged-adamw-8bit --set=activation_offload=true"
    )
    needed, given = [json.loads(tunemark(*plain, "--checkpointing", "none").out)["needed_bytes"]], list(plain)
    for lever in (*levers, "--set=optimizer_in_backward=true"):
        given.append(lever)
        needed.append(json.loads(tunemark(*given).out)["needed_bytes"])
    assert needed == sorted(needed, reverse=True)
    assert needed[-1] < 20 * 2**30 < 60 * 2**30 < needed[0]


def test_products_in_fp8_are_faster_where_the_device_has_them(tunemark: Tunemark) -> None:
    asked = ("estimate", "-m", "llama-3.1-8b", "--method", "full", "-a", "8xH100,8xA100 80GB", "--json")
    answers = [json.loads(tunemark(*asked, *more).out)["accelerators"] for more in ((), ("--set", "block_format=fp8"))]
    (_, bf16), (a100, fp8) = (sorted(answer, key=lambda each: each["accelerator"]) for answer in answers)
    assert fp8["tokens_per_s"]["value"] > 1.1 * bf16["tokens_per_s"]["value"]
    assert (a100["tokens_per_s"], a100["no_data"]) == (None, "the card of A100 SXM4 80GB has no dense peak for fp8")


def test_devices_in_the_name_stacks_and_settings_without_effect_on_the_rate_are_said(tunemark: Tunemark) -> None:
    done = tunemark("estimate", "-m", "llama-3.1-8b", "-a", "8xH100", "--set", "compile=blocks")
    assert "H100 SXM5 80GB \N{MULTIPLICATION SIGN} 8  fits" in done.out
    assert "--set compile: no effect on the rate of this plan, which is that of any plain loop" in done.err
    assert re.search(r"tokens/s on H100 .+ 8: torchtune [0-9,]+ .[0-9,]+ to [0-9,]+; micro-batch ", done.out)
    assert "TPU v6e" not in tunemark("estimate", "-m", "llama-3.1-8b", "--stack", "unsloth").out


@pytest.mark.parametrize("names", [("adamw_torch_fused", "adamw-fused"), ("paged_adamw_32bit", "paged-adamw")])
def test_an_optimizer_may_have_its_name_in_transformers(tunemark, names):
    theirs, ours = (tunemark("estimate", "-m", "qwen3-8b", "--method", "full", "--optimizer", name).out for name in names)
    assert f"optimizer {names[1]}" in ours
    assert theirs == ours


def test_full_fine_tuning_that_fits_with_no_stack_names_the_options_with_which_it_fits(tunemark: Tunemark) -> None:
    hint = "it fits with `--set offload=true`"
    assert hint in tunemark("estimate", "-m", "llama-3.3-70b", "--method", "full", "-a", "8 x H100").out
    assert hint not in tunemark("estimate", "-m", "llama-3.1-8b", "--method", "full", "-a", "RTX 4090").out, "one device has no sharding"


def test_adapters_of_a_configuration_with_quantised_weights_are_qlora(tunemark: Tunemark, tmp_path: Path) -> None:
    content = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    content |= {"max_position_embeddings": 128, "quantization_config": {"load_in_4bit": True, "quant_method": "bitsandbytes"}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert "QLoRA, sequence length 128" in tunemark("estimate", "-m", str(tmp_path), "-a", "RTX 4090").out


@pytest.mark.parametrize(("claim", "verdict"), AS_TYPED["claims"])
def test_a_claim_in_words_is_judged_in_one_sentence(tunemark: Tunemark, claim: str, verdict: str) -> None:
    assert tunemark("audit", claim).out.startswith(verdict)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b"])
def test_the_memory_on_the_page_of_a_model_is_that_of_an_estimate(tunemark: Tunemark, model: str) -> None:
    [row] = [each for each in memory_needs(FACTS) if (each["model"], each["method"], each["stack"]) == (model, "lora", "hf")]
    step = ("estimate", "-m", model, "-a", "H100", "--micro-batch", 1, "--json", "--checkpointing")
    answers = [json.loads(tunemark(*step, kind).out) for kind in ("full", "none")]
    assert [answer["needed_bytes"] for answer in answers] == [row["least_bytes"], row["kept_bytes"]]
    assert bool(answers[1]["speed_by_stack"]) is (model == "llama-3.1-8b"), "no stack's loop has results of experts"


def test_rows_longer_than_the_context_are_a_warning(tunemark: Tunemark) -> None:
    long = ("estimate", "-m", "llama-3.1-8b", "-a", "L4", "--json", "--seq")
    done = tunemark(*long, 131_073)
    warning = cautions(FACTS.models["llama-3.1-8b"], 131_073)
    assert (done.code, done.err) == (0, f"tunemark: warning: {warning}\n")
    assert json.loads(done.out)["warnings"] == [warning]
    done = tunemark(*long, 131_072)
    assert (json.loads(done.out)["warnings"], done.err) == ([], "")


def test_the_default_length_is_within_a_table_of_positions(tunemark: Tunemark) -> None:
    assert json.loads(tunemark("estimate", "-m", "gpt2", "--json").out)["shape"]["sequence_length"] == 1024
    assert json.loads(tunemark("estimate", "-m", "llama-3.1-8b", "--json").out)["shape"]["sequence_length"] == 2048


def test_the_fit_is_kept_until_data_changes(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    """Nothing is fitted twice for the same facts and results, and a kept fit of other ones is not used."""
    fits = list[int]()
    tables = throughput_rows(fit(()), (), {}, ())
    monkeypatch.setattr(cross_validation, "evidence_rows", lambda *_: fits.append(1) or tables)
    for changes, fitted in ((False, 1), (False, 1), (True, 2)):
        if changes:
            (checkout / "data" / "models" / "notes.txt").write_text("a new file")
        assert READ_EVIDENCE(checkout, FactBase.of_root(checkout)).results == ()
        assert len(fits) == fitted
