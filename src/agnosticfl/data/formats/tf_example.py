# SPDX-License-Identifier: Apache-2.0
"""tf.train.Example records without TensorFlow."""

from functools import cache
from typing import Any

from agnosticfl.errors import BadInput, check, require

# The part of tensorflow/core/example/{example,feature}.proto that holds bytes; the parser passes
# over fields that are not listed. A map is on the wire a repeated entry of key and value.
#   message -> (field, number, type: message name or "bytes", repeated)
MESSAGES = {
    "BytesList": [("value", 1, "bytes", True)],
    "Feature": [("bytes_list", 1, "BytesList", False)],
    "Entry": [("key", 1, "bytes", False), ("value", 2, "Feature", False)],
    "Features": [("feature", 1, "Entry", True)],
    "Example": [("features", 1, "Features", False)],
}


def bytes_features(record: Any, place: str) -> dict[str, bytes]:
    """Name -> value of the features of a serialised Example that hold one string of bytes."""
    check(isinstance(record, bytes), f"{place}: the record is {type(record).__name__}, not bytes")
    example, decode_error = _parser()
    try:
        entries = example.FromString(record).features.feature
    except decode_error as error:
        raise BadInput(f"{place}: the record is no tf.train.Example: {error}") from error
    return {
        entry.key.decode(errors="replace"): entry.value.bytes_list.value[0]
        for entry in entries
        if len(entry.value.bytes_list.value) == 1
    }


@cache
def _parser() -> tuple[Any, type[Exception]]:
    """The Example class, in a pool of its own so that it never meets TensorFlow's; its error."""
    what = "reading tf.train.Example"
    descriptor_pb2 = require("google.protobuf.descriptor_pb2", what)
    descriptor_pool = require("google.protobuf.descriptor_pool", what)
    message_factory = require("google.protobuf.message_factory", what)
    decode_error = require("google.protobuf.message", what).DecodeError
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            field = described.field.add(name=name, number=number)
            field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            field.type = kinds.TYPE_BYTES if kind == "bytes" else kinds.TYPE_MESSAGE
            if kind != "bytes":
                field.type_name = f".{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Example")), decode_error
