"""The messages of gRPC's own services for health and reflection, with the names and numbers of their specifications."""

from app.api.kserve.descriptors import declared

HEALTH = "grpc.health.v1.Health"
UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN = range(4)
HEALTH_MESSAGES = declared(
    "grpc/health/v1/health.proto",
    "grpc.health.v1",
    {
        "HealthCheckRequest": "1 string service",
        "HealthCheckResponse": "1 HealthCheckResponse.ServingStatus! status",
    },
    {"Health": ("Check HealthCheckRequest HealthCheckResponse, Watch HealthCheckRequest HealthCheckResponse*")},
    {"HealthCheckResponse.ServingStatus": ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")},
)

_REFLECTION_MESSAGES = {
    "ServerReflectionRequest": (
        "1 string host, 3 string| file_by_filename, 4 string| file_containing_symbol, "
        "5 ExtensionRequest| file_containing_extension, 6 string| all_extension_numbers_of_type, "
        "7 string| list_services"
    ),
    "ExtensionRequest": "1 string containing_type, 2 int32 extension_number",
    "ServerReflectionResponse": (
        "1 string valid_host, 2 ServerReflectionRequest original_request, "
        "4 FileDescriptorResponse| file_descriptor_response, 6 ListServiceResponse| list_services_response, "
        "7 ErrorResponse| error_response"
    ),
    "FileDescriptorResponse": "1 bytes* file_descriptor_proto",
    "ListServiceResponse": "1 ServiceResponse* service",
    "ServiceResponse": "1 string name",
    "ErrorResponse": "1 int32 error_code, 2 string error_message",
}
# Clients ask for `v1` first; older ones know `v1alpha` alone, whose messages are the same.
REFLECTIONS = {
    f"grpc.reflection.{version}.ServerReflection": declared(
        f"grpc/reflection/{version}/reflection.proto",
        f"grpc.reflection.{version}",
        _REFLECTION_MESSAGES,
        {"ServerReflection": "ServerReflectionInfo ServerReflectionRequest* ServerReflectionResponse*"},
    )
    for version in ("v1", "v1alpha")
}
