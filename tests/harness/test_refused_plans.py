"""What a machine cannot run is refused before anything runs, with the reason and the setting to use instead; all else is planned."""

import pytest
from harness_making import gpus, make_machine

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.schema.vocabulary import Backend

PACKAGES = {"torch": "2.13.0", "transformers": "5.23.0", "deepspeed": "0.19.8", "bitsandbytes": "0.50.2", "torchao": "0.18.0"}
KERNELS = {"liger-kernel": "0.8.5", "flash-attn": "2.8", "flash-attn-3": "3.0"}


def device(backend, name, target=None, **packages):
    return gpus(name, 2, gib=80, backend=backend, target=target, packages=PACKAGES | packages)


H100 = device(Backend.CUDA, "NVIDIA H100 80GB HBM3", "9.0", **KERNELS)
MACHINES = {
    "cpu": make_machine(packages=PACKAGES),
    "bare cpu": make_machine(),
    "cpu, torch 2.11": make_machine(packages=PACKAGES | {"torch": "2.11.0"}),
    "h100": H100,
    "bare h100": device(Backend.CUDA, "NVIDIA H100 80GB HBM3", "9.0"),
    "h100 by its name": device(Backend.CUDA, "NVIDIA H100 80GB HBM3", **KERNELS),
    "h100, torch 2.10": H100.model_copy(update={"packages": PACKAGES | {"torch": "2.10.0"}}),
    "h100, transformers 4": H100.model_copy(update={"packages": PACKAGES | {"transformers": "4.57.6"}}),
    "l4": device(Backend.CUDA, "NVIDIA L4", "8.9", **KERNELS),
    "t4": device(Backend.CUDA, "Tesla T4", "7.5"),
    "p100": device(Backend.CUDA, "Tesla P100-PCIE-16GB", "6.0"),
    "mi300x": device(Backend.ROCM, "AMD Instinct MI300X", "gfx942"),
    "mi250x": device(Backend.ROCM, "AMD Instinct MI250X", "gfx90a"),
    "neuron": device(Backend.NEURON_XLA, "Trainium1 core (1 of 2)", **{"optimum-neuron": "0.4.5", "torch-xla": "2.8.1"}),
    "trainium2": device(Backend.NEURON, "Trainium2 core (1 of 4)", **{"torch-neuronx": "2.13.3.0"}),
    "older trainium2": device(Backend.NEURON, "Trainium2 core (1 of 4)", **{"torch-neuronx": "2.9.0.2"}),
    "tpu": device(Backend.TPU, "TPU v6e", **{"torch-tpu": "0.1.0"}),
    "bare gaudi": device(Backend.HPU, "Gaudi 3"),
    "inferentia2": device(Backend.NEURON_XLA, "Inferentia2 core (1 of 2)", **{"optimum-neuron": "0.4.5", "torch-xla": "2.8.1"}),
    "bare neuron": device(Backend.NEURON_XLA, "Trainium1 core (1 of 2)"),
}
PACKED = "data.packing=true data.name=random-documents "
VARLEN = f"{PACKED}attention=varlen "
FLEX = f"{PACKED}attention=flex_attention "
FULL, MASTER, ROUNDED = (
    "method=full ",
    "method=full compute=bf16 optimizer.master_weights=true ",
    "compute=bf16 optimizer.stochastic_rounding=true ",
)
FROZEN, TRAINED = "frozen_weights=fp8 ", "method=full fp8_training=rowwise "
PLANNED = None


@pytest.mark.parametrize(
    ("machine", "workload", "settings", "options", "said"),
    [
        # Attention
        ("h100", "smoke-lora", VARLEN, {}, PLANNED),
        ("h100, torch 2.10", "smoke-lora", VARLEN, {}, "needs torch 2.11 or newer"),
        ("t4", "smoke-lora", f"{VARLEN}compute=fp16", {}, "compute capability 8.0"),
        ("mi300x", "smoke-lora", VARLEN, {}, PLANNED),
        ("h100", "smoke-lora", "attention=varlen", {}, "for packed documents"),
        ("h100", "smoke-lora", f"{VARLEN}data.document_borders=false", {}, "for packed documents"),
        ("h100", "smoke-lora", f"{VARLEN}compute=fp32", {}, "takes bf16 and fp16"),
        ("h100", "smoke-lora", f"{VARLEN}model=gemma-2-9b", {}, "soft-caps"),
        ("h100", "smoke-lora", f"{VARLEN}model=gpt2", {}, "drops attention scores"),
        ("h100", "smoke-lora", f"{FLEX}model=gemma-2-9b", {}, PLANNED),
        ("h100", "smoke-lora", f"{FLEX}model=gpt2", {}, "no flex attention"),
        ("p100", "smoke-lora", f"{FLEX}compute=fp32", {}, "Triton"),
        ("h100", "smoke-bert", "attention=flex_attention", {}, "drops attention scores"),
        ("cpu", "trainer-8k-gemma-2-9b-lora", "fused_kernels=none attention=sdpa", {}, "soft-caps attention scores"),
        ("h100", "smoke-lora", "attention=flash_attention_2", {}, PLANNED),
        ("bare h100", "smoke-lora", "attention=flash_attention_2", {}, "needs flash-attn, which is not installed"),
        ("bare h100", "smoke-lora", "attention=flash_attention_3", {}, "needs flash-attn-3, which is not installed"),
        ("h100 by its name", "smoke-lora", "attention=flash_attention_3", {}, PLANNED),
        ("l4", "smoke-lora", "attention=flash_attention_3", {}, "Hopper"),
        ("h100", "smoke-lora", "sdpa_kernel=cudnn", {}, PLANNED),
        ("t4", "smoke-lora", "sdpa_kernel=cudnn", {}, "compute capability 8.0"),
        ("mi300x", "smoke-lora", "sdpa_kernel=cudnn", {}, "for NVIDIA GPUs"),
        ("cpu", "smoke-lora", "sdpa_kernel=flash", {}, "on NVIDIA GPUs"),
        ("h100", "smoke-lora", "sdpa_kernel=flash attention=eager", {}, "attention=sdpa"),
        ("h100", "smoke-lora", f"{PACKED}sdpa_kernel=flash", {}, "takes no mask"),
        # Compilation and kernels
        ("h100", "smoke-lora", "compile_mode=max-autotune", {}, "give compile=model or compile=blocks too"),
        ("h100", "smoke-lora", "compile_mode=reduce-overhead compile=model", {}, PLANNED),
        ("h100", "smoke-lora", "compile_mode=reduce-overhead compile=blocks", {}, "use compile=model"),
        ("cpu", "smoke-lora", "compile_mode=reduce-overhead compile=model", {}, "for NVIDIA GPUs only"),
        ("h100", "smoke-lora", f"{VARLEN}compile_mode=reduce-overhead compile=model", {}, "same shapes in each step"),
        ("h100", "smoke-lora", "fused_kernels=liger", {}, PLANNED),
        ("h100", "smoke-bert", "fused_kernels=liger", {}, "no kernels for bert; use fused_kernels=none"),
        # Number formats
        ("t4", "smoke-lora", "compute=bf16", {}, "bf16 on a Volta or Turing GPU: "),
        ("t4", "smoke-lora", "compute=tf32", {}, "use compute=fp16"),
        ("p100", "smoke-lora", "compute=fp16", {}, "compute=fp32"),
        ("t4", "smoke-lora", "", {"devices": 2, "strategy": "fsdp2"}, "fsdp2"),
        ("t4", "smoke-lora", "", {"devices": 2, "strategy": "ddp"}, PLANNED),
        ("cpu", "smoke-lora", "compute=fp16", {}, "use compute=bf16"),
        ("t4", "smoke-lora", "model=gemma-3-1b", {"weights": "pretrained"}, "beyond the range of fp16; use compute=bf16"),
        ("t4", "smoke-lora", "model=gemma-3-1b compute=fp32", {"weights": "pretrained"}, PLANNED),
        ("t4", "smoke-lora", "model=gemma-3-1b", {}, PLANNED),
        ("h100", "smoke-lora", FROZEN, {}, PLANNED),
        ("h100", "smoke-lora", TRAINED, {}, PLANNED),
        ("mi300x", "smoke-lora", FROZEN, {}, PLANNED),
        ("cpu, torch 2.11", "smoke-lora", FROZEN, {}, "fp8 on a CPU needs torch 2.12 or newer"),
        ("mi250x", "smoke-lora", FROZEN, {}, "fp8"),
        ("t4", "smoke-lora", f"{TRAINED}compute=fp16", {}, "fp8"),
        ("h100", "gpt2-small-full", "compute=bf16 fp8_training=rowwise", {}, "layers of GPT-2 are not linear layers"),
        ("h100", "smoke-lora", f"{FULL}{FROZEN}", {}, "use method=lora with frozen_weights=fp8"),
        ("cpu", "smoke-lora", f"method=qlora {FROZEN}", {}, "four bits; use method=lora"),
        ("h100", "smoke-lora", f"compute=fp32 {FROZEN}", {}, "use compute=bf16"),
        ("h100", "smoke-lora", "fp8_training=rowwise", {}, "LoRA freezes them; use frozen_weights=fp8"),
        ("h100", "large-qlora-2k-mixtral-8x7b", f"method=lora {FROZEN}", {}, "experts of transformers 5 are not linear layers"),
        ("cpu", "smoke-lora", FROZEN, {"devices": 2, "strategy": "zero3"}, "use ddp, zero1 or zero2"),
        ("cpu", "smoke-lora", FROZEN, {"devices": 2, "strategy": "zero2"}, PLANNED),
        ("bare cpu", "smoke-lora", TRAINED, {}, "pip install torchao"),
        ("h100", "large-qlora-2k-mixtral-8x7b", "", {}, "bitsandbytes does not quantise"),
        ("h100, transformers 4", "large-qlora-2k-mixtral-8x7b", "", {}, PLANNED),
        ("h100", "large-qlora-2k-llama2-70b", "compile=blocks", {}, PLANNED),
        # Optimizers
        ("cpu", "smoke-full", MASTER, {"devices": 2, "strategy": "fsdp2"}, PLANNED),
        ("cpu", "smoke-full", "optimizer.master_weights=true compute=fp32", {}, "copies of bf16 weights"),
        ("cpu", "smoke-lora", "compute=bf16 optimizer.master_weights=true", {}, "for full fine-tuning"),
        ("cpu", "smoke-full", f"{MASTER}optimizer.name=sgd", {}, "optimizer.name=adamw"),
        ("cpu", "smoke-full", MASTER, {"devices": 2, "strategy": "zero2"}, "of its own"),
        ("cpu", "smoke-lora", ROUNDED, {}, PLANNED),
        ("cpu", "smoke-full", ROUNDED, {"devices": 2, "strategy": "fsdp2"}, PLANNED),
        ("cpu", "smoke-full", "optimizer.stochastic_rounding=true compute=fp32", {}, "fp32 weights keep small updates"),
        ("cpu", "smoke-full", f"{ROUNDED}optimizer.name=sgd", {}, "optimizer.name=adamw, not sgd"),
        ("cpu", "smoke-full", f"{ROUNDED}optimizer.master_weights=true", {}, "fp32 copies"),
        ("cpu", "smoke-full", ROUNDED, {"devices": 2, "strategy": "zero2"}, "zero2 keeps fp32 copies"),
        ("cpu", "smoke-lora", "optimizer.name=adamw_8bit", {}, "use optimizer.name=adamw"),
        ("cpu", "smoke-lora", "gradient_checkpointing=selective compile=blocks", {}, "use gradient_checkpointing=full or none"),
        # Devices
        ("cpu", "smoke-full", "", {"strategy": "ddp"}, "leave --sharding out"),
        ("cpu", "smoke-full", "", {"devices": 2, "strategy": "single"}, "need one of ddp"),
        ("cpu", "smoke-full", "", {"devices": 2, "strategy": "fsdp2", "offload": "optimizer"}, "fsdp2"),
        ("cpu", "smoke-bert", "method=qlora", {}, "head of a classifier"),
        ("cpu", "smoke-bert", "data.sequence_length=100000", {}, "positions"),
        ("cpu", "smoke-full", "data.sequence_length=100000", {}, PLANNED),
        # Neuron
        ("bare neuron", "smoke-lora", "", {}, "optimum-neuron[training]"),
        ("neuron", "smoke-lora", "attention=flex_attention", {}, "flex attention"),
        ("neuron", "smoke-lora", "optimizer.name=adafactor", {}, "adamw and sgd"),
        ("neuron", "smoke-lora", "optimizer.layer_decay=0.9", {}, "same learning rate"),
        ("neuron", "smoke-lora", "gradient_checkpointing=selective", {}, "whole blocks"),
        ("neuron", "smoke-lora", "fused_kernels=liger", {}, "Triton"),
        ("neuron", "smoke-lora", "compute=fp16", {}, "bf16"),
        ("neuron", "smoke-lora", f"{PACKED}data.document_borders=true", {}, "ignore document borders"),
        ("neuron", "smoke-lora", "method=qlora", {}, "no quantised weights"),
        ("neuron", "smoke-lora", "", {"devices": 2, "strategy": "zero2"}, "zero1"),
        ("neuron", "smoke-lora", "", {"devices": 2, "strategy": "zero1"}, PLANNED),
        ("neuron", "smoke-lora", "", {"save": True}, "leave save=true out"),
        ("neuron", "gpt2-small-full", "", {}, "optimum-neuron trains llama, granite, qwen3"),
        ("inferentia2", "smoke-lora", "", {}, "AWS supports training on other accelerators, and this one for inference only"),
        # Devices that a package adds to torch
        ("trainium2", "smoke-bert", "", {"devices": 2}, PLANNED),
        ("older trainium2", "smoke-lora", "", {}, "needs torch-neuronx 2.13 or newer, and this is 2.9.0.2: install"),
        ("bare gaudi", "smoke-lora", "", {}, "needs habana-torch-plugin, which is not installed: use Intel's"),
        ("tpu", "smoke-lora", "", {}, PLANNED),
        ("tpu", "smoke-lora", "compute=fp32", {}, "this device has bf16"),
        ("tpu", "smoke-lora", "", {"devices": 2}, "starts no process group on TPUs"),
        ("tpu", "bert-emotion", "", {}, PLANNED),
        ("neuron", "smoke-bert", "", {}, "optimum-neuron trains causal language models"),
        ("neuron", "bert-emotion", "data.padding=dynamic", {}, "each new length is another graph"),
    ],
)  # fmt: skip
def test_a_plan_is_refused_where_it_cannot_run_and_says_why(facts, machine, workload, settings, options, said):
    found = resolve(workload, facts, MACHINES[machine], Options(overrides=tuple(settings.split()), **options)).unsupported
    assert found is None if said is PLANNED else found is not None and said in found, found
