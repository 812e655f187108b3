"""The device side of convolution: implicit matrix products, a program per tile and client.

A client has x [B, H, W, IN], weight [OUT, KH, KW, IN] and y [B, P, Q, OUT]. A program goes over the
taps (r, c) of the filter that join any input to any output of its tile, and over no others: on tiny
maps most of them see nothing but padding.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False
# ruff: noqa: ANN001, ANN202 (Triton gives annotations in kernels a meaning of its own)

import triton
import triton.language as tl


@triton.jit
def _bounding_box(first, last, WIDTH: tl.constexpr):
    """Return the box (top, bottom, left, right) around cells first..last of a grid, by rows."""
    top, bottom = first // WIDTH, last // WIDTH
    left = tl.where(top == bottom, first % WIDTH, 0)
    right = tl.where(top == bottom, last % WIDTH, WIDTH - 1)
    return top, bottom, left, right


@triton.jit
def _taps_of_outputs(
    low, high, TAPS: tl.constexpr, INPUTS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr
):
    """Return the first and the number of the taps by which outputs low..high see any input."""
    first = tl.maximum(PAD - high * STRIDE, 0)
    return first, tl.maximum(tl.minimum(INPUTS + PAD - low * STRIDE, TAPS) - first, 0)


@triton.jit
def _taps_of_inputs(
    low, high, TAPS: tl.constexpr, OUTPUTS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr
):
    """Return the first and the number of the taps, a stride apart, from inputs low..high."""
    first = tl.maximum(low + PAD - (OUTPUTS - 1) * STRIDE, 0)
    first += (low + PAD - first) % STRIDE
    return first, tl.maximum(tl.minimum(high + PAD + 1, TAPS) - first + STRIDE - 1, 0) // STRIDE


@triton.jit
def _outputs_of_taps(
    low, high, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr
):
    """Return the first and the number of the outputs that see an input through taps low..high."""
    first = tl.maximum(PAD - high + STRIDE - 1, 0) // STRIDE
    end = tl.minimum(tl.maximum(INPUTS + PAD - low + STRIDE - 1, 0) // STRIDE, OUTPUTS)
    return first, tl.maximum(end - first, 0)


@triton.jit
def _on_map(row, column, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    return (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)


@triton.jit
def _gathered_product(
    source, image, row, column, alive, weight, valid, tap_rows, tap_columns,
    DIRECTION: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROW_STEP: tl.constexpr, COLUMN_STEP: tl.constexpr, CHANNEL_STEP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum pixels of `source` times weights over taps and channels: [BLOCK_M, BLOCK_N].

    Tap (i, j) takes the pixels (row, column) + DIRECTION * (i, j) of each image; `weight` points
    at the weights [BLOCK_N] of the first tap and channel. Taps and channels are one axis: a block
    of it is part of one tap's channels where BLOCK_K divides them, else it mixes taps.
    """
    pixel = ((image * HEIGHT + row) * WIDTH + column) * CHANNELS
    depth = tap_rows * tap_columns * CHANNELS
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, depth, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        channel = k % CHANNELS
        if CHANNELS % BLOCK_K == 0:
            tap = start // CHANNELS
            i, j = tap // tap_columns, tap % tap_columns
            inside = _on_map(row + DIRECTION * i, column + DIRECTION * j, HEIGHT, WIDTH)
            inside = (alive & inside)[:, None]
            used = valid[None, :]
        else:
            tap = k // CHANNELS
            i, j = tap // tap_columns, tap % tap_columns
            h = row[:, None] + DIRECTION * i[None, :]
            w = column[:, None] + DIRECTION * j[None, :]
            inside = alive[:, None] & (k < depth)[None, :] & _on_map(h, w, HEIGHT, WIDTH)
            used = valid[None, :] & (k < depth)[:, None]
        a_at = DIRECTION * (i * WIDTH + j) * CHANNELS + channel
        b_at = i * ROW_STEP + j * COLUMN_STEP + channel * CHANNEL_STEP
        a = tl.load(source + (pixel[:, None] + a_at[None, :]), mask=inside, other=0)
        b = tl.load(weight[None, :] + b_at[:, None], mask=used, other=0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit(do_not_specialize=["batch"])
def forward(
    x, weight, bias, y, batch,
    H: tl.constexpr, W: tl.constexpr, IN: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    OUT: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a tile [rows, OUT] of y, where a row is an output position of an image.

    Rows go over the images of a position first: a tile then has few positions, and few taps reach
    them on small maps. With few channels, blocks mix taps and rows go over the positions of an
    image instead: neighbours share cache lines.
    """
    client = tl.program_id(2).to(tl.int64)
    x += client * batch * (H * W * IN)
    y += client * batch * (P * Q * OUT)
    weight += client * (OUT * KH * KW * IN)
    start = tl.program_id(0) * BLOCK_M
    m = start + tl.arange(0, BLOCK_M)
    alive = m < batch * (P * Q)
    if IN % BLOCK_K == 0:
        image, position = m % batch, m // batch
        last = tl.minimum(start + BLOCK_M, batch * (P * Q)) - 1
        top, bottom, left, right = _bounding_box(start // batch, last // batch, Q)
        r, tap_rows = _taps_of_outputs(top, bottom, KH, H, STRIDE_H, PAD_H)
        c, tap_columns = _taps_of_outputs(left, right, KW, W, STRIDE_W, PAD_W)
    else:
        image, position = m // (P * Q), m % (P * Q)
        r, tap_rows, c, tap_columns = 0, KH, 0, KW
    row = position // Q * STRIDE_H - PAD_H + r
    column = position % Q * STRIDE_W - PAD_W + c
    o = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = _gathered_product(
        x, image, row, column, alive,
        weight + o * (KH * KW * IN) + (r * KW + c) * IN, o < OUT, tap_rows, tap_columns,
        1, H, W, IN, KW * IN, IN, 1, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
    )  # fmt: skip
    if bias is not None:
        shift = tl.load(bias + client * OUT + o, mask=o < OUT, other=0)
        total += shift.to(tl.float32)[None, :]
    at = (image * (P * Q) + position)[:, None] * OUT + o[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=alive[:, None] & (o < OUT)[None, :])


@triton.jit(do_not_specialize=["batch"])
def input_gradient(
    dy, weight, added, dx, batch,
    H: tl.constexpr, W: tl.constexpr, IN: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    OUT: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a tile [rows, IN] of dx, where a row is an input position of an image.

    The positions of a tile are equal modulo the stride, so that the same taps reach all of them;
    rows go over the images of a position first, as in the forward pass.
    """
    COLUMNS: tl.constexpr = (W + STRIDE_W - 1) // STRIDE_W
    ROWS: tl.constexpr = (H + STRIDE_H - 1) // STRIDE_H
    RESIDUES: tl.constexpr = STRIDE_H * STRIDE_W
    client = tl.program_id(2).to(tl.int64)
    dx += client * batch * (H * W * IN)
    dy += client * batch * (P * Q * OUT)
    weight += client * (OUT * KH * KW * IN)
    residue = tl.program_id(0) % RESIDUES
    start = tl.program_id(0) // RESIDUES * BLOCK_M
    m = start + tl.arange(0, BLOCK_M)
    image, position = m % batch, m // batch
    h = position // COLUMNS * STRIDE_H + residue // STRIDE_W
    w = position % COLUMNS * STRIDE_W + residue % STRIDE_W
    alive = (h < H) & (w < W)
    last = tl.minimum(start + BLOCK_M, batch * (ROWS * COLUMNS)) - 1
    top, bottom, left, right = _bounding_box(start // batch, last // batch, COLUMNS)
    top, bottom = top * STRIDE_H + residue // STRIDE_W, bottom * STRIDE_H + residue // STRIDE_W
    left, right = left * STRIDE_W + residue % STRIDE_W, right * STRIDE_W + residue % STRIDE_W
    r, tap_rows = _taps_of_inputs(top, bottom, KH, P, STRIDE_H, PAD_H)
    c, tap_columns = _taps_of_inputs(left, right, KW, Q, STRIDE_W, PAD_W)
    row = (h + PAD_H - r) // STRIDE_H
    column = (w + PAD_W - c) // STRIDE_W
    i = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = _gathered_product(
        dy, image, row, column, alive,
        weight + i + (r * KW + c) * IN, i < IN, tap_rows, tap_columns,
        -1, P, Q, OUT, STRIDE_H * KW * IN, STRIDE_W * IN, KH * KW * IN,
        BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
    )  # fmt: skip
    at = ((image * H + h) * W + w)[:, None] * IN + i[None, :]
    valid = alive[:, None] & (i < IN)[None, :]
    if added is not None:
        at_added = added + client * batch * (H * W * IN) + at
        total += tl.load(at_added, mask=valid, other=0).to(tl.float32)
    tl.store(dx + at, total.to(dx.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["batch", "clients"])
def weight_gradient(
    x, dy, parts, batch, clients,
    H: tl.constexpr, W: tl.constexpr, IN: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    OUT: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a tile [OUT, taps * IN] of one part [splits, clients, ...] of the weight gradient.

    A step adds BLOCK_K images at one output position. Only positions that see an input through
    the taps of the tile count: all of them do where the tile has one tap, and a tile without any
    such position is zero.
    """
    FILTER: tl.constexpr = KH * KW * IN
    TILES: tl.constexpr = (FILTER + BLOCK_N - 1) // BLOCK_N
    client = tl.program_id(2).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    x += client * batch * (H * W * IN)
    dy += client * batch * (P * Q * OUT)
    parts += (split * clients + client) * (OUT * FILTER)
    start = tl.program_id(0) % TILES * BLOCK_N
    n = start + tl.arange(0, BLOCK_N)
    o = tl.program_id(0) // TILES * BLOCK_M + tl.arange(0, BLOCK_M)
    tap = start // IN if IN % BLOCK_N == 0 else n // IN
    last = tl.minimum(start + BLOCK_N, FILTER) - 1
    top, bottom, left, right = _bounding_box(start // IN, last // IN, KW)
    first_p, heights = _outputs_of_taps(top, bottom, H, P, STRIDE_H, PAD_H)
    first_q, widths = _outputs_of_taps(left, right, W, Q, STRIDE_W, PAD_W)
    chunks = tl.cdiv(batch, BLOCK_K)
    steps = heights * widths * chunks
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(steps * split // splits, steps * (split + 1) // splits):
        image = step % chunks * BLOCK_K + tl.arange(0, BLOCK_K)
        p = first_p + step // chunks // widths
        q = first_q + step // chunks % widths
        h = p * STRIDE_H - PAD_H + tap // KW
        w = q * STRIDE_W - PAD_W + tap % KW
        inside = n < FILTER
        if IN % BLOCK_N != 0:
            inside = inside & _on_map(h, w, H, W)
        alive = (image < batch)[:, None]
        a_at = ((image * P + p) * Q + q)[:, None] * OUT + o[None, :]
        b_at = image[:, None] * (H * W * IN) + ((h * W + w) * IN + n % IN)[None, :]
        a = tl.load(dy + a_at, mask=alive & (o < OUT)[None, :], other=0)
        b = tl.load(x + b_at, mask=alive & inside[None, :], other=0)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    at = o[:, None] * FILTER + n[None, :]
    valid = (o < OUT)[:, None] & (n < FILTER)[None, :]
    tl.store(parts + at, total.to(parts.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["splits"])
def sum_parts(parts, total, size, splits, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """Sum parts [splits, size] over the first axis, always in the same order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.zeros([BLOCK], tl.float32)
    for first in range(0, splits, PARTS):
        part = first + tl.arange(0, PARTS)
        valid = (part < splits)[:, None] & (at < size)[None, :]
        each = parts + part.to(tl.int64)[:, None] * size + at[None, :]
        value += tl.sum(tl.load(each, mask=valid, other=0), 0)
    tl.store(total + at, value.to(total.dtype.element_ty), mask=at < size)
