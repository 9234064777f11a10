"""The best weights of a training, kept until its end."""

from pathlib import Path

import torch
from torch import nn

from portico.gradient_descent.files import replace_file


class BestWeights:
    """Keeps weights in ``best.th``.

    Args:
        folder: Folder of the file.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "best.th"

    def save(self, model: nn.Module) -> None:
        """Write the weights of ``model``."""
        with replace_file(self.path) as staging:
            torch.save(model.state_dict(), staging)

    def load(self, model: nn.Module) -> None:
        """Put the weights into ``model``."""
        model.load_state_dict(torch.load(self.path, map_location="cpu", weights_only=True))
