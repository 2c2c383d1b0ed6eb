"""Write docs/tensordict/methods.md: every method of tensordict's TensorDict, by task, and what corral makes of it.

With --write the page is written; without, it is compared with what is there.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from corral import TensorDict

PAGE = Path(__file__).parent.parent / "docs" / "tensordict" / "methods.md"

# Methods are grouped by the class that defines them, each of which has one concern; a few belong elsewhere.
TASKS = {
    "Make a TensorDict": ["TensorDict", "Converting", "Creating"],
    "Shape, device and what is in it": ["Base", "Inspecting", "Placing"],
    "Read, set and remove entries": ["Keys", "Updating"],
    "Choose and rename entries": ["Choosing", "Splitting"],
    "Index the batch": ["Indexing", "Selecting"],
    "Change the shape": ["Shaping", "Rearranging", "Padding"],
    "Name dimensions": ["Naming"],
    "Stack, join and copy": ["TensorDictBase"],
    "Call functions": ["MapProcesses"],
    "Arithmetic": ["Arithmetic"],
    "Functions of each element": ["Unary"],
    "Reduce": ["Reductions"],
    "Masks and constants": ["Masking"],
    "Dtypes": ["Casting"],
    "Convert": ["Conversion", "Interchange", "PythonTrees", "Packing", "State", "Stores"],
    "Gradients": ["Gradients"],
    "Share memory, save and load": ["Sharing", "Consolidation", "MemoryMapping", "Loading", "SafetensorsFiles"],
    "Move between processes": ["Transfers", "PointToPoint"],
}
ELSEWHERE = {
    "apply": "Call functions",
    "named_apply": "Call functions",
    "apply_": "Call functions",
    "auto_batch_size_": "Shape, device and what is in it",
    "bytes": "Shape, device and what is in it",
    "dtype": "Shape, device and what is in it",
    "numel_total": "Shape, device and what is in it",
    "is_floating_point": "Shape, device and what is in it",
    "is_memmap": "Share memory, save and load",
    "copy_": "Read, set and remove entries",
    "copy_at_": "Index the batch",
    "gather_and_stack": "Move between processes",
    "filter_non_tensor_data": "Choose and rename entries",
    "to_lazystack": "Stack, join and copy",
    "densify": "Stack, join and copy",
    "contiguous": "Stack, join and copy",
    "from_any": "Make a TensorDict",
    "cat_tensors": "Stack, join and copy",
    "stack_tensors": "Stack, join and copy",
    "cat_from_tensordict": "Stack, join and copy",
    "stack_from_tensordict": "Stack, join and copy",
}

LEFT_OUT = {
    "from_module": "nn.Module only: the parameters of a module",
    "from_modules": "nn.Module only: the parameters of several modules",
    "to_module": "nn.Module only: puts parameters into a module",
    "clear_refs_for_compile_": "torch.compile only: drops references that corral's TensorDicts do not keep",
    "attrs": "describes torch's leaves for `to` in a class of tensordict's own; `td.to(dtype)` and `td.type` cast",
    "asend": "UCXX pipes only; `send` and `isend` move TensorDicts",
    "arecv": "UCXX pipes only; `recv` and `irecv` move TensorDicts",
    "make_memmap_from_storage": "takes memory of torch's that is in no file, and is lost when the directory is loaded; "
    "`make_memmap_from_tensor` writes it",
    "to_mds": "writes the format of one service, MosaicML Streaming",
    "to_store": "uploads to a Redis server, which corral has no client for",
}

# Parameters that corral has in addition to tensordict's; all are optional.
ADDED = {
    "library": "whose arrays the leaves are",
    "like": "library of the leaves that arrive",
    "group_dst": "a rank of the group, as torch.distributed has it",
    "group_src": "a rank of the group, as torch.distributed has it",
    "progress": "show a bar",
    "inplace": "write into the leaves that are here",
}

# Methods whose parameters differ in another way.
DIFFERENT = {
    "gather": "also gathers from ranks: `gather(dim, index)` selects, `gather(dst)` communicates",
    "gather_and_stack": "`dst` is optional, as `group_dst` can be given in its place",
    "broadcast": "`src` is optional, as `group_src` can be given in its place",
    "scatter": "`src` is optional, as `group_src` can be given in its place",
    "reduce": "`dst` is optional, as `group_dst` can be given in its place",
    "from_remote_init": "`src` is optional, as `group_src` can be given in its place",
    "unbind": "`dim` is 0 by default, as torch.unbind has it",
    **dict.fromkeys(
        ("mean", "nanmean", "nansum", "prod", "quantile", "std", "sum", "var"),
        "`keepdim` is False by default, which is what tensordict makes of its own default",
    ),
}

# Methods whose results differ, where tensordict's cannot be meant.
RESULTS = {
    "amax": "nested TensorDicts keep the names of their dimensions, as with `sum`, which tensordict's lose",
    "to_h5": "names of dimensions are written, too, and `from_h5` reads them, which tensordict's files do not have",
    "amin": "nested TensorDicts keep the names of their dimensions, as with `sum`, which tensordict's lose",
    "softmax": "along the stack dimension of a lazy stack whose members differ in shapes or keys, an error that says "
    "so: tensordict takes another dimension there",
}


def tasks() -> dict[str, list[str]]:
    """Return the names of corral's methods and properties by task."""
    owners = {owner: task for task, classes in TASKS.items() for owner in classes}
    found: dict[str, list[str]] = {task: [] for task in TASKS}
    for name in sorted(name for name in dir(TensorDict) if not name.startswith("_")):
        owner = next(cls.__name__ for cls in TensorDict.__mro__ if name in vars(cls))
        found[ELSEWHERE.get(name) or owners[owner]].append(name)
    return found


def sense(name: str) -> str:
    """Return the first sentence of a method's docstring."""
    text = " ".join((inspect.getdoc(getattr(TensorDict, name)) or "").split("\n\n")[0].split())
    first = re.split(r"(?<=[a-z`)\d]\.) (?=[A-Z])", text)[0]
    return re.sub(r"\{py:\w+\}|:py:\w+:", "", first).replace("``", "`").replace("|", "\\|")


def page() -> str:
    """Return the text of the page."""
    from tensordict import TensorDict as Theirs

    theirs = {name for name in dir(Theirs) if not name.startswith("_")}
    lines = [
        "# Methods by task",
        "",
        "All public methods and properties of tensordict 0.15.3's `TensorDict` are here, with the same parameters and",
        "defaults. Those that corral leaves out are named at the end, and so is what differs. An asterisk marks",
        "what tensordict does not have. `tools/methods.py` writes this page.",
        "",
    ]
    for task, names in tasks().items():
        lines += [f"## {task}", "", "| method | sense |", "| --- | --- |"]
        for name in names:
            kind = "" if isinstance(inspect.getattr_static(TensorDict, name), property) else "()"
            mark = "" if name in theirs else " \\*"
            lines.append(f"| `{name}{kind}`{mark} | {sense(name)} |")
        lines.append("")
    for title, notes in (
        ("Left out", LEFT_OUT),
        ("Further parameters", ADDED),
        ("Other parameters", DIFFERENT),
        ("Other results", RESULTS),
    ):
        lines += [f"## {title}", "", "| name | reason |", "| --- | --- |"]
        lines += [f"| `{name}` | {reason} |" for name, reason in sorted(notes.items())]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page())
        return 0
    if not PAGE.exists() or PAGE.read_text() != page():
        print(f"{PAGE} is out of date: run python tools/methods.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
