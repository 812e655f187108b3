"""The device side of group normalisation: a program per sample and block of groups.

A sample is a matrix [P, C] of P positions; a group is SIZE neighbouring channels. A tile's columns
are GROUPS times BLOCK slots, BLOCK being SIZE rounded up to a power of two. Sums go over positions
first: what is left to add over a group is a short vector.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: ANN001, ANN202 (Triton gives annotations in kernels a meaning of its own)

import triton
import triton.language as tl


@triton.jit
def _place(C, SIZE: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the sample, the channels of the slots, and which of them exist."""
    slot = tl.arange(0, GROUPS * BLOCK)
    first = tl.program_id(1) * (GROUPS * SIZE)
    if BLOCK == SIZE:
        channel = first + slot
        inside = channel < C
    else:
        channel = first + slot // BLOCK * SIZE + slot % BLOCK
        inside = (channel < C) & (slot % BLOCK < SIZE)
    return tl.program_id(0).to(tl.int64), channel, inside


@triton.jit
def _tile(start, P, C, channel, inside, ROWS: tl.constexpr):
    """Return offsets [ROWS, slots] within a sample from row `start` on, and their validity."""
    row = start + tl.arange(0, ROWS)
    return row[:, None] * C + channel[None, :], (row < P)[:, None] & inside[None, :]


@triton.jit
def _sum_groups(values, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """Return for every slot the sum over its group."""
    sums = tl.sum(tl.reshape(values, (GROUPS, BLOCK)), 1)
    spread = tl.broadcast_to(sums[:, None], (GROUPS, BLOCK))
    return tl.reshape(spread, (GROUPS * BLOCK,))[None, :]


@triton.jit
def _load(x, at, valid):
    return tl.load(x + at, mask=valid, other=0).to(tl.float32)


@triton.jit
def _write_output(y, residual, at, valid, x_hat, scale, shift, ACTIVATION: tl.constexpr):
    out = x_hat * scale + shift
    if residual is not None:
        out += _load(residual, at, valid)
    if ACTIVATION == "relu":
        out = tl.maximum(out, 0)
    if ACTIVATION == "silu":
        out = out * tl.sigmoid(out)
    tl.store(y + at, out.to(y.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["batch", "P"])
def normalise(
    x, residual, y, weight, bias, means, rstds, batch, P, C, eps,
    ACTIVATION: tl.constexpr, SIZE: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, RESIDENT: tl.constexpr,
):  # fmt: skip
    """Normalise x to y; store the means and rstds [samples, groups]."""
    sample, channel, inside = _place(C, SIZE, GROUPS, BLOCK)
    slot = sample // batch * C + channel
    scale = tl.load(weight + slot, mask=inside, other=0)[None, :]
    shift = tl.load(bias + slot, mask=inside, other=0)[None, :]
    base = sample * P * C
    x += base
    y += base
    if residual is not None:
        residual += base
    count = (P * SIZE).to(tl.float32)
    at, valid = _tile(0, P, C, channel, inside, ROWS)
    tile = _load(x, at, valid)
    if RESIDENT:
        mean = _sum_groups(tl.sum(tile, 0), GROUPS, BLOCK) / count
        centred = tl.where(valid, tile - mean, 0)
        variance = _sum_groups(tl.sum(centred * centred, 0), GROUPS, BLOCK) / count
        rstd = 1 / tl.sqrt(variance + eps)
        _write_output(y, residual, at, valid, centred * rstd, scale, shift, ACTIVATION)
    else:
        sums = tile
        for start in range(ROWS, P, ROWS):
            at, valid = _tile(start, P, C, channel, inside, ROWS)
            sums += _load(x, at, valid)
        mean = _sum_groups(tl.sum(sums, 0), GROUPS, BLOCK) / count
        sums = tl.zeros_like(sums)
        for start in range(0, P, ROWS):
            at, valid = _tile(start, P, C, channel, inside, ROWS)
            centred = tl.where(valid, _load(x, at, valid) - mean, 0)
            sums += centred * centred
        variance = _sum_groups(tl.sum(sums, 0), GROUPS, BLOCK) / count
        rstd = 1 / tl.sqrt(variance + eps)
        for start in range(0, P, ROWS):
            at, valid = _tile(start, P, C, channel, inside, ROWS)
            x_hat = (_load(x, at, valid) - mean) * rstd
            _write_output(y, residual, at, valid, x_hat, scale, shift, ACTIVATION)
    group = (sample * (C // SIZE) + channel // SIZE)[None, :]
    leads = (inside & (channel % SIZE == 0))[None, :]
    tl.store(means + group, mean, mask=leads)
    tl.store(rstds + group, rstd, mask=leads)


@triton.jit
def _load_pair(
    grad, x, y, masked, at, valid, mean, rstd, scale, shift, ACTIVATION: tl.constexpr
):  # fmt: skip
    """Return the gradient behind the activation, stored in `masked` if given, and x_hat.

    What a ReLU let pass is read off y, or recomputed where y is None.
    """
    slope = _load(grad, at, valid)
    x_hat = (_load(x, at, valid) - mean) * rstd
    if ACTIVATION == "relu":
        if y is None:
            slope = tl.where(x_hat * scale + shift > 0, slope, 0)
        else:
            slope = tl.where(_load(y, at, valid) > 0, slope, 0)
    if ACTIVATION == "silu":
        out = x_hat * scale + shift
        gate = tl.sigmoid(out)
        slope = slope * gate * (1 + out * (1 - gate))
    if masked is not None:
        tl.store(masked + at, slope.to(masked.dtype.element_ty), mask=valid)
    return slope, x_hat


@triton.jit
def _write_gradient(grad_x, at, valid, slope, x_hat, scale, rstd, plain, weighted):
    value = (slope * scale - plain - x_hat * weighted) * rstd
    tl.store(grad_x + at, value.to(grad_x.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["batch", "P"])
def input_gradient(
    grad, x, y, masked, grad_x, partial, weight, bias, means, rstds, batch, P, C,
    ACTIVATION: tl.constexpr, SIZE: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, RESIDENT: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of x; store a sample's part [2, samples, C] of those of bias, weight."""
    sample, channel, inside = _place(C, SIZE, GROUPS, BLOCK)
    slot = sample // batch * C + channel
    scale = tl.load(weight + slot, mask=inside, other=0)[None, :]
    shift = tl.load(bias + slot, mask=inside, other=0)[None, :]
    group = sample * (C // SIZE) + channel // SIZE
    mean = tl.load(means + group, mask=inside, other=0)[None, :]
    rstd = tl.load(rstds + group, mask=inside, other=0)[None, :]
    base = sample * P * C
    x += base
    grad += base
    grad_x += base
    if y is not None:
        y += base
    if masked is not None:
        masked += base
    count = (P * SIZE).to(tl.float32)
    at, valid = _tile(0, P, C, channel, inside, ROWS)
    slope, x_hat = _load_pair(
        grad, x, y, masked, at, valid, mean, rstd, scale, shift, ACTIVATION
    )  # fmt: skip
    if RESIDENT:
        plain, weighted = tl.sum(slope, 0), tl.sum(slope * x_hat, 0)
    else:
        plains, weighteds = slope, slope * x_hat
        for start in range(ROWS, P, ROWS):
            at, valid = _tile(start, P, C, channel, inside, ROWS)
            slope, x_hat = _load_pair(
                grad, x, y, masked, at, valid, mean, rstd, scale, shift, ACTIVATION
            )
            plains += slope
            weighteds += slope * x_hat
        plain, weighted = tl.sum(plains, 0), tl.sum(weighteds, 0)
    to = partial + sample * C + channel
    tl.store(to, plain, mask=inside)
    tl.store(to + tl.num_programs(0).to(tl.int64) * C, weighted, mask=inside)
    scale_row = tl.sum(scale, 0)
    one = _sum_groups(scale_row * plain, GROUPS, BLOCK) / count
    two = _sum_groups(scale_row * weighted, GROUPS, BLOCK) / count
    if RESIDENT:
        _write_gradient(grad_x, at, valid, slope, x_hat, scale, rstd, one, two)
    else:
        for start in range(0, P, ROWS):
            at, valid = _tile(start, P, C, channel, inside, ROWS)
            slope, x_hat = _load_pair(
                grad, x, y, None, at, valid, mean, rstd, scale, shift, ACTIVATION
            )
            _write_gradient(grad_x, at, valid, slope, x_hat, scale, rstd, one, two)
