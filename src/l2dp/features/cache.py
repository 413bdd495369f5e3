"""Encoded features on disk, keyed by content: the same inputs are never encoded twice.

The cache holds features of private records, so it is as private as the data: files only their owner reads, in the
user's cache directory or where `$L2DP_FEATURES` says; `L2DP_FEATURES=off` keeps nothing.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from torch import Tensor

from l2dp.durable import read_tensors, write_tensors
from l2dp.errors import BadInput, L2dpError
from l2dp.features.maps import FeatureMap
from l2dp.streams.fetch import cache_folder

CHUNK = 1000
"""Inputs that are encoded, and kept, together."""


class Encoder:
    """A feature map with a memory. Its results are the same with and without the cache, to the last bit."""

    def __init__(self, feature_map: FeatureMap) -> None:
        self.map = feature_map
        self.width = feature_map.width

    def __call__(self, x: Tensor) -> Tensor:
        """Features of inputs of any number."""
        if not self.map.costly:
            return self.map.finish(self.map(x))
        parts = [self._kept(some) for some in x.split(CHUNK)]
        return self.map.finish(parts[0] if len(parts) == 1 else torch.cat(parts))

    def _kept(self, x: Tensor) -> Tensor:
        folder = _folder()
        if folder is None:
            return self._encode(x).float()
        plain = x.detach().cpu().contiguous()
        digest = hashlib.blake2b(f"{self.map.name} {tuple(plain.shape)} ".encode(), digest_size=24)
        digest.update(plain.view(torch.uint8).numpy().data)
        path = folder / self.map.name / digest.hexdigest()[:2] / f"{digest.hexdigest()}.safetensors"
        if path.exists():
            try:
                found, _ = read_tensors(path)
                return found["features"].to(x.device).float()
            except (BadInput, KeyError):
                path.unlink(missing_ok=True)  # a damaged entry is made again
        features = self._encode(x)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_tensors(path, {"features": features}, self.map.name)
        except (OSError, L2dpError):
            pass  # a full or read-only disk makes it slower, not wrong
        return features.float()

    def _encode(self, x: Tensor) -> Tensor:
        """Half precision, kept or not: what a second run reads must be what the first one used."""
        return self.map(x).half()


def _folder() -> Path | None:
    asked = os.environ.get("L2DP_FEATURES")
    if asked == "off":
        return None
    return Path(asked) if asked else cache_folder() / "features"
