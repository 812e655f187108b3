"""What is embed in the page: pictures, line samples, the content security policy."""

import base64
import hashlib
from pathlib import Path

import numpy as np
from markupsafe import Markup

from fedfm.report.html.discover import Discovery, LeftOut, format_path
from fedfm.report.html.svg import draw_markers, style_classes

LARGEST_PICTURE = 8_000_000
KINDS = {".png": "image/png", ".svg": "image/svg+xml"}


def embed_picture(findings: Discovery, path: Path) -> dict[str, str] | None:
    """Return a picture as a data URI; an SVG in `img` runs no script."""
    if path.stat().st_size > LARGEST_PICTURE:
        why = f"larger than {LARGEST_PICTURE // 1_000_000} MB"
        findings.left_out.append(LeftOut(format_path(path), why))
        return None
    content = base64.b64encode(path.read_bytes()).decode()
    name = f"{path.parent.name}/{path.name}"
    return {"name": name, "source": f"data:{KINDS[path.suffix]};base64,{content}"}


def draw_swatch(number: int) -> Markup:
    """Return a sample of a method's line."""
    places = draw_markers(np.array([17.0]), np.array([7.0]), number)
    return Markup(
        '<svg class="swatch {}" viewBox="0 0 34 14" aria-hidden="true">'
        '<path class="line" d="M1 7H33"/><path class="marks" d="{}"/></svg>'
    ).format(style_classes(number), places)


def make_policy(style: str, script: str) -> str:
    """Return a content security policy that allows only this style and this script."""
    style_hash, script_hash = (
        "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for text in (style, script)
    )
    return (
        f"default-src 'none'; style-src {style_hash}; script-src {script_hash}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
