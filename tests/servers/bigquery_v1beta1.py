"""The retired version 1beta1 of the BigQuery Storage API, for the reader of tensorflow-io. Adopters: leave.

No Python package holds its messages any more, so they are described here, as far as that reader uses them.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

if TYPE_CHECKING:
    from tests.servers.bigquery import BigQueryServer

_PACKAGE = "google.cloud.bigquery.storage.v1beta1"
_SERVICE = f"{_PACKAGE}.BigQueryStorage"
_AVRO, _ARROW = 1, 3
_REPEATED = "*"
# message -> field -> (number, type); a type is a protobuf scalar or another message, repeated with a star.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "TableReference": {"project_id": (1, "string"), "dataset_id": (2, "string"), "table_id": (3, "string")},
    "TableReadOptions": {"selected_fields": (1, "string*"), "row_restriction": (2, "string")},
    "CreateReadSessionRequest": {
        "table_reference": (1, "TableReference"),
        "requested_streams": (3, "int32"),
        "read_options": (4, "TableReadOptions"),
        "format": (5, "int32"),
        "parent": (6, "string"),
    },
    "Stream": {"name": (1, "string")},
    "AvroSchema": {"schema": (1, "string")},
    "ArrowSchema": {"serialized_schema": (1, "bytes")},
    "ReadSession": {
        "name": (1, "string"),
        "expire_time": (2, ".google.protobuf.Timestamp"),
        "streams": (4, "Stream*"),
        "avro_schema": (5, "AvroSchema"),
        "arrow_schema": (6, "ArrowSchema"),
        "table_reference": (7, "TableReference"),
    },
    "StreamPosition": {"stream": (1, "Stream"), "offset": (2, "int64")},
    "ReadRowsRequest": {"read_position": (1, "StreamPosition")},
    "AvroRows": {"serialized_binary_rows": (1, "bytes"), "row_count": (2, "int64")},
    "ArrowRecordBatch": {"serialized_record_batch": (1, "bytes"), "row_count": (2, "int64")},
    "ReadRowsResponse": {
        "avro_rows": (3, "AvroRows"),
        "arrow_record_batch": (4, "ArrowRecordBatch"),
        "row_count": (6, "int64"),
    },
}
_AVRO_TYPES = {
    pa.int64(): "long",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "bytes",
}


@functools.cache
def messages() -> dict[str, Any]:
    """Returns the message classes by name."""
    scalar = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="bigquery_v1beta1.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            made = message.field.add(name=field, number=number, label=scalar.LABEL_OPTIONAL)
            if kind.endswith(_REPEATED):
                made.label = scalar.LABEL_REPEATED
                kind = kind[:-1]
            if kind in _MESSAGES or kind.startswith("."):
                made.type = scalar.TYPE_MESSAGE
                made.type_name = kind if kind.startswith(".") else f".{_PACKAGE}.{kind}"
            else:
                made.type = scalar.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.Default()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def handler(server: BigQueryServer) -> grpc.GenericRpcHandler:
    """Returns the handler of this version's two calls."""
    kinds = messages()

    def create(request: Any, context: grpc.ServicerContext) -> Any:
        return _create(server, request, context)

    def read(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        position = request.read_position
        for _, message in server.responses(position.stream.name, position.offset, context):
            yield message

    handlers = {
        "CreateReadSession": grpc.unary_unary_rpc_method_handler(
            create,
            kinds["CreateReadSessionRequest"].FromString,
            lambda message: message.SerializeToString(),
        ),
        "ReadRows": grpc.unary_stream_rpc_method_handler(read, kinds["ReadRowsRequest"].FromString, None),
    }
    return grpc.method_handlers_generic_handler(_SERVICE, handlers)


def _create(server: BigQueryServer, request: Any, context: grpc.ServicerContext) -> Any:
    table = request.table_reference
    arrow = request.format == _ARROW
    session = server.open(
        request.parent,
        f"{table.project_id}.{table.dataset_id}.{table.table_id}",
        list(request.read_options.selected_fields),
        request.read_options.row_restriction,
        request.requested_streams or 1,
        _arrow_rows if arrow else _avro_rows,
        context,
    )
    answer = messages()["ReadSession"](name=session.name, table_reference=table)
    answer.expire_time.FromDatetime(session.expires.replace(tzinfo=None))
    for number in range(len(session.streams)):
        answer.streams.add(name=f"{session.name}/streams/{number}")
    if arrow:
        answer.arrow_schema.serialized_schema = session.schema.serialize().to_pybytes()
    else:
        answer.avro_schema.schema = json.dumps(_avro_schema(session.schema))
    return answer


def _arrow_rows(table: pa.Table) -> bytes:
    batch = table.combine_chunks().to_batches()[0]
    response = messages()["ReadRowsResponse"](row_count=batch.num_rows)
    response.arrow_record_batch.serialized_record_batch = batch.serialize().to_pybytes()
    response.arrow_record_batch.row_count = batch.num_rows
    return response.SerializeToString()  # type: ignore[no-any-return]


def _avro_schema(schema: pa.Schema) -> dict[str, Any]:
    fields = [{"name": one.name, "type": ["null", _AVRO_TYPES[one.type]]} for one in schema]
    return {"type": "record", "name": "__root__", "fields": fields}


def _avro_rows(table: pa.Table) -> bytes:
    import fastavro

    schema = fastavro.parse_schema(_avro_schema(table.schema))
    buffer = io.BytesIO()
    for row in table.to_pylist():
        fastavro.schemaless_writer(buffer, schema, row)
    response = messages()["ReadRowsResponse"](row_count=table.num_rows)
    response.avro_rows.serialized_binary_rows = buffer.getvalue()
    response.avro_rows.row_count = table.num_rows
    return response.SerializeToString()  # type: ignore[no-any-return]
