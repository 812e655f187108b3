"""What else goes into the page: pictures, swatches, and the policy that lets nothing else in."""

import base64
import hashlib
from pathlib import Path

import numpy as np
from markupsafe import Markup

from fedfm.report.html import drawing
from fedfm.report.html.finding import Findings, LeftOut, shown

LARGEST_PICTURE = 8_000_000
KINDS = {".png": "image/png", ".svg": "image/svg+xml"}


def picture(findings: Findings, path: Path) -> dict[str, str] | None:
    """A picture within the page; `img` runs no script of an SVG."""
    if path.stat().st_size > LARGEST_PICTURE:
        why = f"larger than {LARGEST_PICTURE // 1_000_000} MB"
        findings.left_out.append(LeftOut(shown(path), why))
        return None
    content = base64.b64encode(path.read_bytes()).decode()
    name = f"{path.parent.name}/{path.name}"
    return {"name": name, "source": f"data:{KINDS[path.suffix]};base64,{content}"}


def swatch(number: int) -> Markup:
    """A piece of a method's line, for legends."""
    places = drawing.marks(np.array([17.0]), np.array([7.0]), number)
    return Markup(
        '<svg class="swatch {}" viewBox="0 0 34 14" aria-hidden="true">'
        '<path class="line" d="M1 7H33"/><path class="marks" d="{}"/></svg>'
    ).format(drawing.style_of(number), places)


def policy(style: str, script: str) -> str:
    """A content security policy under which only this style and this script work."""
    style_hash, script_hash = (
        "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for text in (style, script)
    )
    return (
        f"default-src 'none'; style-src {style_hash}; script-src {script_hash}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
