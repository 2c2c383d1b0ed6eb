"""Forbids this process what some containers forbid: to reach into the memory of another."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

__all__ = ["forbid_direct_access"]

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 38, 22
_SECCOMP_MODE_FILTER = 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1  # the latter with EPERM
_NUMBERS = {"x86_64": (310, 311), "aarch64": (270, 271)}
"""Of process_vm_readv and process_vm_writev."""


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def forbid_direct_access() -> None:
    """Have the kernel refuse this process `process_vm_readv` and `process_vm_writev`.

    Where it cannot be told to, have the engine not try.
    """
    numbers = _NUMBERS.get(platform.machine())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 4]
    if numbers is not None and libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, None, None, None) == 0:
        read, write = numbers
        instructions = b"".join(
            struct.pack("<HBBI", *instruction)
            for instruction in (
                (_LOAD, 0, 0, 0),  # the call's number
                (_EQUAL, 2, 0, read),
                (_EQUAL, 1, 0, write),
                (_RETURN, 0, 0, _ALLOW),
                (_RETURN, 0, 0, _REFUSE),
            )
        )
        program = _Program(5, instructions)
        if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program), None, None) == 0:
            return
    os.environ["CORRAL_SHM_DIRECT"] = "0"
