"""What `check` finds, and how it is written: text, JSON, SARIF. Adopters: leave."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One mistake, or one thing to think about.

    Attributes:
        rule: id of the rule, from `rules.RULES`.
        severity: "error" or "warning".
        file: the job file.
        line: line of the field, or of what it should stand in.
        column: column there.
        field: the field, in the file's own spelling.
        why: what is wrong with it.
        instead: what to write.
    """

    rule: str
    severity: str
    file: str
    line: int
    column: int
    field: str
    why: str
    instead: str

    def __str__(self) -> str:
        """One line: `file:line: severity: field: why; instead [rule]`."""
        return f"{self.file}:{self.line}: {self.severity}: {self._text}"

    @property
    def sentence(self) -> str:
        """The same without the severity, for a message that says "error" itself."""
        return f"{self.file}:{self.line}: {self._text}"

    @property
    def _text(self) -> str:
        field = f"{self.field}: " if self.field else ""
        return f"{field}{self.why}; {self.instead} [{self.rule}]"


def count(findings: Sequence[Finding], severity: str) -> int:
    """Returns how many findings have a severity."""
    return sum(finding.severity == severity for finding in findings)


def _many(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"


def as_text(findings: Sequence[Finding], files: Sequence[str], facts: Mapping[str, Sequence[str]]) -> str:
    """Returns the findings line by line, then one line for each file, with what is good to know of it."""
    lines = [str(finding) for finding in findings]
    for file in files:
        own = [finding for finding in findings if finding.file == file]
        total = f"{_many(count(own, 'error'), 'error')}, {_many(count(own, 'warning'), 'warning')}"
        lines.append(f"{file}: {total}")
        lines += [f"  {fact}" for fact in facts.get(file, ())]
    return "\n".join(lines)


def as_json(findings: Sequence[Finding], files: Sequence[str], facts: Mapping[str, Sequence[str]]) -> str:
    """Returns the findings as JSON: findings, facts by file, and the number of errors and warnings."""
    return json.dumps(
        {
            "errors": count(findings, "error"),
            "warnings": count(findings, "warning"),
            "findings": [asdict(finding) for finding in findings],
            "files": {file: list(facts.get(file, ())) for file in files},
        },
        indent=2,
    )


def as_sarif(findings: Sequence[Finding], rules: Mapping[str, tuple[str, str]], version: str) -> str:
    """Returns the findings as SARIF 2.1.0, which code hosts show beside the lines.

    Args:
        findings: the findings.
        rules: (severity, one line) by id.
        version: version of the trainer.
    """
    used = sorted({finding.rule for finding in findings})
    results: list[dict[str, Any]] = [
        {
            "ruleId": finding.rule,
            "ruleIndex": used.index(finding.rule),
            "level": finding.severity,
            "message": {"text": f"{finding.field}: {finding.why}; {finding.instead}".removeprefix(": ")},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": finding.file.replace("\\", "/")},
                        "region": {"startLine": finding.line, "startColumn": finding.column},
                    },
                    "logicalLocations": [{"fullyQualifiedName": finding.field}],
                }
            ],
        }
        for finding in findings
    ]
    driver = {
        "name": "trainer check",
        "version": version,
        "rules": [{"id": rule, "shortDescription": {"text": rules[rule][1]}} for rule in used],
    }
    return json.dumps(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{"tool": {"driver": driver}, "results": results}],
        },
        indent=2,
    )
