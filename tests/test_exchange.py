"""The ONNX graph of a release says what the release says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from typer.testing import CliRunner

from homes import LABELS, arrays, home, table
from l2dp.cli import app
from l2dp.errors import BadInput
from l2dp.store.release import Release

FIXED = {"head": "fixed", "width": "16", "replay_steps": "5"}


def scores(graph: Path, x: Any) -> Any:
    session = onnxruntime.InferenceSession(graph.read_bytes(), providers=["CPUExecutionProvider"])
    return session.run(["scores"], {"x": x})[0]


@pytest.mark.parametrize(
    ("changed", "lifted"),
    [
        ({}, []),
        ({"delta": 1e-5}, [False, False]),
        ({"delta": 1e-5, "epsilon": 400.0}, [True, True]),
        ({"delta": 1e-5, "epsilon": 12.0, "options": {"lift": "50"}}, [False, True]),
        ({"delta": 1e-5, "options": {"scatter_share": "0.3", "head_share": "0.5"}}, [False, False]),
        ({"delta": 1e-5, "options": FIXED}, []),
    ],
)
def test_a_graph_answers_as_its_release(tmp_path: Path, changed: dict[str, Any], lifted: list[bool]) -> None:
    place = home(tmp_path, low=-2.0, high=3.0, labels=(*LABELS, "never seen"), **changed)
    place.learn(table(tmp_path, 1), "one", classes=LABELS)
    place.learn(table(tmp_path, 2, rows=1200), "two", size=1200)
    release = place.release(tmp_path / "release", onnx=True)
    made = release.learner().release()
    assert [bool(made[f"task-{task}.facts"][3]) for task in range(2) if f"task-{task}.head" in made] == lifted
    x = arrays(9, rows=301)[0]
    with torch.no_grad():
        expected = release.scores(torch.from_numpy((2 * (x + 2.0) / 5.0 - 1).astype(np.float32))).numpy()
    assert expected.shape == (301, 4)
    np.testing.assert_allclose(scores(release.path / "model.onnx", x), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(scores(release.path / "model.onnx", x[:1]), expected[:1], rtol=1e-4, atol=1e-4)
    assert Release(release.path).labels[3] == "never seen"


def test_pictures_go_in_as_they_are(tmp_path: Path) -> None:
    place = home(tmp_path, features=None, shape=(3, 2, 2))
    x, y = arrays(1)
    x = (127.5 * (x + 1)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x.reshape(-1, 3, 2, 2), label=np.array(LABELS)[y])
    place.learn(tmp_path / "x.npz", "one")
    release = place.release(tmp_path / "release", onnx=True)
    found = scores(release.path / "model.onnx", x.reshape(-1, 3, 2, 2))
    assert [release.labels[best] for best in found.argmax(1)] == release.predict(tmp_path / "x.npz")[0]


def test_the_graph_is_one_of_the_files_that_are_checked(tmp_path: Path) -> None:
    home(tmp_path).learn(table(tmp_path, 1), "one")
    words = ["release", str(tmp_path / "home"), "--out", str(tmp_path / "release"), "--onnx"]
    assert CliRunner().invoke(app, words).exit_code == 0
    path = tmp_path / "release" / "model.onnx"
    for row in arrays(1)[0]:
        assert row.tobytes() not in path.read_bytes()
    assert CliRunner().invoke(app, words).exit_code == 0, "the same release again is the same"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"model\.onnx was changed"):
        Release(tmp_path / "release")


def test_what_has_no_graph_is_refused_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = home(tmp_path, options={"project": "6"})
    place.learn(table(tmp_path, 1), "one")
    with pytest.raises(BadInput, match="over a feature map has no ONNX form"):
        place.release(tmp_path / "release", onnx=True)
    plain = home(tmp_path, "plain")
    plain.learn(table(tmp_path, 1), "one")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BadInput, match=r"l2dp\[onnx\]"):
        plain.release(tmp_path / "release", onnx=True)
    assert not (tmp_path / "release").exists()
    assert plain.release(tmp_path / "release").labels == LABELS
