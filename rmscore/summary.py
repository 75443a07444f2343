"""What a scoring run has to tell at its end, in a few plain lines: nothing that changed a score stays silent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmscore.preference import Preference
    from rmscore.score import Counts
    from rmscore.score_file import Finished


def summary(
    counts: Counts, finished: Finished, preference: Preference | None, output: Path | None, *, resume: bool
) -> list[str]:
    """Return the lines for standard error."""
    lines = [f"scored {finished.scored} rows, {counts.tokens} tokens, {_share(counts)} padding"]
    if resume:
        lines.append(f"found {finished.resumed} rows already scored")
    if counts.truncated_rows:
        lines.append(f"{counts.truncated_rows} rows were over the limit and lost {counts.truncated_tokens} tokens")
    if counts.control_token_rows:
        lines.append(
            f"{counts.control_token_rows} rows spell out control tokens in their text, which act as such; "
            "give rows as prompt and response to have them read as plain text"
        )
    if preference is not None and preference.pairs:
        lines += _preference(preference)
    if finished.stopped and output is not None:
        lines.append(f"stopped; {output}.part keeps what is scored: go on with the same command and --resume")
    elif output is not None:
        lines.append(f"{output}: written")
    return lines


def _share(counts: Counts) -> str:
    total = counts.tokens + counts.padded_tokens
    return f"{counts.padded_tokens / total:.0%}" if total else "no"


def _preference(found: Preference) -> list[str]:
    accuracy = found.accuracy()
    head = f"preference accuracy {accuracy:.1%}" if accuracy is not None else "preference accuracy: nothing to compare"
    lines = [f"{head}: {found.wins} wins, {found.losses} losses, {found.ties} ties (half) of {found.pairs} pairs"]
    odd = {
        "identical to the model, left out": found.identical,
        "with different prompts": found.unequal_prompts,
    }
    lines += [f"{number} pairs {what}" for what, number in odd.items() if number]
    lines += [f"{found.empty_responses} responses are empty, scored as such"] if found.empty_responses else []
    lines += [f"{found.unpaired} halves without their partner"] if found.unpaired else []
    return lines
