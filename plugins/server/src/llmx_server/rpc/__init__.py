"""gRPC: the same requests by another way. Read only when --grpc-port is given; docs/grpc.md has the interface."""
