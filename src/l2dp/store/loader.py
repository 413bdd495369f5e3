"""Loads this release and predicts with it. Needs torch and safetensors only, for inputs that are used as they are.

    python loader.py data.npz          # array x, in the ranges that release.json declares; prints one label a row

From Python: `model = load()`, then `model.labels[i]` for `i` in `model(x).argmax(1)`.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

FAR = 1000.0
TINY = 1e-12


def unit(rows: Tensor) -> Tensor:
    scaled: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-9)
    return scaled


def shrunk(noisy: Tensor, noise: Tensor) -> Tensor:
    energy = noisy.square().sum(-1, keepdim=True).clamp_min(TINY)
    return noisy * (1 - noise / energy).clamp(min=0.0)


class Model(nn.Module):
    """Inputs in their declared ranges, one a row → a score for every label."""

    def __init__(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        super().__init__()
        schema, options = about["schema"], about["options"]
        self.labels = list(schema["labels"])
        self.low, self.high = torch.tensor(schema["low"]), torch.tensor(schema["high"])
        self.width = about["features"]
        if options.get("features", "pixels") != "pixels" or options.get("project", "none").lower() != "none":
            raise SystemExit("this release uses a feature map of l2dp: load it with l2dp.Release(folder)")
        self.network = self._student(tensors) if "0.weight" in tensors else None
        if self.network is None:
            self._experts(tensors)

    def _student(self, tensors: dict[str, Tensor]) -> nn.Module:
        layers: list[nn.Module] = []
        for place in sorted({int(name.split(".")[0]) for name in tensors}):
            rows, columns = tensors[f"{place}.weight"].shape
            layers += [nn.Linear(columns, rows), nn.ReLU()]
        network = nn.Sequential(*layers[:-1])
        network.load_state_dict(tensors)
        return network

    def _experts(self, tensors: dict[str, Tensor]) -> None:
        """Every task's class means, centre and head, from its noisy sums."""
        count = 1 + max(int(name.split(".")[0].removeprefix("task-")) for name in tensors if name != "precision")
        tasks = [{n.split(".")[1]: t for n, t in tensors.items() if n.startswith(f"task-{i}.")} for i in range(count)]
        widest = max(len(task["classes"]) for task in tasks)
        means, owners, centres, heads, places, lifted = [], [], [], [], [], []
        for index, task in enumerate(tasks):
            deviation, count_deviation, size, lift = task["facts"].tolist()
            sums, own = task["sums"], task["classes"]
            even = size / len(own)
            trust = (even / 2) ** 2 / ((even / 2) ** 2 + count_deviation**2)
            sizes = (even + trust * (task["counts"] - even)).clamp_min(max(1.0, 0.05 * even))
            total = sizes.sum()
            centre = shrunk(sums.sum(0) / total, len(own) * sums.shape[1] * (deviation / total) ** 2)
            each = sizes.unsqueeze(1)
            means.append(centre + shrunk(sums / each - centre, sums.shape[1] * (deviation / each).square()))
            owners.append(torch.full((len(own),), index))
            centres.append(centre)
            lifted.append(bool(lift))
            places.append(F.pad(own, (0, widest - len(own)), value=len(self.labels)))
            if "head" in task:
                heads.append(F.pad(task["head"], (0, widest - len(own))))
        every = torch.cat(means)
        directions = every @ tensors["precision"] if "precision" in tensors else every
        self.directions, self.offsets = directions.T.contiguous(), (every * directions).sum(1) / 2
        self.owners, self.own = torch.cat(owners), torch.cat([task["classes"] for task in tasks])
        self.centres, self.places, self.lifted = torch.stack(centres), torch.stack(places), torch.tensor(lifted)
        self.heads = heads
        if any(lifted):
            generator = torch.Generator().manual_seed(2021)
            wide = max(len(head) for head in heads)
            self.lift = torch.randn(self.width, wide, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1).to(torch.float64)
        rows = ((rows - self.low) / (self.high - self.low)).to(torch.float32)
        features = unit(rows)
        if self.network is not None:
            scores: Tensor = self.network(features * (math.sqrt(self.width) / 3))
            return scores
        near = features @ self.directions - self.offsets
        found = self.owners[near.argmax(1)]
        best = torch.full((len(x), len(self.labels)), float("-inf"))
        best.scatter_reduce_(1, self.own.expand(len(x), -1), near, "amax")
        best = torch.where(best.isfinite(), best, near.amin(1, keepdim=True) - 1)
        if not self.heads:
            return best
        scores = F.pad(torch.log_softmax(best, 1) - FAR, (0, 1))
        for task in found.unique().tolist():
            here = (found == task).nonzero().flatten()
            inside = unit(features[here] - self.centres[task])
            if self.lifted[task]:
                inside = unit((inside @ self.lift).clamp_min(0) - 1 / math.sqrt(2 * math.pi))
            inside = inside @ self.heads[task]
            places = self.places[task]
            inside[:, places == len(self.labels)] = float("-inf")
            scores[here.unsqueeze(1), places] = torch.log_softmax(inside, 1)
        return scores[:, : len(self.labels)]


def load(folder: Path = Path(__file__).parent) -> Model:
    """The model of a release folder."""
    about = json.loads((folder / "release.json").read_text("utf-8"))
    return Model(load_file(folder / "model.safetensors"), about).eval()


if __name__ == "__main__":
    import numpy

    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    model = load()
    with torch.no_grad():
        answers = model(torch.from_numpy(numpy.load(sys.argv[1], allow_pickle=False)["x"])).argmax(1)
    print("\n".join(model.labels[answer] for answer in answers.tolist()))
