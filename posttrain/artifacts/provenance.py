"""Provenance: how a run came about, for its execution record. What cannot be known is null, with the reason.

Never the whole environment, no host name and no user name; torch is described only if the run imported it.
"""

import ctypes
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from posttrain.artifacts.digests import bytes_digest, code_digest, file_digest
from posttrain.artifacts.redaction import redact as redact

RECORDED_VARIABLES = (
    "ACCELERATE_USE_CPU",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES",
    "HF_DATASETS_OFFLINE",
    "HF_HUB_OFFLINE",
    "LANG",
    "LC_ALL",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "TOKENIZERS_PARALLELISM",
    "TZ",
    "WORLD_SIZE",
)
_OPENBLAS_SYMBOLS = [f"{prefix}openblas_{{}}{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")]


def environment(lock: Path | None = None) -> dict[str, Any]:
    """Python, operating system, every installed package and the environment variables that can change a number."""
    libc = " ".join(part for part in platform.libc_ver() if part)
    unknown = {} if libc else {"libc": "the platform does not say"}
    if lock is None:
        unknown["lock_sha256"] = "no lock file was given"
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "os": platform.system(),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "libc": libc or None,
        "packages": installed_packages(),
        "lock_sha256": None if lock is None else file_digest(lock),
        "env": {name: os.environ[name] for name in RECORDED_VARIABLES if name in os.environ},
        "unknown": unknown,
    }


def installed_packages() -> dict[str, str]:
    """Version of every installed distribution by its normalised name; the first on the path wins, as in an import."""
    packages: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            packages.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return dict(sorted(packages.items()))


def hardware(threads: int | None = None) -> dict[str, Any]:
    """Processor, memory, BLAS and, if the run used them, torch and its devices; `threads` is what the run set."""
    unknown: dict[str, str] = {}
    cpu = _cpu(unknown)
    torch = sys.modules.get("torch")
    if torch is None:
        unknown |= dict.fromkeys(("torch_threads", "deterministic"), "the run did not import torch")
    return {
        **cpu,
        "ram_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": _gpus(torch, unknown),
        "blas": blas(threads, unknown),
        "torch_threads": None if torch is None else torch.get_num_threads(),
        "deterministic": None if torch is None else torch.are_deterministic_algorithms_enabled(),
        "unknown": unknown,
    }


def _cpu(unknown: dict[str, str]) -> dict[str, Any]:
    """Model, cores and the digest of the instruction-set flags, as Linux lists them."""
    listing = Path("/proc/cpuinfo")
    text = listing.read_text(encoding="utf-8", errors="replace") if listing.is_file() else ""
    fields = [re.split(r"\s*:\s*", line, maxsplit=1) for line in text.splitlines() if ":" in line]
    first = dict(reversed(fields))
    flags = first.get("flags") or first.get("Features")
    # A core is a pair of socket and core number; machines that do not list them show one block per core.
    sockets = [value for key, value in fields if key == "physical id"]
    cores = [value for key, value in fields if key == "core id"]
    found = {
        "cpu_model": first.get("model name") or platform.processor() or None,
        "physical_cores": len(set(zip(sockets, cores, strict=False))) or os.cpu_count(),
        "flags_sha256": bytes_digest(" ".join(sorted(flags.split())).encode()) if flags else None,
    }
    unknown |= {key: "the operating system does not list it" for key, value in found.items() if value is None}
    return found


def _gpus(torch: Any, unknown: dict[str, str]) -> list[dict[str, Any]]:
    """The CUDA devices of this process; a run that never touched one is not made to."""
    if torch is None or not torch.cuda.is_initialized():
        unknown["gpu"] = "the run used no CUDA device"
        return []
    driver = Path("/proc/driver/nvidia/version")
    version = re.search(r"\s(\d+\.[\d.]+)\s", driver.read_text(encoding="utf-8")) if driver.is_file() else None
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [{"name": name, "driver": version and version[1], "cuda": torch.version.cuda} for name in names]


def blas(threads: int | None, unknown: dict[str, str]) -> dict[str, Any]:
    """NumPy's BLAS library and the kernel core it chose on this processor: other cores round differently."""
    import numpy

    library: Mapping[str, Any] = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
    core = _openblas_core()
    if core is None:
        unknown["blas.core"] = "no loaded library names its OpenBLAS core"
    if threads is None:
        unknown["blas.threads"] = "the run did not fix its threads"
    name, version = library.get("name"), library.get("version")
    return {"library": name or None, "version": version or None, "core": core, "threads": threads}


def _openblas_core() -> str | None:
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8", errors="replace").splitlines() if maps.is_file() else []
    for path in sorted({line.split(maxsplit=5)[5] for line in lines if "openblas" in line.rpartition("/")[2]}):
        library = ctypes.CDLL(path)  # loaded already: this only hands out its handle
        for symbol in _OPENBLAS_SYMBOLS:
            function = getattr(library, symbol.format("get_corename"), None)
            if function is not None:
                function.restype = ctypes.c_char_p
                return function().decode()
    return None


def code_state(package_root: Path | str) -> dict[str, Any]:
    """Version, source digest and git state of the package whose folder is given.

    Dirty means that the package or the `configs/` beside it differ from the commit, new files included. A package that
    the surrounding repository does not track, as in an environment inside a checkout, has no commit.
    """
    root = Path(package_root).resolve()
    version = re.search(r'^__version__ = "([^"]+)"$', (root / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
    state: dict[str, Any] = {
        "package_version": version and version[1],
        "dirhash": code_digest(root),
        "git_commit": None,
        "git_dirty": None,
        "diff_sha256": None,
    }
    tracked = _git(root.parent, "ls-files", "--", f"{root.name}/__init__.py")
    commit = _git(root.parent, "rev-parse", "HEAD") if tracked else None
    if commit is None:
        reason = "git knows no commit that holds the package"
        return {**state, "unknown": dict.fromkeys(("git_commit", "git_dirty", "diff_sha256"), reason)}
    state["git_commit"] = commit.decode().strip()
    difference = _difference(root)
    if difference is None:
        return {**state, "unknown": dict.fromkeys(("git_dirty", "diff_sha256"), "git could not compare the files")}
    if not difference:
        return {**state, "git_dirty": False, "unknown": {"diff_sha256": "the code is as committed"}}
    return {**state, "git_dirty": True, "diff_sha256": bytes_digest(difference), "unknown": {}}


WITH_CODE = " with code "  # between when a process took up a run and what it ran


def code_of(dirhash: str, plugins: Iterable[Mapping[str, str]]) -> str:
    """What a process ran, in one line: the package's digest, then each plugin's."""
    return ", ".join([dirhash, *(f"{Path(plugin['name']).name} {plugin['sha256']}" for plugin in plugins)])


def other_code(starts: Iterable[str], code: str) -> list[str]:
    """Those of the starts of a run (`WHEN with code WHAT`) that had another code than the given one."""
    return [start for start in starts if start.partition(WITH_CODE)[2] != code]


def _difference(root: Path) -> bytes | None:
    """What the working tree adds to the commit: the diff of tracked files, then names and digests of new ones."""
    places = ("--", root.name, "configs")
    diff = _git(root.parent, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD", *places)
    listing = _git(root.parent, "ls-files", "--others", "--exclude-standard", "-z", *places)
    if diff is None or listing is None:
        return None
    new = [Path(os.fsdecode(name)) for name in sorted(listing.split(b"\0")) if name]
    return diff + b"".join(f"{file_digest(root.parent / name)}  {name.as_posix()}\n".encode() for name in new)


def _git(folder: Path, *words: str) -> bytes | None:
    """What a git command prints, None if it fails or git is not there; it neither writes nor runs a hook."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotePath=true", *words]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def environment_class(
    environment_record: Mapping[str, Any] | None = None, hardware_record: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What decides the bits of a float, here or in two records: two runs of one class agree byte for byte."""
    env = environment() if environment_record is None else environment_record
    machine = hardware() if hardware_record is None else hardware_record
    return {
        "platform": f"{env['os']} {env['arch']}",
        "python": ".".join(env["python"].split(".")[:2]),
        **{name: env["packages"].get(name) for name in ("numpy", "scipy", "torch")},
        "flags_sha256": machine["flags_sha256"],
        "blas": {key: machine["blas"][key] for key in ("library", "version", "core", "threads")},
        "torch_threads": machine["torch_threads"],
        "deterministic": machine["deterministic"],
    }
