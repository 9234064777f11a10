"""Options that real devices heed and the emulator only keeps."""

from typing import Any, Self

from portico.ipu.emulator.options.group import OptionsGroup, require_type


class StoredOptions(OptionsGroup):
    """Setters of what changes nothing here."""

    def anchorTensor(
        self, short_name: str, long_name: str, output_mode: Any = None, output_return_period: int = 1
    ) -> Self:
        """Store the name of a tensor to keep; the emulator names none."""
        self.anchored_tensors[short_name] = [long_name, output_mode, output_return_period]
        return self

    def enableSyntheticData(self, enabled: bool) -> Self:
        """Store the choice; the emulator computes with the real data."""
        require_type(enabled, bool, "enableSyntheticData")
        self.set(synthetic_data=enabled)
        return self

    def enableStableNorm(self, enabled: bool) -> Self:
        """Store the choice; torch's norms are stable."""
        require_type(enabled, bool, "enableStableNorm")
        self.set(stable_norm=enabled)
        return self

    def enableProfiling(self, profile_dir: str | None = None) -> Self:
        """Store the choice; the emulator has no profile."""
        self.set(profile_dir=profile_dir or ".")
        return self

    def logDir(self, log_dir: str) -> Self:
        """Store where logs go."""
        self.set(log_dir=log_dir)
        return self

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Store whether cycles are counted."""
        require_type(log_cycle_count, bool, "logCycleCount")
        self.set(log_cycle_count=log_cycle_count)
        return self

    def modelName(self, name: str) -> Self:
        """Name the model in profiles."""
        self.set(model_name=name)
        return self

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Store the choice; compiling takes no time here."""
        self.set(show_compilation_progress_bar=show)
        return self

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Store which files are left out of source locations."""
        self.set(source_location_excludes=list(excludes))
        return self
