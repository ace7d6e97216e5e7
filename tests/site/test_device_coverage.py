"""Features that must be shown on an accelerator: each line is shown by its own kind of result, and by no run on the CPU."""

import pytest

from tunemark.site.pages.device_coverage import MeasuredRun, proofs

CPU = {
    **dict.fromkeys(("attention", "fused_kernels", "compile", "process_group", "energy_source", "peak_memory_method", "study_kind")),
    **dict.fromkeys(("mfu", "predicted_memory_bytes", "nodes")),
    "status": "ok",
    "backend": "cpu",
    "method": "lora",
    "precision": "fp32",
    "fp8": "none",
    "optimizer": "adamw",
}
SHOWN = {
    "FlashAttention 2": {"attention": "flash_attention_2"},
    "FlashAttention 3": {"attention": "flash_attention_3"},
    "QLoRA on a GPU": {"method": "qlora"},
    "Frozen weights in fp8": {"fp8": "frozen weights"},
    "Training in fp8": {"fp8": "rowwise"},
    "fp16 on an accelerator": {"precision": "fp16"},
    "tf32": {"precision": "tf32"},
    "8-bit optimizer states on an accelerator": {"optimizer": "paged_adamw_8bit"},
    "Offload from an accelerator to host memory": {"plan": {"device.offload": "all"}},
    "Tensor parallel": {"plan": {"device.tensor_parallel": "8"}},
    "Pipeline parallel": {"plan": {"device.pipeline_parallel": "2"}},
    "Throttling is detected": {"warnings": {"throttled"}},
    "Other processes on a device are detected": {"warnings": {"busy_device"}},
    "Predicted memory compared with a device allocator": {
        "predicted_memory_bytes": 1,
        "peak_memory_method": "torch.cuda.max_memory_allocated",
    },
    "Out of memory on a device": {"status": "oom_device"},
    "Memory frontier of a device": {"status": "oom_device", "study_kind": "frontier"},
}


PROOFS = proofs(["cpu"])


def run(*, plan=None, warnings=(), **columns):
    return MeasuredRun(CPU | columns, {"device.offload": "none", "device.tensor_parallel": "1"} | (plan or {}), frozenset(warnings))


@pytest.mark.parametrize("feature", SHOWN)
def test_a_feature_is_shown_by_its_own_kind_of_run_and_not_by_a_plain_one(feature):
    assert PROOFS[feature](run(backend="cuda", **SHOWN[feature]))
    assert not PROOFS[feature](run(backend="cuda"))


def test_a_run_on_the_cpu_proves_nothing_about_an_accelerator():
    busy = run(method="qlora", optimizer="adamw_8bit", plan={"device.offload": "all"}, warnings={"busy_device"})
    assert [feature for feature, shows in PROOFS.items() if shows(busy)] == []


def test_a_failed_run_proves_only_that_memory_can_run_out():
    full = run(backend="cuda", method="qlora", attention="flash_attention_3", status="oom_device")
    assert [feature for feature, shows in PROOFS.items() if shows(full)] == ["Out of memory on a device"]
