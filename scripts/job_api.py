"""Writes trainer/jobs/tables/api.json: the fields and enums of a job, from google-cloud-aiplatform.

Run it in an environment that has the package, and look at the diff:

    python -m venv /tmp/sdk && /tmp/sdk/bin/pip install google-cloud-aiplatform
    /tmp/sdk/bin/python scripts/job_api.py

Each field is a text: `string`, `int32`, `msg:WorkerPoolSpec`, `enum:AcceleratorType`, `any` (free JSON) and
so on, with `[]` for lists, `{}` for maps of texts, a leading `-` for fields that only the service fills in.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "trainer" / "jobs" / "tables" / "api.json"
ROOTS = ("CustomJob", "HyperparameterTuningJob", "TrainingPipeline")
PACKAGE = "google.cloud.aiplatform.v1."
WELL_KNOWN = {
    "google.protobuf.Duration": "duration",
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.Value": "any",
    "google.protobuf.Struct": "any",
    "google.protobuf.ListValue": "any",
    "google.rpc.Status": "any",
    "google.protobuf.Int64Value": "int64",
    "google.protobuf.BoolValue": "bool",
    "google.protobuf.StringValue": "string",
    "google.protobuf.DoubleValue": "double",
}
SCALARS = {  # by the numbers of FieldDescriptorProto.Type
    1: "double",
    2: "float",
    3: "int64",
    4: "int64",
    5: "int32",
    8: "bool",
    9: "string",
    12: "bytes",
    13: "int32",
}


def output_only(message: Any) -> set[str]:
    """Returns the fields whose doc line says that only the service writes them."""
    found = set()
    for name, text in re.findall(r"^        (\w+) \([^\n]*\):\n\s+(.{0,40})", message.__doc__ or "", re.M):
        if text.startswith(("Output only", "Immutable. Output only")):
            found.add(name)
    return found


def short(full_name: str) -> str:
    """Returns a type's name without its package."""
    return full_name.removeprefix(PACKAGE)


def build() -> dict[str, Any]:
    """Returns the table, of every message that a job can hold."""
    import google.cloud.aiplatform_v1.types as types
    from google.cloud.aiplatform import version

    def python_class(name: str) -> Any:
        found = types
        for part in name.split("."):
            found = getattr(found, part)
        return found

    messages: dict[str, dict[str, str]] = {}
    enums: dict[str, list[str]] = {}
    oneofs: dict[str, dict[str, list[str]]] = {}
    waiting = [getattr(types, name).pb(getattr(types, name)()).DESCRIPTOR for name in ROOTS]
    while waiting:
        message = waiting.pop()
        name = short(message.full_name)
        if name in messages:
            continue
        hidden = output_only(python_class(name))
        fields = messages[name] = {}
        for field in message.fields:
            many = "[]" if field.is_repeated else ""
            python_name = field.name
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                kind = f"{'any' if field.message_type.fields_by_name['value'].message_type else 'string'}{{}}"
            elif field.message_type is not None:
                full = field.message_type.full_name
                own = full.startswith(PACKAGE)  # messages of other packages are free JSON here
                kind = (f"msg:{short(full)}" if own else WELL_KNOWN.get(full, "any")) + many
                if own and python_name not in hidden:
                    waiting.append(field.message_type)
            elif field.enum_type is not None:
                enum = short(field.enum_type.full_name)
                enums[enum] = [value.name for value in field.enum_type.values]
                kind = f"enum:{enum}{many}"
            else:
                kind = SCALARS[field.type] + many
            if python_name in hidden:
                kind = f"-{'any' if kind.startswith('msg:') else kind}"
            fields[field.json_name] = kind
        groups = {
            oneof.name: [field.json_name for field in oneof.fields]
            for oneof in message.oneofs
            if len(oneof.fields) > 1
        }
        if groups:
            oneofs[name] = groups
    return {
        "source": f"google-cloud-aiplatform {version.__version__}, aiplatform_v1",
        "messages": dict(sorted(messages.items())),
        "enums": dict(sorted(enums.items())),
        "oneofs": dict(sorted(oneofs.items())),
    }


def main() -> int:
    """Writes the table."""
    table = build()
    TARGET.write_text(json.dumps(table, indent=0, separators=(",", ":")) + "\n")
    print(f"{TARGET}: {len(table['messages'])} messages, {len(table['enums'])} enums, {table['source']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
