"""The stacked convolution on every layer of ResNet18: checked against torch, then timed.

Every pass is held to torch's, client by client in float32. It is timed with the tiles that the
library chooses and with others, against cuDNN's grouped convolution on [B, S*C, H, W], and against
torch.bmm on unfolded inputs made beforehand: what the product alone takes.
"""

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

TINY = "--tiny" in sys.argv
if TINY:  # chosen before Triton is imported
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import triton  # noqa: E402
from torch import Tensor  # noqa: E402

from fedfm.engine.kernels import _convolution as device  # noqa: E402
from fedfm.engine.kernels import convolution  # noqa: E402
from fedfm.engine.kernels.convolution import Layer, Tiles  # noqa: E402

DEVICE = "cpu" if TINY else "cuda"
DTYPE = torch.float32 if TINY else torch.bfloat16
CLIENTS = 2 if TINY else 10
BATCH = 3 if TINY else 64
PICTURE = 4
"""Channels of pictures, as they come into the kernels."""
PASSES = ("forward", "input_gradient", "weight_gradient")
GATHERS = tuple(
    Tiles(rows, columns, depth, 1, warps, stages)
    for rows, columns, depth, warps, stages in (
        (32, 32, 64, 4, 4),
        (32, 64, 64, 4, 4),
        (64, 32, 64, 4, 4),
        (64, 32, 128, 4, 3),
        (64, 64, 32, 4, 4),
        (64, 64, 64, 4, 3),
        (64, 64, 64, 4, 5),
        (64, 64, 128, 4, 3),
        (64, 128, 64, 4, 3),
        (64, 128, 64, 4, 4),
        (128, 32, 64, 4, 4),
        (128, 64, 32, 4, 4),
        (128, 64, 64, 4, 3),
        (128, 64, 64, 8, 3),
        (128, 64, 64, 4, 4),
        (128, 128, 64, 8, 3),
        (128, 128, 64, 4, 3),
        (256, 64, 64, 8, 3),
        (256, 128, 64, 8, 3),
    )
)
WEIGHTS = tuple(
    Tiles(rows, columns, depth, splits, warps, stages)
    for rows, columns, depth, warps, stages in (
        (64, 32, 64, 4, 4),
        (64, 64, 64, 4, 3),
        (64, 64, 64, 4, 5),
        (64, 128, 64, 4, 3),
        (128, 64, 64, 4, 3),
        (128, 128, 64, 8, 3),
        (64, 256, 64, 4, 3),
        (128, 256, 64, 8, 3),
    )
    for splits in (1, 2, 4, 8, 16, 32)
)


def layers(only: str = "") -> dict[str, Layer]:
    """Every distinct convolution of ResNet18 with either stem whose name has `only` in it."""
    found: dict[str, Layer] = {}

    def add(name: str, side: int, inputs: int, outputs: int, k: int, stride: int) -> None:
        pad, out = k // 2, (side - 1) // stride + 1
        found[name] = Layer(
            side, side, inputs, out, out, outputs, k, k, stride, stride, pad, pad
        )  # fmt: skip

    widths = (16, 32) if TINY else (64, 128, 256, 512)
    picture = 8 if TINY else 32
    for stem, kernel, first in (("pooled", 7, picture // 4), ("cifar", 3, picture)):
        add(f"{stem} stem", picture, PICTURE, widths[0], kernel, 2 if kernel == 7 else 1)
        add(f"{stem} layer1", first, widths[0], widths[0], 3, 1)
        for i, (narrow, wide) in enumerate(pairwise(widths)):
            side, name = first >> i, f"{stem} layer{i + 2}"
            add(f"{name} down", side, narrow, wide, 3, 2)
            add(f"{name} skip", side, narrow, wide, 1, 2)
            add(name, side // 2, wide, wide, 3, 1)
    return {name: layer for name, layer in found.items() if only in name}


class Case:
    """Random tensors of a layer, in the memory layout of the kernels."""

    def __init__(self, layer: Layer) -> None:
        self.layer = at = layer
        torch.manual_seed(0)
        like: dict[str, Any] = {"device": DEVICE, "dtype": DTYPE}
        self.x = torch.randn(CLIENTS * BATCH, at.H, at.W, at.IN, **like)
        self.weight = torch.randn(CLIENTS, at.OUT, at.KH, at.KW, at.IN, **like)
        self.dy = torch.randn(CLIENTS * BATCH, at.P, at.Q, at.OUT, **like)
        self.stride, self.padding = (at.STRIDE_H, at.STRIDE_W), (at.PAD_H, at.PAD_W)

    def passes(self) -> tuple[str, ...]:
        """Pictures need no gradient."""
        return tuple(p for p in PASSES if TINY or self.layer.IN > PICTURE or p != "input_gradient")

    def ours(self, which: str, cut: Tiles | None = None) -> Tensor:
        """One pass by the kernels."""
        if which == "forward":
            return convolution.forward(self.x, self.weight, self.layer, cut)
        if which == "input_gradient":
            return convolution.input_gradient(self.dy, self.weight, self.layer, cut)
        return convolution.weight_gradient(self.x, self.dy, CLIENTS, self.layer, cut)

    def expected(self) -> dict[str, Tensor]:
        """All passes by torch, client by client in float32."""
        parts: dict[str, list[Tensor]] = {which: [] for which in PASSES}
        each = (self.x.chunk(CLIENTS), self.weight, self.dy.chunk(CLIENTS))
        for x, weight, dy in zip(*each, strict=True):
            x = x.permute(0, 3, 1, 2).float().requires_grad_()
            weight = weight.permute(0, 3, 1, 2).float().requires_grad_()
            y = F.conv2d(x, weight, stride=self.stride, padding=self.padding)
            slopes = torch.autograd.grad(y, (x, weight), dy.permute(0, 3, 1, 2).float())
            for which, found in zip(PASSES, (y, *slopes), strict=True):
                parts[which].append(found.detach().permute(0, 2, 3, 1))
        return {
            which: torch.stack(found) if which == "weight_gradient" else torch.cat(found)
            for which, found in parts.items()
        }

    def grouped(self) -> dict[str, Callable[[], object]]:
        """All passes by cuDNN, clients as groups."""

        def wide(t: Tensor) -> Tensor:  # [S*B, H, W, C] to [B, S*C, H, W], channels last
            apart = t.view(CLIENTS, BATCH, *t.shape[1:]).permute(1, 2, 3, 0, 4)
            return apart.flatten(3).contiguous().permute(0, 3, 1, 2)

        x, dy = wide(self.x), wide(self.dy)
        weight = self.weight.flatten(0, 1).permute(0, 3, 1, 2)

        def backward(*wanted: bool) -> object:
            return torch.ops.aten.convolution_backward(
                dy, x, weight, None, self.stride, self.padding, (1, 1), False, (0, 0), CLIENTS,
                (*wanted, False),
            )  # fmt: skip

        return {
            "forward": lambda: F.conv2d(x, weight, None, self.stride, self.padding, 1, CLIENTS),
            "input_gradient": lambda: backward(True, False),
            "weight_gradient": lambda: backward(False, True),
        }

    def products(self) -> dict[str, Callable[[], object]]:
        """The matrix products of all passes, inputs unfolded."""
        at = self.layer
        rows, terms = BATCH * at.P * at.Q, at.KH * at.KW * at.IN
        columns = torch.randn(CLIENTS, rows, terms, device=DEVICE, dtype=DTYPE)
        weight, dy = self.weight.view(CLIENTS, at.OUT, terms), self.dy.view(CLIENTS, rows, at.OUT)
        return {
            "forward": lambda: torch.bmm(columns, weight.mT),
            "input_gradient": lambda: torch.bmm(dy, weight),
            "weight_gradient": lambda: torch.bmm(dy.mT, columns),
        }


def chosen(layer: Layer, which: str) -> Tiles:
    """The tiles that the library takes."""
    taps = layer.KH * layer.KW
    if which == "forward":
        rows = BATCH * layer.P * layer.Q
        return convolution.gather_tiles(rows, layer.OUT, layer.IN, taps, DTYPE)
    if which == "input_gradient":
        rows = BATCH * layer.H * layer.W
        return convolution.gather_tiles(rows, layer.IN, layer.OUT, taps, DTYPE)
    return convolution.weight_tiles(layer, BATCH, DTYPE)


def candidates(layer: Layer, which: str) -> Iterator[Tiles]:
    """The library's tiles, and others that fit the pass."""
    ours = chosen(layer, which)
    yield ours
    if which == "weight_gradient":
        steps, terms = layer.P * layer.Q, layer.KH * layer.KW * layer.IN
        for cut in WEIGHTS:
            near = ours.splits / 4 <= cut.splits <= max(2, ours.splits * 2)
            fits = cut.rows <= layer.OUT and cut.columns < 2 * terms and cut.splits <= steps / 2
            if cut != ours and fits and (near or cut.splits == 1):
                yield cut
        return
    rows, columns, channels = BATCH * layer.P * layer.Q, layer.OUT, layer.IN
    if which == "input_gradient":
        rows = BATCH * triton.cdiv(layer.H, layer.STRIDE_H) * triton.cdiv(layer.W, layer.STRIDE_W)
        columns, channels = layer.IN, layer.OUT
    for cut in GATHERS:
        whole = channels % cut.depth == 0 or (channels < 16 and cut.depth <= 64)
        if cut != ours and whole and cut.rows <= rows and cut.columns <= columns:
            yield cut


Job = tuple[Layer, str, Tiles]


def compile_kernel(job: Job) -> None:
    """Leave a kernel in Triton's cache on disk, for the process that times it."""
    layer, which, cut = job
    result = torch.float32 if cut.splits > 1 else DTYPE
    sizes = (BATCH, CLIENTS) if which == "weight_gradient" else (BATCH,)
    constants = convolution._constants(layer, cut)
    getattr(device, which).warmup(DTYPE, DTYPE, result, *sizes, grid=(1,), **constants)


def jobs(only: str = "") -> set[Job]:
    """Every kernel to compile; those of several splits are the same."""
    return {
        (layer, which, replace(cut, splits=min(cut.splits, 2)))
        for layer in layers(only).values()
        for which in PASSES
        for cut in candidates(layer, which)
        if layer.IN > PICTURE or which != "input_gradient"
    }


def compile_all(only: str) -> None:
    """Compile every candidate, in as many processes as there are processors."""
    start, all_jobs = time.perf_counter(), jobs(only)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        done = [pool.submit(compile_kernel, job) for job in all_jobs]
        errors = [error for error in (each.exception() for each in done) if error]
    seconds = time.perf_counter() - start
    print(f"{len(all_jobs)} kernels compiled in {seconds:.0f} s, errors: {errors[:3]}", flush=True)


def microseconds(work: Callable[[], object], inner: int = 20, samples: int = 30) -> float:
    """Median time of `work`, captured `inner` times in a CUDA graph."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not type it
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            work()
    graph.replay()
    timer = partial(torch.cuda.Event, enable_timing=True)
    start, end = timer(), timer()
    times: list[float] = []
    for _ in range(samples):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / inner)
    return median(times)


def attempt(case: Case, which: str, cut: Tiles) -> float:
    """The time with these tiles, infinite where the GPU has not the resources."""
    try:
        return microseconds(lambda: case.ours(which, cut), inner=10, samples=5)
    except (triton.OutOfResources, RuntimeError) as error:
        print(f"  {cut}: {type(error).__name__}", flush=True)
        return float("inf")


def brief(cut: Tiles) -> str:
    """Rows x columns x depth / splits, warps, stages."""
    return f"{cut.rows}x{cut.columns}x{cut.depth}/{cut.splits} w{cut.warps} s{cut.stages}"


def measure(name: str, layer: Layer) -> Iterator[dict[str, Any]]:
    """Check and time all passes of a layer."""
    case = Case(layer)
    expected = case.expected()
    grouped, products = ({}, {}) if TINY else (case.grouped(), case.products())
    for which in case.passes():
        wanted = expected[which]
        error = (case.ours(which).float() - wanted).abs().max() / wanted.abs().max()
        line: dict[str, Any] = {"layer": name, "pass": which, "error": error.item()}
        text = f"{name:18} {which:15} error {line['error']:.1e}"
        if not TINY:
            ours = chosen(layer, which)
            times = {cut: attempt(case, which, cut) for cut in candidates(layer, which)}
            best = min(times, key=times.__getitem__)
            line |= {
                "ours": microseconds(partial(case.ours, which)),
                "tiles": brief(ours),
                "best": microseconds(partial(case.ours, which, best)),
                "best tiles": brief(best),
                "cudnn": microseconds(grouped[which], inner=5, samples=7),
                "bmm": microseconds(products[which], inner=10, samples=11),
                "candidates": {brief(cut): each for cut, each in times.items()},
            }
            text += (
                f" | ours {line['ours']:7.1f} ({line['tiles']}) best {line['best']:7.1f}"
                f" ({line['best tiles']}) cudnn {line['cudnn']:7.1f} bmm {line['bmm']:7.1f} us"
            )
        print(text, flush=True)
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="check small shapes on the CPU only")
    parser.add_argument("--only", default="", help="layers whose name has this in it")
    parser.add_argument("--out", type=Path, help="where all numbers go, as JSON")
    options = parser.parse_args()
    if not TINY and not torch.cuda.is_available():
        print("no NVIDIA GPU here: nothing to measure (--tiny checks the kernels on the CPU)")
        return
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    if not TINY:
        compile_all(options.only)
    lines: list[dict[str, Any]] = []
    gc.freeze()  # every capture collects garbage
    for name, layer in layers(options.only).items():
        lines += measure(name, layer)
        if options.out:
            options.out.write_text(json.dumps(lines, indent=1))
    worst = max(line["error"] for line in lines)
    limit = 1e-5 if TINY else 1e-2
    print(f"worst error {worst:.1e}, allowed {limit:.0e}")
    if not worst < limit:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
