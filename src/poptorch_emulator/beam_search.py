"""``ctc_beam_search_decoder``: the most probable label sequences, given class probabilities at each time step.

Shapes: T time steps, N rows, C classes, K paths.
"""

from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from poptorch_emulator.errors import Error

_NEVER = -np.inf
Prefix = tuple[int, ...]


def ctc_beam_search_decoder(
    probs: Tensor, lengths: Tensor, blank: int = 0, beam_width: int = 100, top_paths: int = 1
) -> list[Tensor]:
    """Return the most probable paths of each row.

    Args:
        probs: Log-probabilities, ``float [T, N, C]``.
        lengths: Time steps of each row, ``int [N]``.
        blank: The class that means no label.
        beam_width: Path prefixes kept at each step.
        top_paths: Paths to return, K.

    Returns:
        Log-probabilities of the paths, ``float [N, K]``; their lengths, ``int32 [N, K]``; and the paths,
        ``int32 [N, K, T]``, padded with ``blank``.

    Raises:
        Error: If shapes or numbers do not match.
    """
    if probs.dim() != 3 or lengths.shape != probs.shape[1:2]:
        raise Error(
            f"ctc_beam_search_decoder takes probabilities [time, rows, classes] and a length for each row; it got "
            f"{list(probs.shape)} and {list(lengths.shape)}."
        )
    if not 0 <= blank < probs.shape[2] or not 1 <= top_paths <= beam_width:
        raise Error(
            f"ctc_beam_search_decoder got blank={blank}, beam_width={beam_width} and top_paths={top_paths}; the blank "
            f"is one of {probs.shape[2]} classes, and at least one path and at most `beam_width` are returned."
        )
    num_steps, num_rows, _ = probs.shape
    scores = torch.full((num_rows, top_paths), _NEVER)
    path_lengths = torch.zeros(num_rows, top_paths, dtype=torch.int32)
    paths = torch.full((num_rows, top_paths, num_steps), blank, dtype=torch.int32)
    values_TNC = probs.detach().double().numpy()
    for row, length in enumerate(lengths.tolist()):
        for place, (prefix, score) in enumerate(_best_paths(values_TNC[:length, row], blank, beam_width, top_paths)):
            scores[row, place] = score
            path_lengths[row, place] = len(prefix)
            paths[row, place, : len(prefix)] = torch.tensor(prefix, dtype=torch.int32)
    return [scores, path_lengths, paths]


def _best_paths(values_TC: np.ndarray, blank: int, beam_width: int, top_paths: int) -> list[tuple[Prefix, float]]:
    # Of each prefix: log-probabilities of its alignments that end in a blank, and of those that end in its last label.
    beams: dict[Prefix, tuple[float, float]] = {(): (0.0, _NEVER)}
    for values_C in values_TC:
        beams = dict(_most_probable(_extend_beams(beams, values_C, blank), beam_width))
    return [(prefix, float(np.logaddexp(*ends))) for prefix, ends in _most_probable(beams, top_paths)]


def _extend_beams(
    beams: dict[Prefix, tuple[float, float]], values_C: np.ndarray, blank: int
) -> dict[Prefix, tuple[float, float]]:
    found: dict[Prefix, tuple[float, float]] = defaultdict(lambda: (_NEVER, _NEVER))

    def add(prefix: Prefix, ends_blank: float, ends_label: float) -> None:
        before = found[prefix]
        found[prefix] = (float(np.logaddexp(before[0], ends_blank)), float(np.logaddexp(before[1], ends_label)))

    for prefix, (ends_blank, ends_label) in beams.items():
        total = float(np.logaddexp(ends_blank, ends_label))
        add(prefix, total + values_C[blank], _NEVER)
        for label, value in enumerate(values_C):
            if label == blank:
                continue
            # Repetitions of a label without a blank between them are one label.
            is_repeated = prefix[-1:] == (label,)
            if is_repeated:
                add(prefix, _NEVER, ends_label + value)
            add((*prefix, label), _NEVER, (ends_blank if is_repeated else total) + value)
    return found


def _most_probable(beams: dict[Prefix, tuple[float, float]], number: int) -> list[tuple[Prefix, tuple[float, float]]]:
    return sorted(beams.items(), key=lambda beam: (-float(np.logaddexp(*beam[1])), beam[0]))[:number]
