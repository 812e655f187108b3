"""The page: everything that the template shows, and the file that results."""

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
from fedfm.core.checkpoint import write_atomically
from fedfm.report.html import charts, inline, small_charts, tables
from fedfm.report.html.finding import Findings, LeftOut, common_folder, find
from fedfm.report.html.grouping import Setting, settings_of
from fedfm.report.html.partitions import partition_of
from fedfm.report.html.reading import FoundRun


@dataclass(frozen=True)
class Written:
    """What `write_report` has done."""

    path: Path
    runs: int
    left_out: list[LeftOut]


def write_report(places: Sequence[Path], out: Path, title: str | None = None) -> Written:
    """Write one HTML file about all runs in `places`; what is left out is named in it."""
    findings = find(places)
    page = render(findings, title)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page.encode(errors="replace"))
    return Written(out, len(findings.runs), findings.left_out)


def render(findings: Findings, title: str | None = None) -> str:
    """The page as text."""
    settings = settings_of(findings.runs)
    pictures = [each for path in findings.pictures if (each := inline.picture(findings, path))]
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
        title=title or _default_title(settings),
        headline=_headline(findings, settings),
        style=Markup(style),
        script=Markup(script),
        policy=inline.policy(style, script),
        methods=_methods(settings),
        sections=[_section(setting, f"s{i}") for i, setting in enumerate(settings)],
        contents=_contents(settings),
        pictures=pictures,
        profiles=_profiles(settings),
        machines=tables.machines(findings.runs),
        configs=_configs(settings),
        left_out=findings.left_out,
        version=__version__,
        swatch=inline.swatch,
    )


def _default_title(settings: Sequence[Setting]) -> str:
    data = sorted({setting.title.split(",")[0] for setting in settings})
    return f"Federated learning on {', '.join(data)}"


def _headline(findings: Findings, settings: Sequence[Setting]) -> dict[str, Any]:
    runs = findings.runs
    dates = sorted(run.finished for run in runs if run.finished)
    quick = sum(run.identity in findings.quick for run in runs)
    return {
        "runs": len(runs),
        "seeds": len({run.seed for run in runs}),
        "settings": len(settings),
        "first": dates[0] if dates else "",
        "last": dates[-1] if dates else "",
        "quick": quick,
        "best": [_best(setting) for setting in settings],
        "winner": Counter((s.best.number, s.best.label) for s in settings).most_common(1)[0],
        "seconds": sum(run.totals["seconds"] for run in runs),
    }


def _best(setting: Setting) -> dict[str, Any]:
    """The best method, and those whose means are within its deviation or their own."""
    best = setting.best
    close = [
        entry.label
        for entry in setting.entries
        if entry is not best and best.mean - entry.mean <= max(best.deviation, entry.deviation)
    ]
    return {
        "setting": setting.title,
        "number": best.number,
        "label": best.label,
        "accuracy": tables.spread(best),
        "seeds": len(best.runs),
        "close": close,
        "cheapest": tables.cheapest(setting),
        "alone": len(setting.entries) == 1,
    }


def _methods(settings: Sequence[Setting]) -> list[tuple[int, str]]:
    return sorted({(entry.number, entry.label) for s in settings for entry in s.entries})


def _contents(settings: Sequence[Setting]) -> list[str]:
    """What each setting's title has that not all have."""
    titles = [setting.title.split(", ") for setting in settings]
    common = set(titles[0]).intersection(*titles)
    kept = ([part for part in title if part not in common] for title in titles)
    return [", ".join(parts) for parts in kept]


def _section(setting: Setting, name: str) -> dict[str, Any]:
    drawn = (
        charts.over_rounds(setting.entries, f"{name}-rounds"),
        charts.against_bytes(setting.entries, f"{name}-bytes"),
    )
    partition, about = partition_of(setting.entries[0].runs[0], f"{name}-partition")
    return {
        "name": name,
        "title": setting.title,
        "charts": [chart for chart in drawn if chart],
        "results": tables.results(setting),
        "costs": tables.costs(setting),
        "clients": small_charts.client_dots(setting.entries, f"{name}-clients"),
        "partition": partition,
        "about_partition": about,
    }


def _profiles(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for setting, entry in ((s, e) for s in settings for e in s.entries):
        seconds = next((run.profile for run in entry.runs if run.profile), {})
        ordered = dict(sorted(seconds.items(), key=lambda each: -each[1]))
        if ordered:
            bar = small_charts.time_bar(ordered, f"profile-{len(found)}")
            place = {"setting": setting.title, "entry": entry}
            found.append(place | {"bar": bar, "phases": ordered, "whole": sum(ordered.values())})
    return found


def _configs(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    runs = [run for s in settings for e in s.entries for run in e.runs]
    common = common_folder(run.folder for run in runs)
    return [
        {
            "setting": setting.title if len(settings) > 1 else "",
            "entry": entry,
            "text": tomli_w.dumps(entry.runs[0].config),
            "runs": [(run, _inside(run, common)) for run in entry.runs],
        }
        for setting in settings
        for entry in setting.entries
    ]


def _inside(run: FoundRun, common: Path) -> str:
    return os.path.relpath(run.folder, common)
