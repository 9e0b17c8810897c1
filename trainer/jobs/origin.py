"""Where a job came from, as labels on it: commit, config, submission. Adopters: add labels of your own."""

from __future__ import annotations

import hashlib
import json
import secrets
import subprocess

from trainer.config import Config

SUBMISSION = "submission"


def labels(config: Config | None) -> dict[str, str]:
    """Returns the labels that tell where a job came from.

    Args:
        config: the run's resolved config, or None when it isn't here: then there is no `config_hash`.
    """
    found = {SUBMISSION: secrets.token_hex(8)}
    if commit := git_commit():
        found["git_commit"] = commit
    if config is not None:
        found["config_hash"] = config_hash(config)
    return found


def config_hash(config: Config) -> str:
    """Returns 16 hex digits that are the same for two runs with the same resolved config."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def git_commit() -> str | None:
    """Returns the commit of the working folder, with `-dirty` where tracked files differ from it.

    None outside of a repository, or where git isn't installed.
    """
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changed else commit


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()
