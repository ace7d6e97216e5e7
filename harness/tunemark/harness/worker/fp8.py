"""Linear layers with frozen weights stored in fp8, which multiply in fp8 with torch alone.

A frozen weight W (outputs x inputs) is stored as Q = W / s in e4m3, with one scale s per output. Inputs and gradients get one
scale per token, computed at run time. Scales are powers of two, so casting them to bf16 or multiplying by them rounds nothing.

- Forward, Y = X W^T: both scales are constant along the sum over inputs, so the product applies them to its result.
- Backward, dX = dY W: the sum runs over outputs, along which s varies. So dY is multiplied by s before it is rounded, and the
  product needs no scale of Q.

One scale per token also keeps packed documents apart: with one scale per tensor, the rounding of a document would depend on the others.
On Hopper the second operand of an fp8 product must be column-major, which Q^T is and Q is not. The backward pass transposes Q each
time, which reads and writes the frozen matrices once per micro-batch (14 GB for 8B parameters; 3% of the time of the device on an H200).
Keeping both would cost another byte per weight (7 GB), half of what fp8 saves.

The forward product accumulates in the fast way of Hopper, which keeps fewer bits of partial sums; the backward product does not,
because gradients span more magnitudes. CPUs accept the setting and ignore it.
"""

from typing import Any

import torch

FNUZ_TARGET = "gfx94"
"""AMD GPUs of the MI300 series have their own e4m3: no infinity, no negative zero, and half the range. Later ones have the OCP format."""
MANTISSA = 0x7FFFFF
"""Bits of the mantissa of an fp32 number."""
SMALLEST_ROW = 2.0**-100
"""Lower bound of a row's largest value, so that a row of zeros has a scale."""


def rounded(rows: Any, form: Any) -> tuple[Any, Any]:  # noqa: ANN401 - torch tensors and a dtype
    """Return a matrix in fp8, and its scales in fp32, shape (rows, 1): `rows = fp8 x scales` apart from rounding.

    A scale is the lowest power of two with which the largest value of its row is in the range of the format.
    """
    largest = rows.abs().amax(dim=1, keepdim=True).float().clamp(min=SMALLEST_ROW)
    # Adding all bits of the mantissa carries into the exponent, unless the quotient is a power of two already.
    scales = (((largest / torch.finfo(form).max).view(torch.int32) + MANTISSA) & ~MANTISSA).view(torch.float32)
    return (rows / scales.to(rows.dtype)).to(form), scales


class _Product(torch.autograd.Function):  # type: ignore[misc] # its base class has no types
    """Y = X W^T for a frozen weight in fp8. It saves no input for the backward pass, because the weight has no gradient."""

    @staticmethod
    def forward(context: Any, inputs: Any, stored: Any, scales: Any, form: Any) -> Any:  # noqa: ANN401 - torch tensors
        context.save_for_backward(stored, scales)
        context.form = form
        tokens, token_scales = rounded(inputs.reshape(-1, inputs.shape[-1]), form)
        result = torch._scaled_mm(  # noqa: SLF001 - torch's FLOP counter does not know the operator of its public name
            tokens, stored.view(form).t(), token_scales, scales.float().view(1, -1), out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return result.view(*inputs.shape[:-1], -1)

    @staticmethod
    def backward(context: Any, gradient: Any) -> tuple[Any, None, None, None]:  # noqa: ANN401 - torch tensors
        stored, scales = context.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1]) * scales.to(gradient.dtype)
        tokens, token_scales = rounded(rows, context.form)
        columns = stored.view(context.form).t().contiguous().t()
        ones = scales.new_ones((1, stored.shape[1]), dtype=torch.float32)
        result = torch._scaled_mm(tokens, columns, token_scales, ones, out_dtype=torch.bfloat16)  # noqa: SLF001 - as above
        return result.view(*gradient.shape[:-1], -1), None, None, None


class FrozenFp8Linear(torch.nn.Linear):  # type: ignore[misc] # its base class has no types
    """A linear layer with frozen weights in fp8, which peft adapts as any other.

    The bytes of the weights are stored as uint8, because DeepSpeed casts floating-point weights to bf16, and peft casts adapters to the
    format of their layer if that is floating-point. The scales are a parameter, not a buffer, because DDP sends buffers in each step.
    """

    def __init__(self, layer: Any, device: str) -> None:  # noqa: ANN401 - a linear layer
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        own = (
            torch.version.hip and device.startswith("cuda") and torch.cuda.get_device_properties(device).gcnArchName.startswith(FNUZ_TARGET)
        )
        self.bias, self.form = layer.bias, torch.float8_e4m3fnuz if own else torch.float8_e4m3fn
        self.weight = frozen(torch.empty(layer.weight.shape, dtype=torch.uint8, device="meta"))
        self.weight_scales = frozen(torch.empty(layer.out_features, dtype=torch.float32, device="meta"))
        if not layer.weight.is_meta:
            self.store(layer.weight.detach().to(device))

    def store(self, weight: Any) -> None:  # noqa: ANN401 - a torch tensor
        """Round a weight, shape (outputs, inputs), and keep it on its device."""
        with torch.no_grad():
            stored, scales = rounded(weight, self.form)
        self.weight, self.weight_scales = frozen(stored.view(torch.uint8)), frozen(scales.view(-1))

    def forward(self, inputs: Any) -> Any:  # noqa: ANN401 - torch tensors
        """Return the product in bf16, with the bias."""
        product = _Product.apply(inputs, self.weight, self.weight_scales, self.form)
        return product if self.bias is None else product + self.bias


def frozen(value: Any) -> Any:  # noqa: ANN401 - torch tensors
    """Return a parameter without gradient."""
    return torch.nn.Parameter(value, requires_grad=False)
