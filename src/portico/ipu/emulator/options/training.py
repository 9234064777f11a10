"""Options that only a training model has."""

from portico.ipu.emulator.enums import MeanReductionStrategy, ReductionType
from portico.ipu.emulator.options.group import OptionsGroup, require_count, require_type


class TrainingOptions(OptionsGroup):
    """Accumulation, reduction and loss scaling; reached as ``options.Training``."""

    def __init__(self) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
            auto_loss_scaling=False,
            convolution_dithering=False,
        )

    def gradientAccumulation(self, gradient_accumulation: int) -> "TrainingOptions":
        """Set how many micro-batches of a replica make one weight update."""
        require_count(gradient_accumulation, "gradientAccumulation")
        self.set(gradient_accumulation=gradient_accumulation)
        return self

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> "TrainingOptions":
        """Set how gradients of micro-batches and replicas become one: mean or sum.

        Raises:
            ValueError: For ``ReductionType.NoReduction``.
        """
        require_type(reduction_type, ReductionType, "accumulationAndReplicationReductionType")
        if reduction_type is ReductionType.NoReduction:
            raise ValueError(
                "accumulationAndReplicationReductionType cannot be ReductionType.NoReduction: gradients of several "
                "micro-batches have to become one; use ReductionType.Mean or ReductionType.Sum."
            )
        self.set(accumulation_and_replication_reduction_type=reduction_type)
        return self

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> "TrainingOptions":
        """Set whether a mean gradient is kept running or divided out at the end."""
        require_type(mean_reduction_strategy, MeanReductionStrategy, "mean_reduction_strategy")
        self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)
        return self

    def setAutomaticLossScaling(self, enabled: bool) -> "TrainingOptions":
        """Adapt the loss scaling to the size of the gradients after every update."""
        require_type(enabled, bool, "setAutomaticLossScaling")
        self.set(auto_loss_scaling=enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> "TrainingOptions":
        """Store the choice; it has no numeric effect."""
        require_type(enabled, bool, "setConvolutionDithering")
        self.set(convolution_dithering=enabled)
        return self
