"""What checkpoints of runs on IPUs hold beside the usual."""

import json
from pathlib import Path
from typing import Any

from portico.ipu.facade.programs import ProgramMethods
from portico.ipu.pipelining.piece_state import recut

RNG_FILE = "ipu_rng_state.json"


class IPUSavingMethods(ProgramMethods):
    """How the facade saves and restores configuration and device random state."""

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)  # type: ignore[misc]
        if not self.args.should_save:
            return
        folder = Path(self.args.output_dir if output_dir is None else output_dir)
        self.ipu_config.save_pretrained(folder)
        if self.training_model is not None:
            (folder / RNG_FILE).write_text(json.dumps(self.training_model.rng_state), encoding="utf-8")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
        file = Path(resume_from_checkpoint) / RNG_FILE
        if file.is_file():
            self._pending_device_rng = json.loads(file.read_text(encoding="utf-8"))
        self._upload_weights()

    def _optimizer_state_to_load(self, state: dict[str, Any]) -> dict[str, Any]:
        # The weights of the checkpoint may have been in other pieces.
        assert self.optimizer is not None
        return recut(state, self.optimizer, self.model)

    def _load_best_model(self) -> None:
        super()._load_best_model()  # type: ignore[misc]
        self._upload_weights()

    def _upload_weights(self) -> None:
        """Let programs that are on IPUs have the weights that were just loaded; others get them when attached."""
        for program in (self.training_model, self.inference_model):
            if program is not None and program.isCompiled() and program.isAttachedToDevice():
                program.copyWeightsToDevice()
