"""Options of number formats."""

from collections.abc import Mapping

import torch

from portico.ipu.emulator.enums import HalfFloatCastingBehavior
from portico.ipu.emulator.options.group import OptionsGroup, require_type


class FloatingPointExceptions:
    """Which floating-point events stop a program.

    Args:
        inv: Invalid operations.
        div0: Divisions by zero.
        oflo: Overflows.
        nanoo: Not-a-number on overflow.
        esr: Stochastic rounding.
    """

    def __init__(self, inv: bool, div0: bool, oflo: bool, nanoo: bool, esr: bool) -> None:
        self.settings: Mapping[str, bool] = {"inv": inv, "div0": div0, "oflo": oflo, "nanoo": nanoo, "esr": esr}


class PrecisionOptions(OptionsGroup):
    """Number formats; reached as ``options.Precision``. The emulator stores them and computes as torch does."""

    def __init__(self) -> None:
        super().__init__(
            running_statistics_always_float=True,
            half_float_casting=HalfFloatCastingBehavior.FloatDowncastToHalf,
            partials_type=torch.float32,
            stochastic_rounding=None,
            floating_point_exceptions=False,
        )

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> "PrecisionOptions":
        """Set what a mix of half and single precision becomes.

        Raises:
            ValueError: For anything but ``FloatDowncastToHalf``, as torch itself decides.
        """
        require_type(half_float_casting, HalfFloatCastingBehavior, "halfFloatCasting")
        if half_float_casting is not HalfFloatCastingBehavior.FloatDowncastToHalf:
            raise ValueError(
                f"halfFloatCasting does not support {half_float_casting.name}; convert tensors with `.float()` where "
                "half and single precision meet."
            )
        self.set(half_float_casting=half_float_casting)
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> "PrecisionOptions":
        """Keep running means and variances in single precision."""
        require_type(value, bool, "runningStatisticsAlwaysFloat")
        self.set(running_statistics_always_float=value)
        return self

    def enableFloatingPointExceptions(self, exceptions: bool) -> "PrecisionOptions":
        """Store whether floating-point events stop a program."""
        require_type(exceptions, bool, "enableFloatingPointExceptions")
        self.set(floating_point_exceptions=exceptions)
        return self

    def enableStochasticRounding(self, enabled: bool) -> "PrecisionOptions":
        """Store the choice; the emulator rounds to nearest."""
        require_type(enabled, bool, "enableStochasticRounding")
        self.set(stochastic_rounding=enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> "PrecisionOptions":
        """Store the format of partial sums of matrix products.

        Raises:
            ValueError: If it is neither ``torch.float32`` nor ``torch.float16``.
        """
        require_type(dtype, torch.dtype, "setPartialsType")
        if dtype not in (torch.float32, torch.float16):
            raise ValueError(f"setPartialsType takes torch.float32 or torch.float16; {dtype} was given.")
        self.set(partials_type=dtype)
        return self
