"""The machine code that a trainer's main thread runs for us (x86-64 Linux).

The thread must return from this code without our help, because the tracer can be killed at any
moment, and the thread then continues with the registers that it has. So a single change of all
registers leads the thread to code that does everything and ends where the thread was stopped, with
its original registers. The tracer watches, and does the last step itself if it is still alive,
because only the kernel can tell an interrupted system call that a signal came meanwhile. What the
tracer writes for the code, it writes before the thread gets there; if the tracer is gone by then,
the code finds nothing and returns at once.

The code lies behind the end of the program's own code, in the unused rest of its last page.
"""

from __future__ import annotations

import struct
from typing import List

from .maps import Mapping, memory

AFTER_MAP, BACK, AFTER_LEAVE = 0x02, 0x34, 0x77
"""Offsets at which the thread stops: after it has mapped memory, after the call, and before it
returns.
"""
CODE = bytes.fromhex(
    "0f05"  #              syscall                      mmap: its arguments are in the registers
    "483d00f0ffff"  #      cmp  rax, -4096
    "7752"  #              ja   leave                   there was no memory
    "4889c3"  #            mov  rbx, rax
    # mov  rcx, [rbx + 4088]       what to call: the last that the tracer writes
    "488b8bf80f0000"
    "4885c9"  #            test rcx, rcx
    "7436"  #              jz   unmap                   he is gone
    "83c8ff"  #            or   eax, -1
    "83caff"  #            or   edx, -1
    "480faea300100000"  #  xsave64 [rbx + 4096]
    "4a8d643bc0"  #        lea  rsp, [rbx + r15 - 64]   a stack at the end of the memory
    "4c89ef"  #            mov  rdi, r13
    "4889de"  #            mov  rsi, rbx
    "ffd1"  #              call rcx
    # back:
    "89c5"  #              mov  ebp, eax
    "83c8ff"  #            or   eax, -1
    "83caff"  #            or   edx, -1
    "480faeab00100000"  #  xrstor64 [rbx + 4096]
    "488b253d010000"  #    mov  rsp, [table.rsp]
    "85ed"  #              test ebp, ebp
    "740d"  #              jz   leave                   the memory is given back by what was called
    # unmap:
    "b80b000000"  #        mov  eax, 11                 munmap
    "4889df"  #            mov  rdi, rbx
    "4c89fe"  #            mov  rsi, r15
    "0f05"  #              syscall
    # leave:
    "b80e000000"  #        mov  eax, 14                 rt_sigprocmask
    "bf02000000"  #        mov  edi, 2                  SIG_SETMASK
    "488d3523010000"  #    lea  rsi, [table.mask]
    "31d2"  #              xor  edx, edx
    "41ba08000000"  #      mov  r10d, 8
    # syscall                      the tracer waits for this one, and does the rest
    "0f05"
    "488b250a010000"  #    mov  rsp, [table.rsp]
    # add  rsp, -128               the thread's own stack, below what it may still use of it
    "4883c480"
    "ff35f8000000"  #      push [table.flags]
    "9d"  #                popf
    "488b25f8000000"  #    mov  rsp, [table.rsp]
    "488b05b9000000"  #    mov  rax, [table.rax]
    "488b1d8a000000"  #    mov  rbx, [table.rbx]
    "488b0db3000000"  #    mov  rcx, [table.rcx]
    "488b15b4000000"  #    mov  rdx, [table.rdx]
    "488b35b5000000"  #    mov  rsi, [table.rsi]
    "488b3db6000000"  #    mov  rdi, [table.rdi]
    "488b2d5f000000"  #    mov  rbp, [table.rbp]
    "4c8b0580000000"  #    mov  r8,  [table.r8]
    "4c8b0d71000000"  #    mov  r9,  [table.r9]
    "4c8b1562000000"  #    mov  r10, [table.r10]
    "4c8b1d53000000"  #    mov  r11, [table.r11]
    "4c8b2534000000"  #    mov  r12, [table.r12]
    "4c8b2d25000000"  #    mov  r13, [table.r13]
    "4c8b3516000000"  #    mov  r14, [table.r14]
    "4c8b3d07000000"  #    mov  r15, [table.r15]
    "3eff2578000000"  #    notrack jmp [table.rip]
)
TABLE = struct.Struct("<19Q")
"""The saved registers behind the code: r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx,
rdx, rsi, rdi, rip, flags, rsp, mask.
"""
_BYTES = len(CODE) + TABLE.size
_ALIGNMENT = 16
_PAGE = 4096
_EXECUTABLE, _LOADED = 1, 1


def place_for_code(pid: int, found: List[Mapping]) -> int:
    """Return an address with room for the code and its table, 0 if there is none. Raises OSError.

    A page whose rest is zeros is preferred, or one that has code from an earlier injection.
    """
    other = 0
    for one in found:
        if not (one.rights.startswith("r-xp") and one.inode):
            continue
        try:
            end = _end_of_code(pid, one, found)
            at = -(-end // _ALIGNMENT) * _ALIGNMENT
            if not end or at + _BYTES > one.end:
                continue
            there = memory(pid, at, _BYTES)
        except PermissionError:
            raise
        except (OSError, struct.error):
            continue  # its file was truncated meanwhile
        if not any(there) or there.startswith(CODE):
            return at
        other = other or at
    return other


def _end_of_code(pid: int, one: Mapping, found: List[Mapping]) -> int:
    """Return where the code ends in this mapping's last page, 0 if it does not end there.

    The end is read from the file's header in memory.
    """
    same = [
        first
        for first in found
        if first.inode == one.inode and first.path == one.path and not first.offset
    ]
    first = max(
        (first for first in same if first.start <= one.start),
        key=lambda first: first.start,
        default=None,
    )
    if first is None:
        return 0
    head = memory(pid, first.start, _PAGE)
    if head[:5] != b"\x7fELF\x02":
        return 0
    at, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    if size != 56 or at + size * count > _PAGE:
        return 0
    for index in range(count):
        kind, flags, offset, _, _, in_file, in_memory, _ = struct.unpack_from(
            "<IIQQQQQQ", head, at + size * index
        )
        if (
            kind == _LOADED
            and flags & _EXECUTABLE
            and offset // _PAGE * _PAGE == one.offset
            and in_file == in_memory
        ):
            end = one.start + offset - one.offset + in_file
            return int(end) if one.end - _PAGE < end < one.end else 0
    return 0
