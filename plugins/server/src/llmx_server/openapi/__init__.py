"""What /openapi.json says: read when it is asked for and at no other time, because types take longer to build than the whole server."""
