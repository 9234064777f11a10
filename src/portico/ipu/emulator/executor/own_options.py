"""The options that an executor keeps of those it is given."""

from portico.ipu.emulator.enums import OutputMode
from portico.ipu.emulator.errors import Error
from portico.ipu.emulator.options.options import Options


def own_options(options: Options | None, *, training: bool) -> Options:
    """Freeze the user's options, and return a frozen copy that names an output mode.

    Args:
        options: The user's; the defaults if there are none.
        training: Whether the program trains.

    Raises:
        Error: If a program for inference is to accumulate gradients.
    """
    given = Options() if options is None else options
    accumulation = given.Training.gradient_accumulation
    if not training and accumulation != 1:
        raise Error(
            "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its default value (1) "
            f"when running a poptorch.inferenceModel(); it is {accumulation}."
        )
    given.freeze()
    own = given.clone()
    if own.output_mode is OutputMode.Default:
        own.outputMode(OutputMode.Final if training else OutputMode.All)
    own.freeze()
    return own
