"""Names of backends: which there are, which device each is for, which can be used here."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from corral import backends
from corral.distributed import groups
from corral.distributed.groups import Group

__all__ = [
    "Backend",
    "BackendConfig",
    "get_backend_config",
    "get_default_backend_for_device",
    "is_backend_available",
    "is_gloo_available",
    "is_mpi_available",
    "is_nccl_available",
    "is_ucc_available",
    "is_xccl_available",
]


class Backend(str):
    """The names of backends, as attributes; ``Backend("SHM")`` is the name in lower case.

    Mirrors ``torch.distributed.Backend``. A name here does not mean that corral can use the backend:
    `is_backend_available` says that.

    Examples
    --------
    >>> Backend.SHM, Backend("Gloo")
    ('shm', 'gloo')
    """

    __slots__ = ()

    UNDEFINED: ClassVar[str] = "undefined"
    SHM: ClassVar[str] = "shm"
    HYBRID: ClassVar[str] = "hybrid"
    GLOO: ClassVar[str] = "gloo"
    NCCL: ClassVar[str] = "nccl"
    UCC: ClassVar[str] = "ucc"
    MPI: ClassVar[str] = "mpi"
    XCCL: ClassVar[str] = "xccl"
    FAKE: ClassVar[str] = "fake"

    backend_list: ClassVar[list[str]] = [UNDEFINED, SHM, HYBRID, GLOO, NCCL, XCCL, UCC, MPI, FAKE]
    """Every name, those of `register_backend` included."""

    default_device_backend_map: ClassVar[dict[str, str]] = {"cpu": backends.DEFAULT, "cuda": backends.DEFAULT}
    """The backend used for a device where none is asked for."""

    backend_capability: ClassVar[dict[str, list[str]]] = {
        SHM: ["cpu", "cuda"],
        HYBRID: ["cpu", "cuda"],
        GLOO: ["cpu", "cuda"],
        NCCL: ["cuda"],
        XCCL: ["xpu"],
        UCC: ["cpu", "cuda"],
        MPI: ["cpu", "cuda"],
        FAKE: ["cpu", "cuda", "hpu", "xpu"],
    }
    """The devices whose arrays a backend takes."""

    def __new__(cls, name: str) -> str:  # type: ignore[misc]  # as in torch: a plain string
        if not isinstance(name, str):
            raise ValueError(f"Backend constructor parameter must be string-ish, got {type(name).__qualname__}")
        return name.lower()

    @classmethod
    def register_backend(
        cls, name: str, func: Any, extended_api: bool = False, devices: str | Sequence[str] | None = None
    ) -> None:
        """Make a backend known, so that ``init_process_group(name)`` finds it.

        Parameters
        ----------
        name
            The backend's name.
        func
            Its class, with a class method ``create(rank, world_size, meet, timeout)`` as `corral.backends.Engine`
            describes; or where that is, ``"package.module:Class"``, to be imported when first used. Not one
            of torch's functions, which make groups of torch's own.
        extended_api
            Of torch's functions; has no meaning here.
        devices
            The devices whose arrays it takes, one or several; ``"cpu"`` and ``"cuda"``, with a warning, when
            ``None``. It becomes the default for those that have none.

        Raises
        ------
        TypeError
            If `func` is neither, or `extended_api` is true.
        """
        if extended_api:
            raise TypeError("register_backend: extended_api must be False: backends of corral take no torch options")
        if not isinstance(func, str) and not callable(getattr(func, "create", None)):
            raise TypeError(
                "register_backend: func must be a class with a class method create(rank, world_size, meet, timeout), "
                f"or say where one is ('package.module:Class'), got {func!r}"
            )
        key = name.lower()
        backends.register(key, func)
        if not hasattr(cls, name.upper()):
            setattr(cls, name.upper(), key)
        if key not in cls.backend_list:
            cls.backend_list.append(key)
        if devices is None:
            warnings.warn(
                f"Device capability of {name} unspecified, assuming `cpu` and `cuda`. Say which by `devices`.",
                stacklevel=2,
            )
            cls.backend_capability[key] = ["cpu", "cuda"]
            return
        cls.backend_capability[key] = [devices] if isinstance(devices, str) else list(devices)
        for device in cls.backend_capability[key]:
            cls.default_device_backend_map.setdefault(device, key)


class BackendConfig:
    """Which backend serves which device; mirrors ``torch.distributed.BackendConfig``.

    Parameters
    ----------
    backend
        A name, or names for devices: ``"cpu:shm,cuda:nccl"``.

    Raises
    ------
    ValueError
        If it cannot be read.

    Examples
    --------
    >>> BackendConfig("shm")
    cpu:shm,cuda:shm
    >>> BackendConfig("cpu:shm,cuda:nccl").get_device_backend_map()
    {'cpu': 'shm', 'cuda': 'nccl'}
    """

    def __init__(self, backend: str) -> None:
        written = Backend(backend)
        self.device_backend_map: dict[str, str] = {}
        if written == Backend.UNDEFINED:
            self.device_backend_map = dict(Backend.default_device_backend_map)
        elif ":" in written:
            for pair in written.split(","):
                device, *names = (part.strip() for part in pair.split(":"))
                if len(names) != 1 or not device or not names[0]:
                    raise ValueError(f"Invalid device:backend pairing: {pair!r} in {backend!r}. {_FORMAT}")
                if device in self.device_backend_map:
                    raise ValueError(f"Duplicate device type {device} in backend string: {backend!r}. {_FORMAT}")
                self.device_backend_map[device] = names[0]
        elif written in Backend.backend_capability:
            self.device_backend_map = dict.fromkeys(Backend.backend_capability[written], written)
        else:
            warnings.warn(
                f"Device capability of {backend} unknown, assuming `cpu` and `cuda`. {_FORMAT}",
                stacklevel=2,
            )
            self.device_backend_map = dict.fromkeys(("cpu", "cuda"), written)

    def __repr__(self) -> str:
        return ",".join(f"{device}:{backend}" for device, backend in self.device_backend_map.items())

    def get_device_backend_map(self) -> dict[str, str]:
        """Return the name of each device's backend."""
        return self.device_backend_map


_FORMAT = "Backends for devices are written '<device>:<backend>,<device>:<backend>', such as 'cpu:shm,cuda:nccl'."


def get_backend_config(group: Group = None) -> str:
    """Return which backend serves which device in a group, such as ``"cpu:shm,cuda:shm"``.

    Mirrors ``torch.distributed.get_backend_config``.

    Raises
    ------
    ValueError
        If this process is not in the group.
    """
    return repr(BackendConfig(groups.get_backend(group)))


def get_default_backend_for_device(device: Any) -> str:
    """Return the backend used for a device where none is asked for.

    Mirrors ``torch.distributed.get_default_backend_for_device``.

    Parameters
    ----------
    device
        A name such as ``"cuda"`` or ``"cuda:0"``, or a ``torch.device``.

    Raises
    ------
    ValueError
        If there is none.

    Examples
    --------
    >>> get_default_backend_for_device("cpu")
    'shm'
    """
    kind = device if isinstance(device, str) else getattr(device, "type", None)
    if not isinstance(kind, str):
        raise TypeError(
            "get_default_backend_for_device: device must be a name such as 'cuda:0' or a torch.device, "
            f"got {type(device).__qualname__}"
        )
    backend = Backend.default_device_backend_map.get(kind.partition(":")[0])
    if backend is None:
        known = ", ".join(map(repr, Backend.default_device_backend_map))
        raise ValueError(f"Default backend not registered for device : {device}; there are some for {known}")
    return backend


def is_backend_available(backend: str) -> bool:
    """Whether corral can use a backend here, or all of several: ``"cpu:shm,cuda:nccl"``.

    Mirrors ``torch.distributed.is_backend_available``. It is not enough that torch or MPI is installed: corral
    must have a backend of that name. Nothing is imported to find out.

    Examples
    --------
    >>> is_backend_available("shm"), is_backend_available("carrier pigeon")
    (True, False)
    """
    if ":" in backend:
        return all(map(backends.available, BackendConfig(backend).get_device_backend_map().values()))
    return backends.available(backend)


def is_gloo_available() -> bool:
    """Whether corral can use gloo here; mirrors ``torch.distributed.is_gloo_available``."""
    return backends.available(Backend.GLOO)


def is_mpi_available() -> bool:
    """Whether corral can use MPI here; mirrors ``torch.distributed.is_mpi_available``."""
    return backends.available(Backend.MPI)


def is_nccl_available() -> bool:
    """Whether corral can use NCCL here; mirrors ``torch.distributed.is_nccl_available``."""
    return backends.available(Backend.NCCL)


def is_ucc_available() -> bool:
    """Whether corral can use UCC here; mirrors ``torch.distributed.is_ucc_available``."""
    return backends.available(Backend.UCC)


def is_xccl_available() -> bool:
    """Whether corral can use XCCL here; mirrors ``torch.distributed.is_xccl_available``."""
    return backends.available(Backend.XCCL)
