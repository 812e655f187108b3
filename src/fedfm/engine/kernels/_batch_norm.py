"""The device side of batch normalisation: a program per client, block of channels and chunk.

A client is a matrix [M, C]. Partial results of its chunks of rows are pairs of numbers for every
channel, kept as [S, chunks, 2, C]; where they are None, a tile [ROWS, BLOCK_C] holds all rows.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: ANN001, ANN202 (Triton gives annotations in kernels a meaning of its own)

import triton
import triton.language as tl


@triton.jit
def _place(M, C, chunk, BLOCK_C: tl.constexpr):
    """Return the client, its channels [BLOCK_C], which of them exist, and rows [first, last)."""
    client = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    first = tl.program_id(1) * chunk
    return client, channel, channel < C, first, tl.minimum(first + chunk, M)


@triton.jit
def _tile(start, last, channel, inside, C, ROWS: tl.constexpr):
    """Return offsets [ROWS, BLOCK_C] within a client from row `start` on, and their validity."""
    row = start + tl.arange(0, ROWS)
    return row[:, None] * C + channel[None, :], (row < last)[:, None] & inside[None, :]


@triton.jit
def _last_tile(first, last, ROWS: tl.constexpr):
    """Return where the last tile starts: what a reduction read last is still in the cache."""
    return first + (last - first - 1) // ROWS * ROWS


@triton.jit
def _store_partials(partial, one, other, client, channel, inside, C):
    to = partial + (client * tl.num_programs(1) + tl.program_id(1)) * 2 * C + channel
    tl.store(to, one, mask=inside)
    tl.store(to + C, other, mask=inside)


@triton.jit
def _load_partials(partial, client, channel, inside, C, CHUNKS: tl.constexpr):
    """Load the partial results [CHUNKS, BLOCK_C] of all chunks, zero where there is none."""
    index = tl.arange(0, CHUNKS)
    at = partial + client * tl.num_programs(1) * 2 * C + index[:, None] * 2 * C + channel[None, :]
    valid = (index < tl.num_programs(1))[:, None] & inside[None, :]
    return tl.load(at, mask=valid, other=0), tl.load(at + C, mask=valid, other=0)


# ---- forward -------------------------------------------------------------------------------------


@triton.jit
def chunk_moments(x, partial, M, C, chunk, ROWS: tl.constexpr, BLOCK_C: tl.constexpr):
    """Store each chunk's mean and sum of squared deviations; sums are relative to its first row."""
    client, channel, inside, first, last = _place(M, C, chunk, BLOCK_C)
    x += client * M * C
    origin = tl.load(x + first * C + channel, mask=inside, other=0).to(tl.float32)
    sums = tl.zeros([ROWS, BLOCK_C], tl.float32)
    squares = tl.zeros([ROWS, BLOCK_C], tl.float32)
    for start in tl.range(first, last, ROWS, num_stages=3):
        at, valid = _tile(start, last, channel, inside, C, ROWS)
        distance = tl.load(x + at, mask=valid, other=0).to(tl.float32) - origin[None, :]
        distance = tl.where(valid, distance, 0)
        sums += distance
        squares += distance * distance
    total = tl.sum(sums, 0)
    offset = total / (last - first)
    spread = tl.maximum(tl.sum(squares, 0) - total * offset, 0)
    _store_partials(partial, origin + offset, spread, client, channel, inside, C)


@triton.jit
def _combine_moments(partial, client, channel, inside, M, C, chunk, CHUNKS: tl.constexpr):
    """Return mean and variance [BLOCK_C] of a client from those of its chunks."""
    means, spreads = _load_partials(partial, client, channel, inside, C, CHUNKS)
    left = M - tl.arange(0, CHUNKS) * chunk
    rows = tl.maximum(tl.minimum(left, chunk), 0).to(tl.float32)[:, None]
    mean = tl.sum(means * rows, 0) / M
    distance = means - mean[None, :]
    return mean, tl.sum(spreads + rows * distance * distance, 0) / M


@triton.jit
def _write_output(y, residual, base, at, valid, x_hat, scale, shift, RELU: tl.constexpr):
    out = x_hat * scale[None, :] + shift[None, :]
    if residual is not None:
        out += tl.load(residual + base + at, mask=valid, other=0).to(tl.float32)
    if RELU:
        out = tl.maximum(out, 0)
    tl.store(y + base + at, out, mask=valid)


@triton.jit
def normalise(
    x, residual, y, partial, weight, bias, running_mean, running_var, means, rstds,
    M, C, chunk, momentum, eps,
    RELU: tl.constexpr, ROWS: tl.constexpr, BLOCK_C: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Normalise x to y, store means and rstds, and update the running statistics."""
    client, channel, inside, first, last = _place(M, C, chunk, BLOCK_C)
    slot = client * C + channel
    base = client * M * C
    scale = tl.load(weight + slot, mask=inside, other=0)
    shift = tl.load(bias + slot, mask=inside, other=0)
    if partial is None:
        at, valid = _tile(first, last, channel, inside, C, ROWS)
        tile = tl.load(x + base + at, mask=valid, other=0).to(tl.float32)
        mean = tl.sum(tile, 0) / M
        centred = tl.where(valid, tile - mean[None, :], 0)
        variance = tl.sum(centred * centred, 0) / M
        rstd = 1 / tl.sqrt(variance + eps)
        x_hat = centred * rstd[None, :]
        _write_output(y, residual, base, at, valid, x_hat, scale, shift, RELU)
    else:
        mean, variance = _combine_moments(partial, client, channel, inside, M, C, chunk, CHUNKS)
        rstd = 1 / tl.sqrt(variance + eps)
        end = _last_tile(first, last, ROWS)
        for back in tl.range(0, last - first, ROWS, num_stages=3):
            at, valid = _tile(end - back, last, channel, inside, C, ROWS)
            tile = tl.load(x + base + at, mask=valid, other=0).to(tl.float32)
            x_hat = (tile - mean[None, :]) * rstd[None, :]
            _write_output(y, residual, base, at, valid, x_hat, scale, shift, RELU)
    if first == 0:
        unbiased = variance * (M / (M - 1))
        old_mean = tl.load(running_mean + slot, mask=inside, other=0)
        old_var = tl.load(running_var + slot, mask=inside, other=0)
        tl.store(means + slot, mean, mask=inside)
        tl.store(rstds + slot, rstd, mask=inside)
        tl.store(running_mean + slot, old_mean + momentum * (mean - old_mean), mask=inside)
        tl.store(running_var + slot, old_var + momentum * (unbiased - old_var), mask=inside)


# ---- backward ------------------------------------------------------------------------------------


@triton.jit
def _load_channels(means, rstds, weight, bias, slot, inside):
    return (
        tl.load(means + slot, mask=inside, other=0)[None, :],
        tl.load(rstds + slot, mask=inside, other=0)[None, :],
        tl.load(weight + slot, mask=inside, other=0)[None, :],
        tl.load(bias + slot, mask=inside, other=0)[None, :],
    )


@triton.jit
def _load_pair(
    grad, x, y, masked, base, at, valid, mean, rstd, scale, shift, RELU: tl.constexpr
):  # fmt: skip
    """Return the gradient behind the ReLU, stored in `masked` if given, and x_hat.

    What the ReLU let pass is read off y, or recomputed where y is None.
    """
    slope = tl.load(grad + base + at, mask=valid, other=0).to(tl.float32)
    x_hat = (tl.load(x + base + at, mask=valid, other=0).to(tl.float32) - mean) * rstd
    if RELU:
        if y is None:
            passed = x_hat * scale + shift > 0
        else:
            passed = tl.load(y + base + at, mask=valid, other=0).to(tl.float32) > 0
        slope = tl.where(passed, slope, 0)
    if masked is not None:
        tl.store(masked + base + at, slope, mask=valid)
    return slope, x_hat


@triton.jit
def chunk_slopes(
    grad, x, y, masked, partial, weight, bias, means, rstds, M, C, chunk,
    RELU: tl.constexpr, ROWS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Store each chunk's sums of the gradient and of the gradient times x_hat."""
    client, channel, inside, first, last = _place(M, C, chunk, BLOCK_C)
    slot = client * C + channel
    mean, rstd, scale, shift = _load_channels(means, rstds, weight, bias, slot, inside)
    plain = tl.zeros([ROWS, BLOCK_C], tl.float32)
    weighted = tl.zeros([ROWS, BLOCK_C], tl.float32)
    for start in tl.range(first, last, ROWS, num_stages=3):
        at, valid = _tile(start, last, channel, inside, C, ROWS)
        slope, x_hat = _load_pair(
            grad, x, y, masked, client * M * C, at, valid, mean, rstd, scale, shift, RELU
        )
        plain += slope
        weighted += slope * x_hat
    _store_partials(partial, tl.sum(plain, 0), tl.sum(weighted, 0), client, channel, inside, C)


@triton.jit
def input_gradient(
    grad, x, y, masked, grad_x, partial, weight, bias, means, rstds, grad_weight, grad_bias,
    M, C, chunk,
    RELU: tl.constexpr, ROWS: tl.constexpr, BLOCK_C: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of x, weight and bias; the last two are sums over a client's rows."""
    client, channel, inside, first, last = _place(M, C, chunk, BLOCK_C)
    slot = client * C + channel
    base = client * M * C
    mean, rstd, scale, shift = _load_channels(means, rstds, weight, bias, slot, inside)
    if partial is None:
        at, valid = _tile(first, last, channel, inside, C, ROWS)
        slope, x_hat = _load_pair(
            grad, x, y, masked, base, at, valid, mean, rstd, scale, shift, RELU
        )
        plain = tl.sum(slope, 0)
        weighted = tl.sum(slope * x_hat, 0)
        level = (plain / M)[None, :] + x_hat * (weighted / M)[None, :]
        tl.store(grad_x + base + at, (slope - level) * (scale * rstd), mask=valid)
    else:
        plains, weighteds = _load_partials(partial, client, channel, inside, C, CHUNKS)
        plain = tl.sum(plains, 0)
        weighted = tl.sum(weighteds, 0)
        end = _last_tile(first, last, ROWS)
        for back in tl.range(0, last - first, ROWS, num_stages=3):
            at, valid = _tile(end - back, last, channel, inside, C, ROWS)
            slope, x_hat = _load_pair(
                grad, x, y, masked, base, at, valid, mean, rstd, scale, shift, RELU
            )
            level = (plain / M)[None, :] + x_hat * (weighted / M)[None, :]
            tl.store(grad_x + base + at, (slope - level) * (scale * rstd), mask=valid)
    if first == 0:
        tl.store(grad_weight + slot, weighted, mask=inside)
        tl.store(grad_bias + slot, plain, mask=inside)
