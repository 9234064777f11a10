"""Options that real devices heed and the emulator only keeps."""

from typing import Any, Self

from portico.ipu.emulator.options.group import OptionsGroup, require_count, require_type


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
        require_type(log_dir, str, "logDir")
        self.set(log_dir=log_dir)
        return self

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Store whether cycles are counted."""
        require_type(log_cycle_count, bool, "logCycleCount")
        self.set(log_cycle_count=log_cycle_count)
        return self

    def modelName(self, name: str) -> Self:
        """Name the model in profiles."""
        require_type(name, str, "modelName")
        self.set(model_name=name)
        return self

    def disableModuleNamescope(self) -> Self:
        """Store that operations are not named after modules; the emulator names none."""
        self.set(disable_module_namescope=True)
        return self

    def maxRepeatLogs(self, max_lines: int | None) -> Self:
        """Store how often a message is repeated."""
        if max_lines is not None:
            require_count(max_lines, "maxRepeatLogs")
        self.set(max_repeat_logs=max_lines)
        return self

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Store how loudly unknown attributes of optimizers are reported; here they are passed over."""
        require_type(relax, bool, "relaxOptimizerAttributesChecks")
        self.set(relax_optimizer_checks=relax)
        return self

    def sourceLocationExcludes(self, excludes: list[str]) -> Self:
        """Store which files are left out of source locations, instead of those so far."""
        require_type(excludes, list, "sourceLocationExcludes")
        self.set(source_location_excludes=list(excludes))
        return self

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Store the choice; compiling takes no time here."""
        self.set(show_compilation_progress_bar=show)
        return self

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Store more files to leave out of source locations."""
        self.set(source_location_excludes=[*self.source_location_excludes, *excludes])
        return self
