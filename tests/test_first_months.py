"""The walk-through of docs/first-three-months.md: every command on the page runs and does what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import polars as pl
import pytest
import torch

import l2dp
from l2dp import cli

PAGE = Path(__file__).parent.parent / "docs" / "first-three-months.md"


def test_the_first_three_months(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    names: dict[str, object] = {}
    commands = 0
    for kind, block in re.findall(r"^```(python|sh)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        if kind == "python":
            exec(block, names)
            continue
        for line in block.splitlines():
            text, _, expected = line.partition("  # exit ")
            with pytest.raises(SystemExit) as ended:
                cli.main(shlex.split(text)[1:])
            err = capsys.readouterr().err
            assert ended.value.code == int(expected or 0), (line, err)
            if expected == "3":
                assert "40 of 1040 records were learned in another task" in err
            commands += 1
    torch.set_num_threads(threads)
    assert commands > 15
    found = l2dp.open("clinic").status()
    assert [task["task"] for task in found["tasks"]] == ["2026-11", "2026-12", "2027-01"]
    assert found["budget"]["levels"][0] | {"epsilon": 2.0, "blocks": 3} == found["budget"]["levels"][0]
    assert "declared public" in Path("releases/2026-12/MODEL_CARD.md").read_text()
    assert pl.read_parquet("predictions.parquet").height == 500
    assert l2dp.open("clinic").evaluate("public-test.parquet")["accuracy"] > 0.9
