"""Rules of the package's structure, checked on its syntax trees; nothing is imported."""

import ast
import graphlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CONFIG_PACKAGES = ("hydra", "omegaconf")
FRAMEWORKS = ("torch", "lightning", "pytorch_lightning", "torchmetrics")
VENDOR_PACKAGES = ("poptorch", "popart", "onnxruntime", "torch_ort", "deepspeed")
SPECIAL_ROOMS = ("mrc", "tasks", "ipu", "ort", "gradient_descent")
NUMPY_ONLY = ("mrc.postprocess",)
TRAINER_FACING = ("mrc.postprocess.span_postprocessing",)  # its result is an EvalPrediction of transformers
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers"}
LIGHTNING_COMPAT = "compat.lightning"
HF_COMPAT = ("compat.transformers", "compat.older")
FEWEST_LINES = 40
MOST_FUNCTION_LINES = 70

MOST_FILES_IN_A_CIRCLE = 5
MOST_FLOORS = 10
MOST_NAMES_IN_A_PROTOCOL = 15
MOST_ROOT_MODULES = 12
MOST_UNTYPED = 0.08
MOST_UNTYPED_IN_A_ROOM = 0.12
FEWEST_PARAMETERS = 25  # of a room whose share of untyped ones says something
MOST_NAMES_WITHOUT_A_VERB = 38

# Hooks of `transformers.Trainer` with these names that the loop calls, since subclasses override them; all else that
# other modules read of a trainer is public.
PRIVATE_HOOKS = (
    "_portico",
    "_evaluate",
    "_finalize_training",
    "_get_learning_rate",
    "_load_rng_state",
    "_loss_shifts_labels",
    "_maybe_log_save_evaluate",
    "_prepare_input",
    "_track_num_input_tokens",
    "_wrap_model",
)
_DIGEST = re.compile(r'"(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})"')
_NAMES_OF_A_TRAINER = ("trainer", "hf_trainer", "_trainer")
# Where a name in a string becomes a module: what is named is data, a command or a class that is imported on first use.
IMPORTERS_BY_NAME = ("__main__", "imports", "compat.transformers", "trust.names")

# The gate, and what no other module may import: what makes objects of names in data, or of files that could hold code.
GATE = "trust"
DOORS = (
    "hydra.utils",
    "pkgutil.resolve_name",
    "pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "torch.distributed.checkpoint.filesystem",
    "torch.distributed.checkpoint.default_planner",
    "torch.distributed.checkpoint.format_utils",
    "torch.distributed.checkpoint.state_dict_loader",
)

# The one module that writes files. Libraries that take a path get one that is staged, in a variable of that name.
WRITER = "trust.disk"
_WRITERS = (
    *(f"shutil.{name}" for name in ("copy", "copy2", "copyfile", "copyfileobj", "copytree", "move")),
    *("os.open", "os.truncate", "os.link", "os.symlink", "os.mkfifo", "fcntl.flock", "fcntl.lockf", "fcntl.fcntl"),
    "FileLock",
)
_WRITING_METHODS = ("write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "tofile", "truncate")
_LIBRARIES_THAT_WRITE = (
    *("save_file", "save_pretrained", "save_to_disk", "save_to_json", "savez", "savez_compressed"),
    *("savetxt", "savefig", "export_chrome_trace", "to_csv", "to_parquet", "create_or_update_model_card"),
    *("torch.save", "np.save"),
)
# Calls of such functions elsewhere, by module, and why.
WRITES_ELSEWHERE: Mapping[tuple[str, str], str] = {
    ("inspection.replay", "symlink_to"): "names checkpoints in the temporary folder of a replay",
    ("inspection.verification", "move"): "into a temporary folder",
    ("distributed.accelerator", "save"): "into a file that the user has opened",
    ("inspection.rehearsal", "hardlink_to"): "names a checkpoint in the temporary folder of a rehearsal",
    ("inspection.shelter", "open"): "the temporary folder and the files of the kernel in /proc/self",
    ("errors", "open"): "sends the output of a command that has ended to /dev/null",
    ("ipu.trainer", "save_pretrained"): "is the method of an IPUConfig, which uses the writer",
}

# Functions that several modules define under one name, and why.
SHARED_FUNCTIONS: Mapping[str, str] = {
    "build_parser": "each command has one, which completion and the command itself use",
    "main": "each command has one",
    "join": "each command that starts processes has one, which they call",
    "example": "each format of questions has one",
    "questions": "formats whose entries hold several questions have one",
    "resolve_placement": "AllenNLP's arguments are placed as training arguments are",
    "random_states": "of a recorded step, and of AllenNLP's checkpoints",
    "write_page": "the page of a comparison of libraries, and of runs",
}

# A function is named with a verb. These begin other names: prepositions, participles, and what looks like one.
_PREPOSITION = re.compile(
    "of|in|with|without|from|as|at|by|for|to|after|before|between|under|over|beyond|below|above|until|since|within|"
    "during|near|inside|outside|per|than|like"
)
_PARTICIPLE = re.compile(
    r"made|kept|given|found|taken|told|meant|sent|held|left|lost|begun|chosen|written|built|spent|bound|own|seen|said|"
    r"hidden|\w+(ed|ing|wn)"
)
_NO_PARTICIPLE = re.compile("bring|embed|exceed|feed|need|ping|proceed|ring|seed|setting|shed|speed|string")
# Names of the functions of other libraries; public names are in the record of the surface.
_NAMES_OF_OTHER_LIBRARIES = (
    *("embedding", "masked_fill", "grouped_matmul", "grouped_matmul_backward"),  # torch
    *("from_training_step_output", "teardown"),  # Lightning
    *("_nested_gather", "_sorted_checkpoints"),  # transformers
)
_PUBLIC_NAMES = frozenset(
    re.findall(r"\.(\w+)\(", (Path(__file__).parent / "frozen/public_surface.txt").read_text(encoding="utf-8"))
)

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
        found += _large_protocols(module)
        found += _long_functions(module)
        found += _vague_loops(module)
        found += _assignments_to_own_classes(module, package.name)
        found += _assignments_of_unrelated_values(module)
        found += _imports_by_name(module)
        found += _full_loads(module)
        found += _writes(module)
        for one in module.imports:
            found += [
                f"{module.path}:{one.line} imports {one.target}: {why}" for why in _wrong(module, one, package.name)
            ]
    found += _impure(modules, package.name)
    found += _circles(modules, package.name)
    found += _small_modules(modules, package.name)
    found += _shared_class_names(modules)
    found += _shared_function_names(modules)
    found += _large_circles(modules, package.name)
    found += _rooms_that_look_up(modules, package.name)
    found += _private_uses_of_the_trainer(modules)
    found += _untyped_rooms(modules)
    found += _names_without_a_verb(modules)
    found += _generated_files(package)
    return sorted(found)


def imports_of(package: Path, *others: str) -> list[str]:
    """Return a line for each import of the packages ``others`` in ``package``."""
    return [
        f"{module.path}:{one.line} imports {one.target}"
        for module in _modules(package)
        for one in module.imports
        if one.is_of(*others)
    ]


def writes_in(package: Path) -> list[str]:
    """Return a line for each call in ``package`` that writes a file at its place."""
    return [line for module in _modules(package) for line in _writes(module)]


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
    if one.is_of(*CONFIG_PACKAGES) and not module.is_in("cli", GATE):
        yield "only cli knows the configuration tree"
    elif one.is_of(*DOORS) and not module.is_in(GATE):
        yield "only the gate builds what data name and opens what could hold code"
    if one.is_of(f"{package}.cli", f"{package}.commands") and not module.is_in("cli", "commands"):
        yield "the command line is the door: only commands use it"
    is_generic = module.name and not module.is_in("cli", "commands", *SPECIAL_ROOMS)
    if is_generic and one.is_of(*(f"{package}.{room}" for room in SPECIAL_ROOMS)):
        yield "generic parts do not know tasks and backends"
    if module.is_in("tasks") and one.is_of(f"{package}.mrc"):
        yield "what tasks and reading comprehension share is in a room below both"
    for this, other in (("loop.datamodule", "loop.module"), ("loop.module", "loop.datamodule")):
        if module.is_in(this) and one.is_of(f"{package}.{other}"):
            yield "datamodule and module meet in the trainer only"
    if one.is_of(*VENDOR_PACKAGES) and not (one.in_function or one.for_types_only):
        yield "vendor packages are imported inside functions"
    if one.is_of("lightning", "pytorch_lightning") and _is_private(one.target) and module.name != LIGHTNING_COMPAT:
        yield f"private names of Lightning are imported in {LIGHTNING_COMPAT} only"
    if one.source.startswith("transformers.") and module.name not in HF_COMPAT:
        yield f"names below the top level of transformers are imported in {' and '.join(HF_COMPAT)} only"


def _is_private(target: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in target.split("."))


def _impure(modules: Modules, package: str) -> Iterator[str]:
    """Find what a pure module imports at run time, itself or through other modules of the package."""
    for module in modules.values():
        for path, one in _reached(module, modules, package) if module.is_in("loop.plan", *NUMPY_ONLY) else ():
            if module.is_in("loop.plan") and one.is_of(*FRAMEWORKS):
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


def _large_circles(modules: Modules, package: str) -> list[str]:
    """Find circles of imports, those for types included, that are larger than a reader can hold."""
    return [
        f"{', '.join(sorted(circle))} know each other in a circle of more than {MOST_FILES_IN_A_CIRCLE} modules"
        for circle in _circles_of({module.name: _neighbours(module, modules, package) for module in modules.values()})
        if len(circle) > MOST_FILES_IN_A_CIRCLE
    ]


def _rooms_that_look_up(modules: Modules, package: str) -> Iterator[str]:
    """Find rooms (folders and modules at the root) in a circle, too many floors, and too many modules at the root."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        if module.name:
            room = module.name.partition(".")[0]
            others = {name.partition(".")[0] for name in _neighbours(module, modules, package) if name}
            rooms[room] |= others - {room}
    circles = [circle for circle in _circles_of(rooms) if len(circle) > 1]
    for circle in circles:
        yield f"the rooms {', '.join(sorted(circle))} import each other, for types at least"
    if not circles:
        floors = _floors(rooms)
        if max(floors.values(), default=0) > MOST_FLOORS:
            yield f"{max(floors, key=floors.__getitem__)} is on floor {max(floors.values())}, above {MOST_FLOORS}"
    at_root = [one for one in modules.values() if len(one.path.parts) == 2 and not one.path.stem.startswith("__")]
    if len(at_root) > MOST_ROOT_MODULES:
        yield f"{len(at_root)} modules are at the root, more than {MOST_ROOT_MODULES}"


def _neighbours(module: Module, modules: Modules, package: str) -> set[str]:
    found = {_imported_module(one, modules, package) for one in module.imports}
    return {name for name in found if name is not None and name != module.name}


def _circles_of(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the sets of names that reach each other."""
    reached = {name: _all_reached(name, graph) for name in graph}
    circles = {frozenset({name, *(one for one in reached[name] if name in reached[one])}) for name in graph}
    return [set(circle) for circle in circles]


def _all_reached(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    waiting, seen = list(graph[start]), set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(graph.get(name, ()))
    return seen


def _floors(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """Return for each name how many stand on the longest way down from it, itself included."""
    floors: dict[str, int] = {}
    for name in graphlib.TopologicalSorter(graph).static_order():
        floors[name] = 1 + max((floors[one] for one in graph.get(name, ())), default=0)
    return floors


def _large_protocols(module: Module) -> Iterator[str]:
    """Find protocols that describe a class, instead of the few names that a function needs."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Protocol") for base in node.bases):
            names = {
                getattr(one, "name", None) or ast.unparse(one) for one in node.body if not isinstance(one, ast.Expr)
            }
            if len(names) > MOST_NAMES_IN_A_PROTOCOL:
                yield f"{module.path}:{node.lineno} is a protocol of {len(names)} names: take the class, or less of it"


def _private_uses_of_the_trainer(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        # `loop.core` is the private side of the trainer; elsewhere a core and its trainer share a module.
        own = {*PRIVATE_HOOKS, *_members(module.tree)}
        for node in ast.walk(module.tree):
            if module.name in ("trainer", "loop.core") or not isinstance(node, ast.Attribute):
                continue
            owner = getattr(node.value, "id", getattr(node.value, "attr", ""))
            is_private = node.attr.startswith("_") and not node.attr.startswith("__")
            if is_private and owner in _NAMES_OF_A_TRAINER and node.attr not in own:
                yield f"{module.path}:{node.lineno} uses the trainer's {node.attr}: give it a public name or pass it"


def _members(tree: ast.AST) -> Iterator[str]:
    """Return the names of the methods in ``tree``, and of what they set on ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield getattr(target, "attr", getattr(target, "id", ""))


def _imports_by_name(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called.rpartition(".")[2] == "import_module" and module.name not in IMPORTERS_BY_NAME:
            yield f"{module.path}:{node.lineno} imports by name: import it in the function, or use imports.import_name"


def _full_loads(module: Module) -> Iterator[str]:
    """Find calls of a `load` that may unpickle anything, or fill the memory from a small file."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call) or module.is_in(GATE):
            continue
        called = ast.unparse(node.func)
        if called.startswith(("torch.load", "np.load", "torch.distributed.checkpoint.", "dist_cp.", "dcp.")):
            yield f"{module.path}:{node.lineno} calls {called}: use trust.files, which bounds code and memory"


def _writes(module: Module) -> Iterator[str]:
    """Find calls that create, change, copy or lock a file at its place, where a link or a pipe may lead elsewhere."""
    if module.name == WRITER:
        return
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        arguments = [*node.args, *(one.value for one in node.keywords)]
        is_staged = any("staging" in ast.unparse(one) for one in arguments)
        name = called.rpartition(".")[2]
        if (
            called in _WRITERS
            or (name in _WRITING_METHODS and isinstance(node.func, ast.Attribute))
            or ((name in _LIBRARIES_THAT_WRITE or called in _LIBRARIES_THAT_WRITE) and not is_staged)
            or (name in ("open", "fdopen", "memmap", "open_memmap") and any(map(_is_writing_mode, arguments)))
        ) and (module.name, name) not in WRITES_ELSEWHERE:
            yield f"{module.path}:{node.lineno} calls {called}: use {WRITER}, which follows no link"


def _is_writing_mode(argument: ast.expr) -> bool:
    return (
        isinstance(argument, ast.Constant)
        and re.fullmatch(r"[rwaxbt]*[wax+][rwaxbt+]*", str(argument.value)) is not None
    )


# What a class is and does --------------------------------------------------------------------------------------------


def _assignments_to_own_classes(module: Module, package: str) -> Iterator[str]:
    """Find assignments that change a class of the package for everybody."""
    imported = {one.target.rpartition(".")[2] for one in module.imports if one.is_of(package)}
    names = {*imported, *_class_names(module)}
    own = {name for name in names if name.lstrip("_")[:1].isupper() and not name.isupper()}
    for node in ast.walk(module.tree):
        for target in _assigned(node):
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in own:
                yield f"{module.path}:{node.lineno} assigns onto the class {target.value.id}: give it a hook"
        is_set = isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr")
        if is_set and isinstance(node.args[0], ast.Name) and node.args[0].id in own:
            yield f"{module.path}:{node.lineno} assigns onto the class {node.args[0].id}: give it a hook"


def _assigned(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def _assignments_of_unrelated_values(module: Module) -> Iterator[str]:
    """Find `a, b, c = x, y, z`, which saves lines and costs the reader; one call may return a tuple."""
    for node in ast.walk(module.tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)):
            continue
        values = node.value.elts if isinstance(node.value, ast.Tuple) else []
        if len(values) > 2 and not all(isinstance(value, ast.Constant) for value in values):
            yield f"{module.path}:{node.lineno} assigns {len(values)} values in one line"


def _untyped_rooms(modules: Modules) -> Iterator[str]:
    """Find rooms whose parameters are `Any` too often: types that say nothing."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for module in modules.values():
        room = module.name.partition(".")[0] if len(module.path.parts) > 2 else "the root"
        for node in ast.walk(module.tree):
            for one in _parameters(node):
                for place in (room, "the package"):
                    counts[place][0] += one.annotation is not None and ast.unparse(one.annotation).strip("'") == "Any"
                    counts[place][1] += 1
    for place, (untyped, every) in counts.items():
        most = MOST_UNTYPED if place == "the package" else MOST_UNTYPED_IN_A_ROOM
        if every >= FEWEST_PARAMETERS and untyped > most * every:
            yield f"{untyped} of {every} parameters in {place} are Any, more than {most:.0%}: give them their types"


def _parameters(node: ast.AST) -> list[ast.arg]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    return [one for one in given if one is not None and one.arg not in ("self", "cls")]


def _generated_files(package: Path) -> Iterator[str]:
    """Find data with digests of sources: somebody would have to write them anew after each change of a comment."""
    for path in sorted(package.rglob("*.json")):
        if _DIGEST.search(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(package.parent)} holds digests: read from the sources what it was made of"


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


def _vague_loops(module: Module) -> Iterator[str]:
    """Find loops and comprehensions whose variable is `one`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and ast.unparse(node.target) == "one":
            yield f"{module.path}:{node.target.lineno} has a loop `for one in`: name what the variable holds"


def _names_without_a_verb(modules: Modules) -> Iterator[str]:
    names = [name for module in modules.values() for name in _functions_without_a_verb(module)]
    if len(names) > MOST_NAMES_WITHOUT_A_VERB:
        yield (
            f"{len(names)} functions begin with a participle or a preposition, more than {MOST_NAMES_WITHOUT_A_VERB}: "
            f"begin with a verb. {', '.join(names)}"
        )


def _functions_without_a_verb(module: Module) -> Iterator[str]:
    """Find functions that are named like a value; a context manager, a property and an override may be."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_named_otherwise(node):
            continue
        word = node.name.strip("_").partition("_")[0]
        is_participle = _PARTICIPLE.fullmatch(word) and not _NO_PARTICIPLE.fullmatch(word)
        if _PREPOSITION.fullmatch(word) or is_participle:
            yield f"{module.path}:{node.lineno} {node.name}"


def _is_named_otherwise(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    kinds = " ".join(map(ast.unparse, node.decorator_list)) + (ast.unparse(node.returns) if node.returns else "")
    return (
        re.search(r"property|setter|[Cc]ontext_?[Mm]anager|override|overload", kinds) is not None
        or node.name in _NAMES_OF_OTHER_LIBRARIES
        or node.name in _PUBLIC_NAMES
    )


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


def _shared_function_names(modules: Modules) -> Iterator[str]:
    owners = defaultdict(set)
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                owners[node.name].add(str(module.path))
    for name, paths in owners.items():
        if len(paths) > 1 and name not in SHARED_FUNCTIONS:
            yield f"{', '.join(sorted(paths))} each define a function {name}: rename one, or say why they may"


def _shared_class_names(modules: Modules) -> Iterator[str]:
    owners = defaultdict(set)
    for module in modules.values():
        for name in _class_names(module):
            owners[name].add(str(module.path))
    for name, paths in owners.items():
        if len(paths) > 1:
            yield f"{', '.join(sorted(paths))} each define a class {name}"
