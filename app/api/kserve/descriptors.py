"""Message classes of gRPC services, from tables of their fields, in a descriptor pool of their own.

A client library in the same process registers the same names in protobuf's pool of the process. Only messages and
fields that are read or written here are declared; others are skipped, as protobuf does with unknown ones.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Message → its fields: `number type name`. `*`: repeated; `{T}`: a map from texts to T. Messages begin with a
# capital, and are written in full; `|`: the field is one of several; `!`: the type is a message's enum.
Messages = Mapping[str, str]
# Service → its methods: `name request answer`, by the names of messages; `*`: a stream of them.
Services = Mapping[str, str]

POOL = descriptor_pool.DescriptorPool()  # of what is served, for reflection
_Field = descriptor_pb2.FieldDescriptorProto


def declared(
    file_name: str,
    package: str,
    messages: Messages,
    services: Services,
    enums: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """The classes by the names of the messages. `enums`: in full; the first value is 0."""
    file = descriptor_pb2.FileDescriptorProto(name=file_name, package=package, syntax="proto3")
    descriptors: dict[str, Any] = {}
    for full, fields in messages.items():
        outer, _, name = full.rpartition(".")
        descriptors[full] = (descriptors[outer].nested_type if outer else file.message_type).add(name=name)
        _declare(package, full, descriptors[full], fields)
    for full, names in (enums or {}).items():
        outer, _, name = full.rpartition(".")
        enum = descriptors[outer].enum_type.add(name=name)
        for number, value in enumerate(names):
            enum.value.add(name=value, number=number)
    for name, methods in services.items():
        service = file.service.add(name=name)
        for method, asks, answer in (one.split() for one in methods.split(", ")):
            service.method.add(
                name=method,
                input_type=f".{package}.{asks.strip('*')}",
                output_type=f".{package}.{answer.strip('*')}",
                client_streaming=asks.endswith("*"),
                server_streaming=answer.endswith("*"),
            )
    POOL.Add(file)
    find = POOL.FindMessageTypeByName
    return {full: message_factory.GetMessageClass(find(f"{package}.{full}")) for full in messages}


def _declare(package: str, full: str, message: Any, fields: str) -> None:
    """Adds the fields to the descriptor of the message `full`."""
    for number, kind, name in (field.split() for field in fields.split(", ") if field):
        field = message.field.add(name=name, number=int(number))
        plain, is_map = kind.strip("*|!{}"), kind[0] == "{"
        field.label = _Field.LABEL_REPEATED if is_map or kind[-1] == "*" else _Field.LABEL_OPTIONAL
        if is_map:
            entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
            entry.options.map_entry = True
            _declare(package, entry.name, entry, f"1 string key, 2 {plain} value")
            plain = f"{full}.{entry.name}"
        if plain[0].isupper():
            field.type = _Field.TYPE_ENUM if kind[-1] == "!" else _Field.TYPE_MESSAGE
            field.type_name = f".{package}.{plain}"
        else:
            field.type = _Field.Type.Value(f"TYPE_{plain.upper()}")
        if kind[-1] == "|":
            if not message.oneof_decl:
                message.oneof_decl.add(name="parameter_choice")
            field.oneof_index = 0
