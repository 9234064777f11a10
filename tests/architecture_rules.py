"""Rules of the package's structure, checked on its syntax trees; nothing is imported."""

import ast
import graphlib
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CONFIG_PACKAGES = ("hydra", "omegaconf")
FRAMEWORKS = ("torch", "lightning", "pytorch_lightning", "torchmetrics")
VENDOR_PACKAGES = ("poptorch", "popart", "onnxruntime", "torch_ort")
SPECIAL_ROOMS = ("mrc", "tasks", "ipu", "ort", "gradient_descent")
NUMPY_ONLY = ("mrc.postprocess",)
TRAINER_FACING = ("mrc.postprocess.span_postprocessing",)  # its result is an EvalPrediction of transformers
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers"}
LIGHTNING_COMPAT = "compat.lightning"
HF_COMPAT = "compat.transformers"
FEWEST_LINES = 40
MOST_FUNCTION_LINES = 70

# Modules under 40 lines that a single module imports, and why each is not a section of that module.
SMALL_MODULES: Mapping[str, str] = {}


@dataclass(frozen=True)
class Import:
    """One imported name."""

    target: str  # `a.b` for `from a import b` and for `import a.b`
    source: str  # the module: `a` for `from a import b`
    line: int
    in_function: bool
    for_types_only: bool

    def is_of(self, *packages: str) -> bool:
        return any(f"{self.target}.".startswith(f"{package}.") for package in packages)


@dataclass(frozen=True)
class Module:
    """A parsed module."""

    name: str  # below the package: "mrc.spans"; "" is the package itself
    path: Path
    num_lines: int
    tree: ast.Module
    imports: tuple[Import, ...]

    def is_in(self, *rooms: str) -> bool:
        return any(f"{self.name}.".startswith(f"{room}.") for room in rooms)


Modules = Mapping[str, Module]


def violations(package: Path) -> list[str]:
    """Return a line for each violation of the rules in ``package``, a folder of modules."""
    modules = {module.name: module for module in _modules(package)}
    found = []
    for module in modules.values():
        found += _vague_name(module)
        found += _method_collections(module)
        found += _long_functions(module)
        for one in module.imports:
            found += [
                f"{module.path}:{one.line} imports {one.target}: {why}" for why in _wrong(module, one, package.name)
            ]
    found += _impure(modules, package.name)
    found += _circles(modules, package.name)
    found += _small_modules(modules, package.name)
    found += _shared_class_names(modules)
    return sorted(found)


def imports_of(package: Path, *others: str) -> list[str]:
    """Return a line for each import of the packages ``others`` in ``package``."""
    return [
        f"{module.path}:{one.line} imports {one.target}"
        for module in _modules(package)
        for one in module.imports
        if one.is_of(*others)
    ]


def bases_within(kind: type, package: str) -> list[str]:
    """Return the names of ``kind`` and of its base classes that ``package`` defines."""
    return [base.__qualname__ for base in kind.__mro__ if f"{base.__module__}.".startswith(f"{package}.")]


# Reading -------------------------------------------------------------------------------------------------------------


def _modules(package: Path) -> Iterator[Module]:
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        location = parts[:-1]
        name = ".".join(location if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        imports = tuple(_imports(tree, (package.name, *location)))
        yield Module(name, path.relative_to(package.parent), len(text.splitlines()), tree, imports)


def _imports(node: ast.AST, location: tuple[str, ...], in_function=False, for_types=False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        for target, source in _targets(child, location):
            yield Import(target, source, child.lineno, in_function, for_types)
        yield from _imports(
            child,
            location,
            in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda),
            for_types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)),
        )


def _targets(node: ast.AST, location: tuple[str, ...]) -> list[tuple[str, str]]:
    if isinstance(node, ast.Import):
        return [(alias.name, alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = location[: len(location) - node.level + 1] if node.level else ()
        source = ".".join([*base, *([node.module] if node.module else [])])
        return [(f"{source}.{alias.name}", source) for alias in node.names]
    return []


# Imports -------------------------------------------------------------------------------------------------------------


def _wrong(module: Module, one: Import, package: str) -> Iterator[str]:
    """Say why a module may not import a name."""
    if one.is_of(*CONFIG_PACKAGES) and not module.is_in("cli"):
        yield "only cli knows the configuration tree"
    is_generic = module.name and not module.is_in("cli", "commands", *SPECIAL_ROOMS)
    if is_generic and one.is_of(*(f"{package}.{room}" for room in SPECIAL_ROOMS)):
        yield "generic parts do not know tasks and backends"
    for this, other in (("loop.datamodule", "loop.module"), ("loop.module", "loop.datamodule")):
        if module.is_in(this) and one.is_of(f"{package}.{other}"):
            yield "datamodule and module meet in the trainer only"
    if one.is_of(*VENDOR_PACKAGES) and not (one.in_function or one.for_types_only):
        yield "vendor packages are imported inside functions"
    if one.is_of("lightning", "pytorch_lightning") and _is_private(one.target) and module.name != LIGHTNING_COMPAT:
        yield f"private names of Lightning are imported in {LIGHTNING_COMPAT} only"
    if one.source.startswith("transformers.") and module.name != HF_COMPAT:
        yield f"names below the top level of transformers are imported in {HF_COMPAT} only"


def _is_private(target: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in target.split("."))


def _impure(modules: Modules, package: str) -> Iterator[str]:
    """Find what a pure module imports at run time, itself or through other modules of the package."""
    for module in modules.values():
        for path, one in _reached(module, modules, package) if module.is_in("plan", *NUMPY_ONLY) else ():
            if module.is_in("plan") and one.is_of(*FRAMEWORKS):
                yield f"{module.path} reaches {one.target} through {path}:{one.line}: plan is pure"
            is_numpy_only = module.is_in(*NUMPY_ONLY) and not module.is_in(*TRAINER_FACING)
            if is_numpy_only and not one.is_of(package, "numpy", *sys.stdlib_module_names):
                yield f"{module.path} reaches {one.target} through {path}:{one.line}: post-processing needs numpy only"


def _circles(modules: Modules, package: str) -> list[str]:
    """Find the first circle of run-time imports; an import for types alone may look back up."""
    graph = {
        module.name: {
            name
            for one in module.imports
            if not one.for_types_only and (name := _imported_module(one, modules, package)) and name != module.name
        }
        for module in modules.values()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [f"{' -> '.join(reversed(error.args[1]))} import each other in a circle"]
    return []


def _imported_module(one: Import, modules: Modules, package: str) -> str | None:
    """Return the module of ``package`` that an import names or takes a name from."""
    if not one.is_of(package):
        return None
    inner = one.target.removeprefix(f"{package}.")
    name = inner if inner in modules else inner.rpartition(".")[0]
    return name if name in modules else None


def _reached(start: Module, modules: Modules, package: str) -> Iterator[tuple[Path, Import]]:
    waiting, seen = [start], {start.name}
    while waiting:
        module = waiting.pop()
        for one in module.imports:
            if one.for_types_only:
                continue
            yield module.path, one
            inner = one.target.removeprefix(f"{package}.")
            # In `from package.a import b`, `b` is a module or a name in `a`.
            for name in (inner, inner.rpartition(".")[0]) if one.is_of(package) else ():
                if name and name in modules and name not in seen:
                    seen.add(name)
                    waiting.append(modules[name])


# Names and sizes -----------------------------------------------------------------------------------------------------


def _vague_name(module: Module) -> list[str]:
    vague = VAGUE_NAMES.intersection(part for name in module.path.with_suffix("").parts for part in name.split("_"))
    return [f"{module.path} has the vague name '{word}': name the thing" for word in sorted(vague)]


def _method_collections(module: Module) -> list[str]:
    return [
        f"{module.path}: class {name} is a part of another class; write its methods there"
        for name in _class_names(module)
        if name.endswith("Methods")
    ]


def _class_names(module: Module) -> list[str]:
    return [node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]


def _long_functions(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = node.end_lineno - node.lineno + 1
            if num_lines > MOST_FUNCTION_LINES:
                yield f"{module.path}: {node.name} has {num_lines} lines, more than {MOST_FUNCTION_LINES}"


def _small_modules(modules: Modules, package: str) -> Iterator[str]:
    """Find small modules that are a section of their only importer."""
    importers = defaultdict(set)
    for module in modules.values():
        for one in module.imports:
            if name := _imported_module(one, modules, package):
                importers[name].add(module.name)
    for name, module in modules.items():
        users = importers[name] - {name}
        is_checked = module.path.stem not in ("__init__", "__main__") and name not in SMALL_MODULES
        if is_checked and module.num_lines < FEWEST_LINES and len(users) == 1:
            yield f"{module.path} has {module.num_lines} lines and a single importer, {users.pop() or package}"


def _shared_class_names(modules: Modules) -> Iterator[str]:
    owners = defaultdict(set)
    for module in modules.values():
        for name in _class_names(module):
            owners[name].add(str(module.path))
    for name, paths in owners.items():
        if len(paths) > 1:
            yield f"{', '.join(sorted(paths))} each define a class {name}"
