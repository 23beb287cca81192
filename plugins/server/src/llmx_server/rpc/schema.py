"""Messages and services of protos/llmx_v1.proto, made from what protoc wrote of it.

The descriptor instead of generated modules: those ask for the protobuf release that made them, or a newer one.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["SERVICE", "message_type"]

SERVICE = "llmx.v1.Llmx"

# The pool of the process: reflection reads it, and a client in this process that has modules of its own shares it.
_POOL = descriptor_pool.Default()
for _file in descriptor_pb2.FileDescriptorSet.FromString((files(__package__) / "protos" / "llmx_v1.binpb").read_bytes()).file:
    _POOL.AddSerializedFile(_file.SerializeToString())


def message_type(name: str) -> Any:
    """The class of a message of llmx.v1."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"llmx.v1.{name}"))
