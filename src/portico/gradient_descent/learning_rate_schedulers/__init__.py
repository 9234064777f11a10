"""Learning-rate schedules under AllenNLP's names; importing this package registers them all."""

from portico.gradient_descent.learning_rate_schedulers.combined import CombinedLearningRateScheduler
from portico.gradient_descent.learning_rate_schedulers.cosine import CosineWithRestarts
from portico.gradient_descent.learning_rate_schedulers.epoch_schedulers import (
    ExponentialLearningRateScheduler,
    MultiStepLearningRateScheduler,
    ReduceOnPlateauLearningRateScheduler,
    StepLearningRateScheduler,
)
from portico.gradient_descent.learning_rate_schedulers.learning_rate_scheduler import (
    LearningRateScheduler,
    as_learning_rate_scheduler,
)
from portico.gradient_descent.learning_rate_schedulers.noam import NoamLR
from portico.gradient_descent.learning_rate_schedulers.polynomial_decay import LinearWithWarmup, PolynomialDecay
from portico.gradient_descent.learning_rate_schedulers.slanted_triangular import SlantedTriangular
from portico.gradient_descent.learning_rate_schedulers.transformers_schedulers import (
    ConstantLearningRateScheduler,
    ConstantWithWarmupLearningRateScheduler,
    CosineHardRestartsWithWarmupLearningRateScheduler,
    CosineWithWarmupLearningRateScheduler,
)

__all__ = [
    "CombinedLearningRateScheduler",
    "ConstantLearningRateScheduler",
    "ConstantWithWarmupLearningRateScheduler",
    "CosineHardRestartsWithWarmupLearningRateScheduler",
    "CosineWithRestarts",
    "CosineWithWarmupLearningRateScheduler",
    "ExponentialLearningRateScheduler",
    "LearningRateScheduler",
    "LinearWithWarmup",
    "MultiStepLearningRateScheduler",
    "NoamLR",
    "PolynomialDecay",
    "ReduceOnPlateauLearningRateScheduler",
    "SlantedTriangular",
    "StepLearningRateScheduler",
    "as_learning_rate_scheduler",
]
