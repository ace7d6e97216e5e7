"""The list of what only an accelerator can prove: each line is shown by the result that it is about, and by no run on the CPU."""

import pytest

from tunemark.site.pages.device_coverage import PROOFS, Shown

CPU = {
    **dict.fromkeys(("attention", "fused_kernels", "compile", "process_group", "energy_source", "peak_memory_method", "study_kind")),
    **dict.fromkeys(("mfu", "predicted_memory_bytes", "nodes")),
    "status": "ok",
    "backend": "cpu",
    "method": "lora",
    "precision": "fp32",
    "optimizer": "adamw",
}
SHOWN = {
    "FlashAttention 2": {"attention": "flash_attention_2"},
    "FlashAttention 3": {"attention": "flash_attention_3"},
    "QLoRA on a GPU": {"method": "qlora"},
    "fp16 on an accelerator": {"precision": "fp16"},
    "tf32": {"precision": "tf32"},
    "8-bit optimizer states on an accelerator": {"optimizer": "paged_adamw_8bit"},
    "Offload from an accelerator to host memory": {"plan": {"device.offload": "all"}},
    "Tensor parallel": {"plan": {"device.tensor_parallel": "8"}},
    "Pipeline parallel": {"plan": {"device.pipeline_parallel": "2"}},
    "Lowered clocks are noticed": {"doubts": {"throttled"}},
    "Processes of others on a device are noticed": {"doubts": {"busy_device"}},
    "Memory predicted beside a device's allocator": {"predicted_memory_bytes": 1, "peak_memory_method": "torch.cuda.max_memory_allocated"},
    "Out of memory on a device": {"status": "oom_device"},
    "The frontier of a device's memory": {"status": "oom_device", "study_kind": "frontier"},
}


def seen(*, plan=None, doubts=(), **columns):
    return Shown(CPU | columns, {"device.offload": "none", "device.tensor_parallel": "1"} | (plan or {}), frozenset(doubts))


@pytest.mark.parametrize("what", SHOWN)
def test_what_only_an_accelerator_can_prove_is_shown_by_the_run_that_it_is_about(what):
    assert PROOFS[what](seen(backend="cuda", **SHOWN[what]))
    assert not PROOFS[what](seen(backend="cuda"))


def test_a_plain_run_on_the_cpu_proves_nothing_of_an_accelerator():
    busy = seen(method="qlora", optimizer="adamw_8bit", plan={"device.offload": "all"}, doubts={"busy_device"})
    assert [what for what, shows in PROOFS.items() if shows(busy)] == []


def test_a_run_that_did_not_end_well_proves_only_that_memory_can_run_out():
    full = seen(backend="cuda", method="qlora", attention="flash_attention_3", status="oom_device")
    assert [what for what, shows in PROOFS.items() if shows(full)] == ["Out of memory on a device"]
