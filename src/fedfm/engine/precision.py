"""In which precision networks are run; weights, averages and statistics are fp32 always."""

import torch

from fedfm.core.errors import require, unknown

PRECISIONS = ("auto", "fp32", "tf32", "bf16")


def use_precision(name: str, device: torch.device) -> torch.dtype | None:
    """Set a precision up; returns the type of a network's products where it is a lower one.

    "auto" is bf16 on a GPU that has it, else fp32.
    """
    if name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
    if device.type != "cuda":
        require(name in ("auto", "fp32"), f"precision {name} needs a GPU; on a CPU there is fp32")
        return None
    modern = torch.cuda.get_device_capability(device) >= (8, 0)
    require(
        modern or name in ("auto", "fp32"),
        f"this GPU ({torch.cuda.get_device_name(device)}) has no {name}; use precision=fp32",
    )
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    torch.backends.cudnn.allow_tf32 = name == "tf32"
    return torch.bfloat16 if name == "bf16" or (name == "auto" and modern) else None
