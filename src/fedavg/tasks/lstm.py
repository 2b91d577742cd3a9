"""A single-bias peephole LSTM layer, the cell behind the paper's two language models (§3), made fast on the CPU.

The input projection of all time steps is one product, the weight gradients are one product each, both in plain
PyTorch, so a tracer of the step sees them and may rearrange them. Only the recurrence itself is our own operator:
`fedavg::peephole_scan` with its gradient `fedavg::peephole_scan_backward`. Each runs as a TorchScript loop, so a time
step costs a handful of kernels and no Python; where there is a C compiler, `lstm_native` replaces it and costs little
more than the products. This module knows nothing of texts, tasks or clients.

One time step, with * elementwise and z the projected input plus W_hh h':

    i = sigmoid(z_i + w_ci * c')     f = sigmoid(z_f + w_cf * c')     g = tanh(z_g)
    c = f * c' + i * g               o = sigmoid(z_o + w_co * c)      h = o * tanh(c)

A row may hold several sequences, one after the other: h' and c' count as zero where a sequence starts, that is where
`keep` (T, B) is 0; elsewhere it is 1.

Shapes: T steps, B rows, I inputs, H units. Everything inside is time-major; the gates are in the order i, f, g, o.
"""

import math
import platform
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fedavg.tasks import lstm_native

#: x w^T by the general matrix product.
_PLAIN_PRODUCT = """
def pack(w: Tensor, rows: int) -> Tensor:
    return w

def product(x: Tensor, w: Tensor) -> Tensor:
    return x.mm(w.t())
"""

#: The same by oneDNN, whose kernels are a quarter faster for the few rows of a batch. They take weights packed for
#: them, and also a transposed view.
_PACKED_PRODUCT = """
def pack(w: Tensor, rows: int) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(w, rows)

def product(x: Tensor, w: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")
"""

# The views of all steps are made together before the loop: inside it, a view costs as much as a small kernel.
_SCAN = """
def scan(gates_x: Tensor, w_hh: Tensor, peephole: Tensor, keep: Tensor):
    T, B, G = gates_x.shape
    H = G // 4
    gates = torch.empty_like(gates_x, memory_format=torch.contiguous_format)
    c = gates.new_empty([T, B, H])
    tanh_c = torch.empty_like(c)
    h = torch.empty_like(c)
    by_gate = gates.view(T, B, 4, H)
    z_x, z, z_if = gates_x.unbind(0), gates.unbind(0), by_gate[:, :, :2].unbind(0)
    i, f = by_gate[:, :, 0].unbind(0), by_gate[:, :, 1].unbind(0)
    g, o = by_gate[:, :, 2].unbind(0), by_gate[:, :, 3].unbind(0)
    cell, tanh_cell, out = c.unbind(0), tanh_c.unbind(0), h.unbind(0)
    w_if, w_o = peephole[:2], peephole[2]
    kept = keep.unsqueeze(2).unbind(0)
    packed = pack(w_hh, B)
    c_before = torch.zeros_like(cell[0])
    before_if = c_before.unsqueeze(1)
    for t in range(T):
        if t == 0:
            z[t].copy_(z_x[t])
        else:
            torch.add(product(out[t - 1] * kept[t], packed), z_x[t], out=z[t])
            torch.mul(cell[t - 1], kept[t], out=c_before)
            z_if[t].addcmul_(before_if, w_if)
        z_if[t].sigmoid_()
        g[t].tanh_()
        torch.mul(i[t], g[t], out=cell[t])
        if t > 0:
            cell[t].addcmul_(f[t], c_before)
        o[t].addcmul_(cell[t], w_o).sigmoid_()
        torch.tanh(cell[t], out=tanh_cell[t])
        torch.mul(o[t], tanh_cell[t], out=out[t])
    return h, c, tanh_c, gates
"""

# The factors of the running gradients dh and dc are known before the loop, so they are computed for all steps at once,
# in the memory of the gradients dz:  dz_o = dh a_o,  dc += dh a_c,  dz_{i,f,g} = dc a_{i,f,g},  dc' = dc a_d
_SCAN_BACKWARD = """
def scan_backward(
    dh_out: Tensor, w_hh: Tensor, peephole: Tensor, keep: Tensor, c: Tensor, tanh_c: Tensor, gates: Tensor
):
    T, B, H = c.shape
    w_i, w_f, w_o = peephole.unbind(0)
    i, f, g, o = gates.view(T, B, 4, H).unbind(2)
    dz = torch.empty_like(gates)
    by_gate = dz.view(T, B, 4, H)
    dz_i, dz_f, dz_g, dz_o = by_gate.unbind(2)
    keep = keep.unsqueeze(2)
    c_before = torch.zeros_like(c)
    torch.mul(c[:-1], keep[1:], out=c_before[1:])
    torch.ops.aten.sigmoid_backward(g, i, grad_input=dz_i)
    torch.ops.aten.sigmoid_backward(c_before, f, grad_input=dz_f)
    torch.ops.aten.tanh_backward(i, g, grad_input=dz_g)
    torch.ops.aten.sigmoid_backward(tanh_c, o, grad_input=dz_o)
    a_c = torch.ops.aten.tanh_backward(o, tanh_c).addcmul_(dz_o, w_o)
    a_d = torch.addcmul(f, dz_i, w_i).addcmul_(dz_f, w_f).mul_(keep)

    step, step_ifg, step_o = dz.unbind(0), by_gate[:, :, :3].unbind(0), dz_o.unbind(0)
    step_c, step_d, step_out, kept = a_c.unbind(0), a_d.unbind(0), dh_out.unbind(0), keep.unbind(0)
    dh = step_out[T - 1]
    dc = torch.zeros_like(step_c[0])
    dc_ifg = dc.unsqueeze(1)
    for back in range(T):
        t = T - 1 - back
        if back > 0:
            dh = product(step[t + 1], w_hh.t()).mul_(kept[t + 1]).add_(step_out[t])
        dc.addcmul_(dh, step_c[t])
        step_o[t].mul_(dh)
        step_ifg[t].mul_(dc_ifg)
        dc.mul_(step_d[t])

    # w_ci and w_cf saw the cell of the step before, w_co that of its own step.
    d_i = torch.mul(dz_i, c_before, out=a_c).sum([0, 1])
    d_f = torch.mul(dz_f, c_before, out=a_c).sum([0, 1])
    d_o = torch.mul(dz_o, c, out=a_c).sum([0, 1])
    return dz, torch.stack([d_i, d_f, d_o])
"""


@cache
def _loops(packed: bool) -> torch.jit.CompilationUnit:
    product = _PACKED_PRODUCT if packed else _PLAIN_PRODUCT
    return torch.jit.CompilationUnit(product + _SCAN + _SCAN_BACKWARD)


def _loops_for(x: Tensor) -> torch.jit.CompilationUnit:
    """The choice depends only on the machine, the device and the type, so that equal runs round the same."""
    has_kernels = platform.machine().lower() in ("x86_64", "amd64") and torch.backends.mkldnn.is_available()
    return _loops(has_kernels and x.device.type == "cpu" and x.dtype == torch.float32)


def _scan(gates_x: Tensor, w_hh: Tensor, peephole: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if lstm_native.fits(gates_x, w_hh.shape[1]):
        return lstm_native.scan(gates_x, w_hh, peephole, keep)
    with torch.no_grad():
        h, c, tanh_c, gates = _loops_for(gates_x).scan(gates_x, w_hh, peephole, keep)
    return h, c, tanh_c, gates


def _scan_shapes(
    gates_x: Tensor, w_hh: Tensor, peephole: Tensor, keep: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    steps, batch, gates = gates_x.shape
    h, c, tanh_c = (gates_x.new_empty(steps, batch, gates // 4) for _ in range(3))
    return h, c, tanh_c, gates_x.new_empty(steps, batch, gates)


def _scan_backward(
    dh: Tensor, w_hh: Tensor, peephole: Tensor, keep: Tensor, c: Tensor, tanh_c: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    if lstm_native.fits(gates, w_hh.shape[1]):
        return lstm_native.scan_backward(dh, w_hh, peephole, keep, c, tanh_c, gates)
    with torch.no_grad():
        dz, d_peephole = _loops_for(gates).scan_backward(dh, w_hh, peephole, keep, c, tanh_c, gates)
    return dz, d_peephole


def _scan_backward_shapes(
    dh: Tensor,
    w_hh: Tensor,
    peephole: Tensor,
    keep: Tensor,
    c: Tensor,
    tanh_c: Tensor,
    gates: Tensor,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gates), torch.empty_like(peephole)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    _, w_hh, peephole, keep = inputs
    h, c, tanh_c, gates = output
    ctx.mark_non_differentiable(c, tanh_c, gates)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(w_hh, peephole, keep, h, c, tanh_c, gates)


def _gradient(ctx: Any, dh: Tensor | None, *_: None) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    if dh is None:
        return None, None, None, None
    w_hh, peephole, keep, h, c, tanh_c, gates = ctx.saved_tensors
    dz, d_peephole = torch.ops.fedavg.peephole_scan_backward(dh, w_hh, peephole, keep, c, tanh_c, gates)
    # The first step has no predecessor: T-1 steps of B rows, as one product.
    h_before = h[:-1] * keep[1:].unsqueeze(2)
    d_w_hh = dz[1:].flatten(0, 1).t() @ h_before.flatten(0, 1)
    return dz, d_w_hh, d_peephole, None


def _register() -> None:
    scan, backward = "fedavg::peephole_scan", "fedavg::peephole_scan_backward"
    inputs, saved = "Tensor w_hh, Tensor peephole, Tensor keep", "Tensor c, Tensor tanh_c, Tensor gates"
    torch.library.define(scan, f"(Tensor gates_x, {inputs}) -> (Tensor h, {saved})")
    torch.library.define(backward, f"(Tensor dh, {inputs}, {saved}) -> (Tensor dz, Tensor d_peephole)")
    for name, run, shapes in ((scan, _scan, _scan_shapes), (backward, _scan_backward, _scan_backward_shapes)):
        torch.library.impl(name, ("CPU", "CUDA"), run)
        torch.library.register_fake(name, shapes)
    torch.library.register_autograd(scan, _gradient, setup_context=_save)


_register()
#: The operators, for code that recognises them on a tape.
SCAN, SCAN_BACK = torch.ops.fedavg.peephole_scan.default, torch.ops.fedavg.peephole_scan_backward.default


class PeepholeLSTM(nn.Module):
    """(B, T, I) -> (B, T, H): 4H(I + H) + 4H + 3H parameters.

    The state is zero at the first step and wherever `starts` (B, T) says that another sequence starts in that row.

    Initialised like TensorFlow's LSTMCell, which the paper's parameter counts point to: Glorot uniform weights for one
    matrix of I + H inputs and 4H outputs, the peepholes likewise, the bias zero, and 1 added to the forget gate. Here
    that 1 is the initial bias of the forget gate, which is the same function and trains the same way.
    The output is a view of time-major memory: a layer on top of a layer copies nothing.
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.inputs, self.units = inputs, units
        # Inputs by gates: the gradient x^T dz is many times faster than dz^T x when the inputs are few.
        self.weight_ih = nn.Parameter(torch.empty(inputs, 4 * units))
        self.weight_hh = nn.Parameter(torch.empty(4 * units, units))
        self.bias = nn.Parameter(torch.empty(4 * units))
        self.peephole = nn.Parameter(torch.empty(3, units))
        self.reset_parameters()
        #: What runs the recurrence on the CPU; built now, before workers are forked, and not by each of them. It is
        #: part of the name of a run's engine.
        self.kernel_name = f"{lstm_native.kernel(units)} LSTM"

    @torch.no_grad()
    def reset_parameters(self) -> None:
        limit = math.sqrt(6 / (self.inputs + 5 * self.units))
        self.weight_ih.uniform_(-limit, limit)
        self.weight_hh.uniform_(-limit, limit)
        self.peephole.uniform_(-math.sqrt(3 / self.units), math.sqrt(3 / self.units))
        self.bias.zero_()
        self.bias[self.units : 2 * self.units] = 1

    def forward(self, x: Tensor, starts: Tensor | None = None) -> Tensor:
        batch, steps, _ = x.shape
        keep = x.new_ones(steps, batch) if starts is None else starts.t().logical_not().to(x.dtype)
        rows = x.transpose(0, 1).reshape(steps * batch, self.inputs)
        gates_x = torch.addmm(self.bias, rows, self.weight_ih).view(steps, batch, 4 * self.units)
        h: Tensor = torch.ops.fedavg.peephole_scan(gates_x, self.weight_hh, self.peephole, keep)[0]
        return h.transpose(0, 1)
