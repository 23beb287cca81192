"""The native library: its structs, in the field order of csrc/step.h and csrc/tape.h, and a checked way to load it.

ctypes releases the GIL during every call.
"""

from __future__ import annotations

import ctypes as C
import platform
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from llmx.errors import PlatformError

__all__ = [
    "ISA_NAMES",
    "WEIGHT_TYPES",
    "AttentionArgs",
    "DraftArgs",
    "Group",
    "Joined",
    "LoraRecord",
    "OpRecord",
    "PartRecord",
    "SamplingRowC",
    "StateRecord",
    "StepArgs",
    "StepResult",
    "Tape",
    "ValueRecord",
    "best_isa",
    "call",
    "kernel_library",
    "library",
    "pointer",
]

ISA_NAMES = ("portable", "neon") if platform.machine() in ("aarch64", "arm64") else ("portable", "avx2", "avx512")  # csrc/isa.h
WEIGHT_TYPES = {
    **{"f32": 0, "f16": 1, "bf16": 2, "q4_0": 3, "q4_1": 4, "q8_0": 5, "q5_0": 6, "q5_1": 7},
    **{"q2_K": 8, "q3_K": 9, "q4_K": 10, "q5_K": 11, "q6_K": 12},
}  # csrc/linear.h
_VERSION = 1


def _struct(name: str, fields: str) -> type[C.Structure]:
    """A ctypes struct from "name:type ..." with types i (int32), l (int64), u (uint64), f (float), p (pointer),
    b (pointer that also takes bytes, which the struct keeps), and [n] for arrays."""
    kinds = {"i": C.c_int32, "l": C.c_int64, "u": C.c_uint64, "f": C.c_float, "p": C.c_void_p, "b": C.c_char_p}
    members: list[tuple[str, Any]] = []
    for field in fields.split():
        names, _, kind = field.partition(":")
        base: Any = kinds[kind[0]]
        if len(kind) > 1:
            base = base * int(kind[2:-1])
        members.extend((n, base) for n in names.split(","))
    return type(name, (C.Structure,), {"_fields_": members})


SamplingRowC: Any = _struct(
    "SamplingRowC",
    "temperature,top_p,min_p,presence,frequency,repetition:f top_k,min_tokens:i seed:u"
    " stop_ids,bias_ids,bias,allowed_ids,bad_words:p n_stop,n_bias,n_allowed,n_bad:i",
)


class Joined(C.Structure):
    """LlmxJoined."""

    _fields_ = [  # noqa: RUF012  # ctypes wants a list
        ("tokens", C.c_void_p),
        ("n_tokens", C.c_int32),
        ("slot", C.c_int32),
        ("prompt_len", C.c_int32),
        ("fork_of", C.c_int32),
        ("lora", C.c_int32),
        ("pad", C.c_int32),
        ("row", SamplingRowC),
    ]


StepArgs: Any = _struct(
    "StepArgs",
    "n,t,r,s,c,n_joined,n_left,n_kv_ops:i slot,q,start,tokens,head,samples:b score,score_top,joined,left,new_blocks,n_new_blocks,kv_ops:p"
    " want_top,want_ids,want_ids_offset,mask,mask_open,mask_drop:p",
)
StepResult: Any = _struct("StepResult", "count,tokens,status,lp_ids,lp,rank,score_ids,score_lp,score_rank:p kmax,lp_width,score_width,pad:i t_us:l[3]")
OpRecord: Any = _struct("OpRecord", "kind,rows,mult,width:i ins:i[4] outs:i[4] w:i[6] i:i[12] f:f[4]")
ValueRecord: Any = _struct("ValueRecord", "offset,width:l")
PartRecord: Any = _struct("PartRecord", "weight,bias,column,pad:i")
StateRecord: Any = _struct("StateRecord", "group,type,kv_heads,head_dim,v_head_dim,pad:i layer_offset:l")
Group: Any = _struct("Group", "block_bytes,num_blocks:l max_blocks,pad:i")
Tape: Any = _struct(
    "Tape",
    "ops,values,parts:p n_ops,n_values,n_parts,logits:i arena_floats:l max_tokens,max_requests,vocab,act_mult,act_width,head_width:i",
)
LoraRecord: Any = _struct("LoraRecord", "part,rank,a_type,b_type:i a,b,magnitude:p scale:f kind:i")
AttentionArgs: Any = _struct(
    "AttentionArgs",
    "kv_type,kv_heads,head_dim,v_head_dim,q_heads,n,window,bidirectional:i block_bytes,stride:l pages,table,slot,q,start,query,sinks,alibi,out:p"
    " ld_query,ld_out:l scale,soft_cap:f",
)
DraftArgs: Any = _struct("DraftArgs", "n,t,r,run,guesses,pad:i slot,q,start,tokens,head,behind,next:p")

_SIGNATURES: dict[str, tuple[Any, str]] = {
    "llmx_version": (C.c_int, ""),
    "llmx_error": (C.c_char_p, ""),
    "llmx_isa_best": (C.c_int, ""),
    "llmx_abi_sizes": (C.c_int, "pi"),
    "llmx_engine_new": (C.c_void_p, "ii"),
    "llmx_engine_free": (None, "p"),
    "llmx_engine_weight": (C.c_int, "piiillpl"),
    "llmx_engine_communicator": (None, "pp"),
    "llmx_comm_bytes": (C.c_int64, "i"),
    "llmx_comm_new": (C.c_void_p, "iii"),
    "llmx_comm_free": (None, "p"),
    "llmx_comm_abort": (None, "p"),
    "llmx_comm_all_reduce": (C.c_char_p, "pppl"),
    "llmx_comm_all_gather": (C.c_char_p, "pppll"),
    "llmx_comm_broadcast": (C.c_char_p, "ppli"),
    "llmx_engine_turns": (C.c_int, "pbii"),
    "llmx_engine_turn_waits": (C.c_int, "pp"),
    "llmx_engine_fine_positions": (None, "pi"),
    "llmx_engine_vector": (C.c_int, "ppl"),
    "llmx_engine_tape": (C.c_int, "pp"),
    "llmx_engine_lora": (C.c_int, "pipi"),
    "llmx_engine_draft_tape": (C.c_int, "pp"),
    "llmx_engine_draft": (C.c_int, "pp"),
    "llmx_engine_hidden": (None, "pill"),
    "llmx_kv_layer_bytes": (C.c_int64, "p"),
    "llmx_engine_kv": (C.c_int, "ppipi"),
    "llmx_engine_start": (C.c_int, "ppp"),
    "llmx_engine_wait": (C.c_int, "p"),
    "llmx_engine_step": (C.c_int, "pppi"),
    "llmx_engine_finish": (C.c_int, "pppp"),
    "llmx_engine_logits": (C.c_int, "ppiip"),
    "llmx_engine_token_types": (C.c_int, "ppi"),
    "llmx_engine_value": (C.c_void_p, "pi"),
    "llmx_engine_pages": (C.c_void_p, "pi"),
    "llmx_engine_weight_bytes": (C.c_int64, "p"),
    "llmx_engine_op_ns": (C.c_int, "ppi"),
    "llmx_engine_phases": (C.c_int64, "p"),
    "llmx_engine_slot": (C.c_int, "pipi"),
    "llmx_engine_block_row": (C.c_int, "piipi"),
    "llmx_test_linear": (C.c_int, "ppipllplpip"),
    "llmx_test_phase": (C.c_int, "ppii"),
    "llmx_test_unpack_row": (C.c_int, "pilp"),
    "llmx_test_norm": (C.c_int, "iifippppiplll"),
    "llmx_test_act": (C.c_int, "iiippll"),
    "llmx_test_unary": (C.c_int, "iifppl"),
    "llmx_test_softmax": (C.c_int, "ippll"),
    "llmx_test_rope": (C.c_int, "ipiippplii"),
}
_KERNELS: dict[str, tuple[Any, str]] = {
    "llmx_kernel_room": (C.c_char_p, "pii"),
    "llmx_kernel_linear": (None, "ppipllpl"),
    "llmx_kernel_attention": (C.c_char_p, "pp"),
}  # csrc/capi_kernels.cpp
_ARGUMENTS = {"p": C.c_void_p, "b": C.c_char_p, "i": C.c_int, "l": C.c_int64, "f": C.c_float}


@cache
def library() -> C.CDLL:
    """The loaded library with argument types set. Raises PlatformError when it is missing, cannot be loaded or does not fit this package."""
    path = Path(__file__).with_name("_native.so")
    if not path.is_file():
        raise PlatformError(f"{path} is missing: llmx-platform-cpu was not built; install its wheel, or build it with `make setup`")
    try:
        lib = C.CDLL(str(path))
    except OSError as error:
        raise PlatformError(f"{path} cannot be loaded: {error}; reinstall llmx-platform-cpu for this machine") from error
    _declare(lib, path, _SIGNATURES)
    structs = (SamplingRowC, Joined, StepArgs, StepResult, OpRecord, ValueRecord, PartRecord, StateRecord, Group, Tape, LoraRecord)
    sizes = (C.c_int32 * len(structs))()
    count = lib.llmx_abi_sizes(sizes, len(structs))
    if lib.llmx_version() != _VERSION or count != len(structs) or [C.sizeof(s) for s in structs] != list(sizes):
        raise PlatformError(f"{path} and its Python side differ (version or struct sizes): reinstall llmx-platform-cpu")
    return lib


@cache
def kernel_library() -> C.CDLL:
    """The library with the functions of single kernels, for other executors than the native one. Raises PlatformError as `library` does."""
    lib = library()
    _declare(lib, Path(__file__).with_name("_native.so"), _KERNELS)
    return lib


def _declare(lib: C.CDLL, path: Path, signatures: dict[str, tuple[Any, str]]) -> None:
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name, None)
        if function is None:
            raise PlatformError(f"{path} has no {name}: it was built from other sources; reinstall llmx-platform-cpu")
        function.restype, function.argtypes = result, [_ARGUMENTS[a] for a in arguments]


def best_isa() -> str:
    """Name of the best instruction-set level that this CPU runs."""
    return ISA_NAMES[library().llmx_isa_best()]


def call(name: str, *args: Any) -> int:
    """Call a function that gives -1 for an error. Raises PlatformError with the library's reason."""
    lib = library()
    result: int = getattr(lib, name)(*args)
    if result < 0:
        raise PlatformError(f"native executor: {lib.llmx_error().decode()}")
    return result


def pointer(array: np.ndarray | None) -> int | None:
    """Address of an array's first element; None for None. The array must outlive the call."""
    return None if array is None else array.ctypes.data
