"""Render the page and write it."""

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedfm import __version__
from fedfm.core.files import write_atomically
from fedfm.report.html import charts, metrics, tables
from fedfm.report.html.clients import draw_client_dots
from fedfm.report.html.discover import Discovery, SkippedRun, discover_runs, embed_picture
from fedfm.report.html.group import Setting, group_by_setting
from fedfm.report.html.partition import draw_partition_of
from fedfm.report.html.svg import draw_swatch
from fedfm.report.html.sweep import list_sweeps


@dataclass(frozen=True)
class WrittenReport:
    """What `write_report` has done."""

    path: Path
    runs: int
    left_out: list[SkippedRun]


def write_report(places: Sequence[Path], out: Path, title: str | None = None) -> WrittenReport:
    """Write one HTML file about all runs in `places`; it names what is left out."""
    findings = discover_runs(places)
    page = render_page(findings, title)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page.encode(errors="replace"))
    return WrittenReport(out, len(findings.runs), findings.left_out)


def render_page(findings: Discovery, title: str | None = None) -> str:
    """Return the page as text."""
    settings = group_by_setting(findings.runs)
    pictures = [each for path in findings.pictures if (each := embed_picture(findings, path))]
    files = resources.files("fedfm.report.html")
    style, script = ((files / name).read_text("utf-8") for name in ("style.css", "report.js"))
    environment = Environment(
        loader=PackageLoader("fedfm.report.html", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("template.html").render(
        title=title or _make_title(settings),
        headline=_summarise(findings, settings),
        style=Markup(style),
        script=Markup(script),
        policy=_make_policy(style, script),
        methods=sorted({(entry.number, entry.label) for s in settings for entry in s.entries}),
        sections=[_make_section(setting, f"s{i}") for i, setting in enumerate(settings)],
        contents=_shorten_titles(settings),
        sweeps=list_sweeps(findings.runs),
        pictures=pictures,
        profiles=_list_profiles(settings),
        machines=tables.list_machines(findings.runs),
        configs=_list_configs(settings),
        left_out=findings.left_out,
        version=__version__,
        swatch=draw_swatch,
    )


def _make_policy(style: str, script: str) -> str:
    """Return a content security policy that allows only this style and this script."""
    style_hash, script_hash = (
        "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for text in (style, script)
    )
    return (
        f"default-src 'none'; style-src {style_hash}; script-src {script_hash}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _make_title(settings: Sequence[Setting]) -> str:
    data = sorted({setting.title.split(",")[0] for setting in settings})
    return f"Federated learning on {', '.join(data)}"


def _summarise(findings: Discovery, settings: Sequence[Setting]) -> dict[str, Any]:
    runs = findings.runs
    dates = sorted(run.finished for run in runs if run.finished) or [""]
    return {
        "runs": len(runs),
        "seeds": len({run.seed for run in runs}),
        "settings": len(settings),
        "first": dates[0],
        "last": dates[-1],
        "quick": sum(run.identity in findings.quick for run in runs),
        "best": [_describe_best(setting) for setting in settings],
        "winner": Counter((s.best.number, s.best.label) for s in settings).most_common(1)[0],
        "seconds": sum(run.totals["seconds"] for run in runs),
    }


def _describe_best(setting: Setting) -> dict[str, Any]:
    """Describe the best method, and those within one standard deviation of it."""
    best = setting.best
    close = [
        entry.label
        for entry in setting.entries
        if entry is not best and best.mean - entry.mean <= max(best.deviation, entry.deviation)
    ]
    return {
        "entry": best,
        "accuracy": tables.format_accuracy(best),
        "close": close,
        "cheapest": tables.find_cheapest(setting),
        "alone": len(setting.entries) == 1,
    }


def _shorten_titles(settings: Sequence[Setting]) -> list[str]:
    """Return the parts of each setting's title that not all settings share."""
    titles = [setting.title.split(", ") for setting in settings]
    common = set(titles[0]).intersection(*titles)
    return [", ".join(part for part in title if part not in common) for title in titles]


def _make_section(setting: Setting, name: str) -> dict[str, Any]:
    drawn = (
        charts.draw_over_rounds(setting.entries, f"{name}-rounds"),
        charts.draw_against_bytes(setting.entries, f"{name}-bytes"),
    )
    partition, about = draw_partition_of(setting.entries[0].runs[0], f"{name}-partition")
    return {
        "name": name,
        "title": setting.title,
        "charts": [*(chart for chart in drawn if chart), *metrics.draw_charts(setting, name)],
        "results": metrics.add_columns(tables.build_results(setting), setting),
        "classes": metrics.build_classes(setting),
        "matrices": metrics.draw_matrices(setting, name),
        "over_clients": metrics.build_clients(setting),
        "named_clients": metrics.build_named_clients(setting),
        "costs": tables.build_costs(setting),
        "clients": draw_client_dots(setting.entries, f"{name}-clients"),
        "partition": partition,
        "about_partition": about,
    }


def _list_profiles(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    profiles: list[dict[str, Any]] = []
    for setting, entry in ((s, e) for s in settings for e in s.entries):
        seconds = next((run.profile for run in entry.runs if run.profile), {})
        ordered = dict(sorted(seconds.items(), key=lambda each: -each[1]))
        if ordered:
            bar = charts.draw_time_bar(ordered, f"profile-{len(profiles)}")
            place = {"setting": setting.title, "entry": entry}
            profiles.append(place | {"bar": bar, "whole": sum(ordered.values())})
    return profiles


def _list_configs(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    runs = [run for s in settings for e in s.entries for run in e.runs]
    common = os.path.commonpath([Path(run.folder).parent for run in runs])
    return [
        {
            "setting": setting.title if len(settings) > 1 else "",
            "entry": entry,
            "text": tomli_w.dumps(config := entry.runs[0].config),
            "code": [name.removeprefix("model.") for name in config.get("code", {})],
            "from_python": any("digest" in config.get(key, {}) for key in ("data", "model")),
            "runs": [(run, os.path.relpath(run.folder, common)) for run in entry.runs],
        }
        for setting in settings
        for entry in setting.entries
    ]
