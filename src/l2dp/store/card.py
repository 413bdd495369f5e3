"""The model card: what a model is and what it promises, in plain words, for people who sign such statements."""

from __future__ import annotations

import html
from typing import Any

STATUS = {
    "proved": "The guarantee is **proved** (docs/proofs.md of l2dp). Whether this model's settings were attacked is "
    "said under Audit.",
    "claimed": "The guarantee is **claimed**: nobody here has proved or broken it.",
    "refuted": "The guarantee is **refuted**: an attack beats it, and the number protects nobody.",
    "none": "There is **no guarantee**: this model protects nobody.",
}


def _promise(privacy: dict[str, Any]) -> str:
    if privacy["epsilon"] is None:
        reason = (
            " The privacy noise came from a seed (`--insecure-noise-seed`)." if "INSECURE" in privacy["noise"] else ""
        )
        return f"**Status: none.**{reason} Do not give this model to anybody who may not see the data."
    whose = "record" if privacy["unit"] == "record" else "user, with all their records in all tasks"
    return (
        f"**ε = {privacy['epsilon']:g}, δ = {privacy['delta']:g}, status: {privacy['status']}**, for every {whose}, "
        f"over the whole lifetime of the model ({_tasks(privacy)} so far), under `{privacy['adjacency']}` adjacency: "
        f"{privacy['meaning']}.\n\n"
        "In words: take everybody who will ever see releases of this model, all versions together. Whether one "
        f"{privacy['unit']} was in the data changes the probability of anything they could conclude by a factor of at "
        "most e^ε, plus δ."
    )


def _plain(name: str) -> str:
    """A name as text, whatever is in it: neither HTML nor a link nor the end of a code span."""
    return html.escape(name, quote=False).replace("`", "&#96;").replace("[", "&#91;")


def _tasks(privacy: dict[str, Any]) -> str:
    return f"{privacy['tasks']} task{'' if privacy['tasks'] == 1 else 's'}"


def card(about: dict[str, Any], privacy: dict[str, Any], public: list[dict[str, Any]]) -> str:
    """Markdown. Accuracy is told only where it was measured on data declared public."""
    schema = about["schema"]
    labels = schema["labels"]
    shown = ", ".join(f"`{_plain(label)}`" for label in labels[:20]) + (" …" if len(labels) > 20 else "")
    shape = " x ".join(map(str, schema["shape"]))
    low, high = schema["low"], schema["high"]
    span = f"{low[0]:g} to {high[0]:g}" if len(low) == 1 else "as declared for each column in `release.json`"
    head = privacy["ledger_head"]
    command = _plain(" ".join(privacy["audit"]["command"].split()))
    lines = [
        f"# Model after task {_plain(about['task'])}",
        "",
        f"Learned by l2dp {about['version']} (`{about['learner']}`) from {_tasks(privacy)}, one after the other.",
        "",
        f"- Input: {shape} numbers, {span}",
        f"- Output: one of {len(labels)} labels: {shown}",
        "- Load it: `python loader.py data.npz`, `l2dp predict`, or `l2dp.Release(folder)`",
        "",
        "## Privacy",
        "",
        _promise(privacy),
        "",
        STATUS[privacy["status"]],
        "",
    ]
    if privacy["records_of_other_tasks_were_left_out"]:
        lines += ["Records that an earlier task had learned, if there were any, were left out of later ones.", ""]
    lines += ["Not covered:", ""]
    lines += [f"- {what}" for what in privacy["not_covered"]]
    lines += [
        "",
        f"Audit: {privacy['audit']['status']} (`{command}` attacks the learner).",
        "",
        f"Ledger: entry {head['sequence']}, SHA-256 `{head['hash']}`. A home whose ledger lacks this entry is "
        "older than this release and must not learn.",
        "",
        "## Accuracy",
        "",
    ]
    if public:
        lines += [
            f"- {line['accuracy']:.1%} on {line['records']} records of `{_plain(line['data'])}`, declared public"
            for line in public
        ]
    else:
        lines += ["Not stated: it was not measured on data declared public."]
    lines += [
        "",
        "## Files",
        "",
        "Check them with `sha256sum -c SHA256SUMS`.",
        "",
    ]
    return "\n".join(lines)
