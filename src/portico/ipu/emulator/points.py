"""Operations on clouds of points: the nearest, and a sample of them that is spread out."""

from itertools import pairwise
from math import ceil

import torch
from torch import Tensor


def nearest(x: Tensor, y: Tensor, batch_x: Tensor | None = None, batch_y: Tensor | None = None) -> Tensor:
    """Return the row of ``y`` that is nearest to each row of ``x``, of the same example.

    Args:
        x: Points, ``float [n, features]``; without features, ``float [n]``.
        y: Candidates, ``float [m, features]`` or ``float [m]``.
        batch_x: Example of each point, ``int [n]``; all of one when ``None``.
        batch_y: Example of each candidate, ``int [m]``.

    Returns:
        Indices into ``y``, ``int64 [n]``; the first of those that are equally near.
    """
    points, candidates = (rows.reshape(len(rows), -1) for rows in (x, y))
    distances = (points[:, None] - candidates[None]).square().sum(-1)
    examples_x = torch.zeros(len(x), dtype=torch.long) if batch_x is None else batch_x
    examples_y = torch.zeros(len(y), dtype=torch.long) if batch_y is None else batch_y
    others = examples_x[:, None] != examples_y[None]
    return distances.masked_fill(others, float("inf")).argmin(1)


def fps(src: Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False) -> Tensor:
    """Return rows of each example of which each is the farthest from all before it.

    Args:
        src: Points, ``float [n, features]``.
        ptr: Where the examples begin, and the last ends: as many as examples, and one more.
        ratio: Share of the points that is taken, rounded up.
        random_start: Begin with a point that is drawn, not with the first.

    Returns:
        Indices into ``src``, ``int64``.
    """
    chosen = []
    for start, end in pairwise(ptr):
        points = src[start:end]
        index = torch.randint(end - start, ()) if random_start else torch.tensor(0)
        distances = torch.full((end - start,), float("inf"), dtype=src.dtype)
        # 0.1 * 30 is a little more than 3.
        for _ in range(ceil(round(ratio * (end - start), 6))):
            chosen.append(index + start)
            away = (points - points.index_select(0, index.reshape(1))).square().sum(-1)
            distances = torch.minimum(distances, away)
            index = distances.argmax()
    return torch.stack(chosen)
