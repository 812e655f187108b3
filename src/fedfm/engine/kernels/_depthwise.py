"""The device side of depthwise convolution: tiles of pixels by channels, taps in a loop."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: ANN001, ANN202 (Triton gives annotations in kernels a meaning of its own)

import triton
import triton.language as tl


@triton.jit
def _place(batch, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
           PIXELS: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """Return a client's images, rows, columns [PIXELS, 1], channels, offsets and validity."""
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)[:, None]
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    line = pixel // WIDTH
    image = line // HEIGHT
    valid = (image < batch) & (channel < C)
    return image, line % HEIGHT, pixel % WIDTH, channel, pixel * C + channel, valid


@triton.jit
def _on_map(row, column, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    return (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)


@triton.jit(do_not_specialize=["batch"])
def forward(
    x, weight, bias, y, batch,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, STEP_H: tl.constexpr, STEP_W: tl.constexpr,
    PIXELS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compute a tile [PIXELS, BLOCK_C] of y."""
    image, p, q, channel, at, valid = _place(batch, P, Q, C, PIXELS, BLOCK_C)
    client = tl.program_id(2).to(tl.int64)
    x += client * batch * (H * W * C)
    y += client * batch * (P * Q * C)
    filters = weight + client * (KH * KW * C) + channel
    total = tl.zeros([PIXELS, BLOCK_C], tl.float32)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            row = p * STRIDE_H - PAD_H + i * STEP_H
            column = q * STRIDE_W - PAD_W + j * STEP_W
            inside = valid & _on_map(row, column, H, W)
            source = ((image * H + row) * W + column) * C + channel
            value = tl.load(x + source, mask=inside, other=0).to(weight.dtype.element_ty)
            tap = tl.load(filters + (i * KW + j) * C, mask=channel < C, other=0)
            total += value.to(tl.float32) * tap.to(tl.float32)
    if bias is not None:
        total += tl.load(bias + client * C + channel, mask=channel < C, other=0).to(tl.float32)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["batch"])
def input_gradient(
    dy, weight, dx, batch,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, STEP_H: tl.constexpr, STEP_W: tl.constexpr,
    PIXELS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compute a tile [PIXELS, BLOCK_C] of dx."""
    image, h, w, channel, at, valid = _place(batch, H, W, C, PIXELS, BLOCK_C)
    client = tl.program_id(2).to(tl.int64)
    dy += client * batch * (P * Q * C)
    dx += client * batch * (H * W * C)
    filters = weight + client * (KH * KW * C) + channel
    total = tl.zeros([PIXELS, BLOCK_C], tl.float32)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            down, across = h + PAD_H - i * STEP_H, w + PAD_W - j * STEP_W
            p, q = down // STRIDE_H, across // STRIDE_W
            inside = valid & (down >= 0) & (across >= 0) & (p < P) & (q < Q)
            if STRIDE_H > 1 or STRIDE_W > 1:
                inside &= (down % STRIDE_H == 0) & (across % STRIDE_W == 0)
            source = ((image * P + p) * Q + q) * C + channel
            slope = tl.load(dy + source, mask=inside, other=0).to(tl.float32)
            tap = tl.load(filters + (i * KW + j) * C, mask=channel < C, other=0)
            total += slope * tap.to(tl.float32)
    tl.store(dx + at, total.to(dx.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["M", "height"])
def weight_gradient(
    x, dy, weight, partial, M, height,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, STEP_H: tl.constexpr, STEP_W: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Store the sums [taps, C] of dy times a tap's pixels over a chunk of positions.

    The chunk is read again for every tap, from the cache: it is small.
    """
    client, chunk = tl.program_id(2).to(tl.int64), tl.program_id(1)
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    x += client * (M // (P * Q)) * (H * W * C)
    dy += client * M * C
    partial += (client * tl.num_programs(1) + chunk) * (KH * KW * C)
    last = tl.minimum((chunk + 1) * height, M)
    for i in tl.static_range(KH):
        for j in tl.static_range(KW):
            total = tl.zeros([ROWS, BLOCK_C], tl.float32)
            for start in range(chunk * height, last, ROWS):
                m = start + tl.arange(0, ROWS)[:, None]
                valid = (m < last) & (channel < C)
                slope = tl.load(dy + m * C + channel, mask=valid, other=0).to(tl.float32)
                position = m % (P * Q)
                row = position // Q * STRIDE_H - PAD_H + i * STEP_H
                column = position % Q * STRIDE_W - PAD_W + j * STEP_W
                inside = valid & _on_map(row, column, H, W)
                source = ((m // (P * Q) * H + row) * W + column) * C + channel
                value = tl.load(x + source, mask=inside, other=0).to(weight.dtype.element_ty)
                total += value.to(tl.float32) * slope
            to = partial + (i * KW + j) * C + channel
            tl.store(to, tl.sum(total, 0)[None, :], mask=channel < C)
