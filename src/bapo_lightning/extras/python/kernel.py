"""Walls that the kernel keeps around a process for the rest of its life, also against native code.

With Landlock it can open only the files that it is given, and with seccomp it can make only the system calls
that a computation needs: no processes, threads, sockets, signals to others, changes of limits or of the
rights of files. Neither needs privileges. Python has no library for them; `ctypes` makes the calls.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator
from errno import EPERM
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_GET_SECCOMP, _SET_SECCOMP, _NO_NEW_PRIVILEGES = 21, 22, 38  # <linux/prctl.h>
_FILTER = 2  # <linux/seccomp.h>
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # <asm/unistd.h>, the same everywhere
_BY_PATH, _GET_VERSION = 1, 1  # <linux/landlock.h>
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # by version of Landlock; 16 for later versions
_READ_FILE, _READ_FOLDER, _OF_FILES = 1 << 2, 1 << 3, 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
_X86_64 = 0xC000003E  # <linux/audit.h>
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | EPERM  # <linux/seccomp.h>
_LOAD, _IS, _RETURN = 0x20, 0x15, 0x06  # <linux/bpf_common.h>
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data

# For x86-64. chmod, chown, utime and link are missing, which Landlock does not stop, and so is most of ioctl.
_ALLOWED_CALLS = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
    "rt_sigreturn": 15, "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "pipe": 22,
    "select": 23, "sched_yield": 24, "mremap": 25, "msync": 26, "madvise": 28, "dup": 32, "dup2": 33,
    "pause": 34, "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38, "getpid": 39,
    "sendfile": 40, "exit": 60, "uname": 63, "fsync": 74, "fdatasync": 75, "ftruncate": 77, "getdents": 78,
    "getcwd": 79, "chdir": 80, "fchdir": 81, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85,
    "unlink": 87, "readlink": 89, "umask": 95, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98,
    "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108,
    "getppid": 110, "getpgrp": 111, "getpgid": 121, "getsid": 124, "sigaltstack": 131, "statfs": 137,
    "fstatfs": 138, "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204, "getdents64": 217,
    "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230,
    "exit_group": 231, "openat": 257, "mkdirat": 258, "newfstatat": 262, "unlinkat": 263, "renameat": 264,
    "readlinkat": 267, "faccessat": 269, "pselect6": 270, "ppoll": 271, "dup3": 292, "pipe2": 293,
    "getcpu": 309, "renameat2": 316, "getrandom": 318, "membarrier": 324, "copy_file_range": 326,
    "statx": 332, "rseq": 334, "close_range": 436, "faccessat2": 439,
}  # fmt: skip
# Allowed if an argument, by its place, has one of these values.
_ALLOWED_WHERE = {
    16: (1, (0x5450, 0x5451)),  # ioctl: whether a descriptor is inherited
    72: (1, (0, 1, 2, 3, 1030)),  # fcntl: descriptors and their flags, but no signals to an owner
    302: (2, (0,)),  # prlimit64: to read limits
}


def missing_walls() -> list[str]:
    """Returns what `raise_walls` needs and this machine does not have."""
    if sys.platform != "linux":
        return ["Linux"]
    missing = [] if platform.machine() == "x86_64" else [f"a list of system calls for {platform.machine()}"]
    if _LIBC.prctl(_GET_SECCOMP, 0, 0, 0, 0) < 0:
        missing.append("seccomp")
    if _landlock_version() < 1:
        missing.append("Landlock (Linux 5.13, and `landlock` in the kernel's list of security modules)")
    return missing


def raise_walls(readable: Iterable[Path], writable: Path) -> None:
    """Walls this process in. Raises OSError if the kernel refuses.

    Args:
        readable: files and folders; missing ones are left out.
        writable: folder in which everything is allowed.
    """
    _check(_LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _restrict_files(readable, writable)
    program = b"".join(_instructions())
    address = ctypes.cast(ctypes.c_char_p(program), ctypes.c_void_p).value
    descriptor = struct.pack("HP", len(program) // 8, address)
    _check(_LIBC.prctl(_SET_SECCOMP, _FILTER, descriptor, 0, 0))


def _landlock_version() -> int:
    return int(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _GET_VERSION))


def _restrict_files(readable: Iterable[Path], writable: Path) -> None:
    handled = (1 << _FILE_RIGHTS.get(_landlock_version(), 16)) - 1
    ruleset = _check(_LIBC.syscall(_CREATE_RULESET, struct.pack("Q", handled), ctypes.c_size_t(8), 0))
    for path in readable:
        if path.exists():
            _allow(ruleset, path, handled & (_READ_FILE | _READ_FOLDER))
    _allow(ruleset, writable, handled)
    _check(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights if path.is_dir() else rights & _OF_FILES, descriptor)
        _check(_LIBC.syscall(_ADD_RULE, ruleset, _BY_PATH, rule, 0))
    finally:
        os.close(descriptor)


def _instructions() -> Iterator[bytes]:
    """The filter: allows the listed calls, refuses others, and kills on a machine with other numbers."""
    yield _instruction(_LOAD, _MACHINE_AT)
    yield _instruction(_IS, _X86_64, then=1)
    yield _instruction(_RETURN, _KILL)
    yield _instruction(_LOAD, _NUMBER_AT)
    for number in _ALLOWED_CALLS.values():
        yield _instruction(_IS, number, otherwise=1)
        yield _instruction(_RETURN, _ALLOW)
    for number, (place, values) in _ALLOWED_WHERE.items():
        low = _ARGUMENTS_AT + 8 * place
        yield _instruction(_IS, number, otherwise=5 + 2 * len(values))
        yield _instruction(_LOAD, low + 4)
        yield _instruction(_IS, 0, then=1)
        yield _instruction(_RETURN, _REFUSE)
        yield _instruction(_LOAD, low)
        for value in values:
            yield _instruction(_IS, value, otherwise=1)
            yield _instruction(_RETURN, _ALLOW)
        yield _instruction(_RETURN, _REFUSE)
    yield _instruction(_RETURN, _REFUSE)


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction of classic BPF; a jump skips `then` or `otherwise` instructions."""
    return struct.pack("HBBI", code, then, otherwise, value)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
