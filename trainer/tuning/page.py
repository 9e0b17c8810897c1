"""study.html: one self-contained page that shows what a study found. Adopters: may add a section."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from trainer import charts as report_charts
from trainer.tuning import charts
from trainer.tuning.importance import LEAST_TRIALS, importance
from trainer.tuning.record import Record
from trainer.tuning.spec import Study
from trainer.tuning.trial import Trial


def _number(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else html.escape(str(value))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _card(content: str) -> str:
    return f'<div class="card">{content}</div>'


def _tiles(study: Study, record: Record, best: Trial | None) -> str:
    stopped = sum(trial.state == "stopped" for trial in record.trials)
    tiles = [
        (_number(best.value if best else None), f"best {study.metric}"),
        (f"{best.id}" if best else "–", "best trial"),
        (f"{len(record.trials)}", f"trials of {study.limits.max_trials}"),
        (f"{len(record.failed)}", "failed"),
        (f"{stopped}", "stopped early"),
        (f"{record.seconds / 60:.1f} min" if record.seconds >= 100 else f"{record.seconds:.0f} s", "in all"),
    ]
    inner = "".join(
        f'<div class="tile"><b>{value}</b><span>{html.escape(name)}</span></div>' for value, name in tiles
    )
    return f'<div class="tiles">{inner}</div>'


def _trials(study: Study, record: Record, best: Trial | None) -> str:
    names = [dimension.id for dimension in study.dimensions]
    marks = {"failed": "bad", "completed": "", "stopped": "muted", "running": "muted"}
    rows = []
    for trial in record.trials:
        star = " ★" if best is not None and trial.id == best.id else ""
        cells = [f"{trial.id}{star}"]
        for name in names:
            value = trial.values.get(name)
            cells.append("–" if value is None else html.escape(study.dimension(name).text(value)))
        error = f' title="{html.escape(trial.error, quote=True)}"' if trial.error else ""
        cells += [
            _number(trial.value),
            f'<span class="{marks[trial.state]}"{error}>{trial.state}</span>',
            f"{trial.ended - trial.started:.0f} s" if trial.ended else "–",
            str(trial.seen),
        ]
        rows.append(cells)
    failed = "".join(f"<li>trial {trial.id}: {html.escape(trial.error)}</li>" for trial in record.failed)
    why = f"<br><details><summary>Why trials failed</summary><ul>{failed}</ul></details>" if failed else ""
    header = ["trial", *names, study.metric, "state", "time", "knew of"]
    return "<h2>Trials</h2>" + _card(_table(header, rows)) + why


def _importance(study: Study, trials: list[Trial]) -> str:
    shares = importance(study, trials)
    if not shares:
        note = f"Too few trials to tell (or all are alike): it takes {LEAST_TRIALS} with a value."
        return f'<h2>Importance of the parameters</h2><p class="note">{note}</p>'
    chart = report_charts.bars("Share of what the values explain", shares, "share")
    note = (
        "A random forest learns the metric from the values of the trials; a bar is what it loses when that "
        "parameter's values are shuffled. With few trials this is a hint, not a finding."
    )
    return f'<h2>Importance of the parameters</h2><p class="note">{note}</p>' + _card(chart)


def render(study: Study, record: Record, best_config: str, advice: Sequence[str]) -> str:
    """Returns the page.

    Args:
        study: the study.
        record: its trials.
        best_config: text of best.yaml, or "".
        advice: what was said before the start.

    Returns:
        A whole HTML document that refers to nothing outside itself.
    """
    best = record.best()
    counted = sorted(record.counted, key=lambda trial: trial.ended)
    sections = [_tiles(study, record, best)]
    if best is not None:
        goal = "higher" if study.goal == "max" else "lower"
        sections += [
            "<h2>Values and metric</h2>"
            f'<p class="note">One line a trial, the darker the better; the thick one is the best. A '
            f"{goal} {html.escape(study.metric)} is better. A line that dips below an axis belongs to a "
            "trial without that parameter.</p>",
            _card(charts.parallel_coordinates(study, counted)),
            "<h2>Course of the study</h2><div class='grid'>",
            _card(charts.best_so_far(study, counted, f"{study.metric} as trials finished")),
            _card(charts.curves(study, counted, best.id)),
            _card(charts.known(record.trials)),
            "</div>",
            _importance(study, counted),
        ]
    sections.append(_trials(study, record, best))
    if advice:
        sections.append(
            "<h2>Before the start</h2><ul>" + "".join(f"<li>{html.escape(a)}</li>" for a in advice) + "</ul>"
        )
    if best_config:
        sections.append(
            "<h2>Best config</h2><details><summary>best.yaml</summary>"
            f"<pre>{html.escape(best_config)}</pre></details>"
        )
    css = resources.files("trainer").joinpath("report.css").read_text("utf-8")
    data = {"metric": study.metric, "goal": study.goal, "trials": [trial.plain() for trial in record.trials]}
    embedded = json.dumps(data).replace("</", "<\\/")  # "</" inside the JSON would end the script element
    median = " · bad trials stopped by the median rule" if study.stopping else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(study.name)}: study</title>"
        '<link rel="icon" href="data:,">'  # without one a browser asks for it and logs the refusal
        f"<style>{css}</style></head><body><main>"
        f"<h1>{html.escape(study.name)}</h1>"
        f'<div class="muted">{study.algorithm} search · {study.selection} measurement of '
        f"<b>{html.escape(study.metric)}</b> · {study.limits.parallel} at once{median} · "
        f"{html.escape(record.outcome or 'not at its end')}</div>"
        + "".join(sections)
        + f'</main><script type="application/json" id="study">{embedded}</script></body></html>\n'
    )
