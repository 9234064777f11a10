"""Classification of pictures, as in ``run_image_classification.py``."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import AutoModelForImageClassification, EvalPrediction, PreTrainedModel, default_data_collator

from portico.arguments import TrainingArguments
from portico.compat.annotations import DataCollator
from portico.errors import InputError, MissingPackageError
from portico.experiments import toy_records
from portico.experiments.settings import setting
from portico.tasks.task import Predictions, Record, Task, accuracy, best_class, label_array, value_of
from portico.trust.disk import refuse_irregular
from portico.trust.names import data_only, refuse_outside

if TYPE_CHECKING:
    from PIL.Image import Image

_RATIOS = (3 / 4, 4 / 3)  # width to height of the part of a picture that training sees
_TRIALS = 10  # draws of such a part
_FLIPPED = 0.5  # share of the pictures that are mirrored
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


class ImageProcessor(Protocol):
    """What the task reads of an image processor of transformers."""

    image_mean: Sequence[float]
    image_std: Sequence[float]
    size: Mapping[str, int]


def pictures_below(folder: Path) -> Iterator[Record]:
    """Yield the pictures of a folder with a subfolder for each class; pictures in the folder itself have no label.

    Pictures are opened when they are used, so that they need not fit into memory.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: not a folder; set it to one with a subfolder of pictures for each class.")
    from PIL import Image, UnidentifiedImageError

    for file in sorted(folder.rglob("*")):
        if file.suffix.lower() in _SUFFIXES:
            try:
                refuse_outside(file)
                refuse_irregular(file)
                Image.open(file).close()  # reads its header only
            except (OSError, UnidentifiedImageError) as error:
                raise InputError(f"{file}: not a picture that Pillow reads; remove it, or replace it.") from error
            label = {} if file.parent == folder else {"label": file.parent.name}
            yield {"image": str(file), **label}


@data_only
@dataclass(kw_only=True)
class ImageClassification(Task[ImageProcessor]):
    """Predicts a class for a picture. Training sees a random part of each picture, mirrored every other time."""

    model_class: ClassVar[Any] = AutoModelForImageClassification
    score_names: ClassVar[Sequence[str]] = ("accuracy",)
    predictions_file: ClassVar[str] = "predict_results.txt"
    made = staticmethod(toy_records.picture)
    read = staticmethod(pictures_below)

    image_column: str = "image"
    """Key of the picture: an image of Pillow or the path of a file."""
    label_column: str = "label"
    """Key of the class."""
    least_area: float = setting(0.08, least=0)
    """Smallest part of a picture that training sees; 1: all of it."""
    flip: bool = True
    """Mirror every other picture in training."""

    def __post_init__(self) -> None:
        try:
            import PIL  # noqa: F401
        except ImportError as error:
            raise MissingPackageError(
                "Pillow, which reads pictures, is not installed; install it with `pip install 'portico[images]'`."
            ) from error

    def texts(self, record: Record) -> Iterable[str]:
        return []

    def features(self, records: Sequence[Record], processor: ImageProcessor) -> "Pictures":
        return Pictures(self, records, processor, varied=False)

    def train_features(self, records: Sequence[Record], processor: ImageProcessor) -> "Pictures":
        return Pictures(self, records, processor, varied=True)

    def collator(self, args: TrainingArguments, model: PreTrainedModel, processor: ImageProcessor) -> DataCollator:
        args.remove_unused_columns = False
        return default_data_collator

    def scores(self, prediction: EvalPrediction) -> dict[str, float]:
        return {"accuracy": accuracy(best_class(prediction.predictions), label_array(prediction))}

    def answers(self, predictions: Predictions, records: Sequence[Record]) -> list[str]:
        return [self.labels[label] for label in best_class(predictions)]


@dataclass(frozen=True)
class Pictures(Dataset[Mapping[str, Any]]):
    """Pictures as ``pixel_values``, ``float32 [3, H, W]``; with ``varied`` each access crops and mirrors at random.

    Random numbers come from torch, in the order of torchvision's ``RandomResizedCrop`` and ``RandomHorizontalFlip``.
    """

    task: ImageClassification
    records: Sequence[Record]
    processor: "ImageProcessor"
    varied: bool

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        record = self.records[index]
        image = _open(value_of(record, self.task.image_column, "image_column"))
        pixels = torch.from_numpy(np.array(self._augment(image) if self.varied else self._whole(image)))
        pixels = pixels.permute(2, 0, 1).contiguous().float().div(255)
        mean, std = (
            torch.tensor(value)[:, None, None] for value in (self.processor.image_mean, self.processor.image_std)
        )
        label = record.get(self.task.label_column)
        labels = {} if label is None else {"labels": self.task.label_id(label)}
        return {"pixel_values": pixels.sub(mean).div(std), **labels}

    def _size(self) -> tuple[int, int]:
        """Return the width and the height of the model's input."""
        size = self.processor.size
        edge = size.get("shortest_edge")
        return (size["width"], size["height"]) if edge is None else (edge, edge)

    def _augment(self, image: "Image") -> "Image":
        from PIL.Image import Resampling, Transpose

        left, top, width, height = random_part(*image.size, self.task.least_area)
        image = image.crop((left, top, left + width, top + height)).resize(self._size(), Resampling.BILINEAR)
        if self.task.flip and torch.rand(1) < _FLIPPED:
            image = image.transpose(Transpose.FLIP_LEFT_RIGHT)
        return image

    def _whole(self, image: "Image") -> "Image":
        from PIL.Image import Resampling

        width, height = self._size()
        resized = [width, height]
        if "shortest_edge" in self.processor.size:  # the other edge keeps the proportion
            shortest = min(image.size)
            resized = [width if edge == shortest else int(width * edge / shortest) for edge in image.size]
        image = image.resize((resized[0], resized[1]), Resampling.BILINEAR)
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        return image.crop((left, top, left + width, top + height))


def _open(picture: "str | Path | Image") -> "Image":
    if not isinstance(picture, str | Path):
        return picture.convert("RGB")
    from PIL import Image

    try:
        refuse_outside(picture)
        refuse_irregular(Path(picture))
        with Image.open(picture) as image:
            return image.convert("RGB")
    except OSError as error:
        raise InputError(f"{picture}: cannot be read as a picture ({error}); replace it.") from error


def random_part(width: int, height: int, least_area: float) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a random part of a picture, or of its middle after ten failed draws."""
    low, high = (math.log(ratio) for ratio in _RATIOS)
    for _ in range(_TRIALS):
        area = width * height * torch.empty(1).uniform_(least_area, 1.0).item()
        ratio = torch.exp(torch.empty(1).uniform_(low, high)).item()
        part_width, part_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < part_width <= width and 0 < part_height <= height:
            top = int(torch.randint(0, height - part_height + 1, size=(1,)))
            left = int(torch.randint(0, width - part_width + 1, size=(1,)))
            return left, top, part_width, part_height
    part_width = min(width, round(height * _RATIOS[1]))
    part_height = min(height, round(width / _RATIOS[0]))
    return (width - part_width) // 2, (height - part_height) // 2, part_width, part_height
