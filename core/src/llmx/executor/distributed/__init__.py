"""Several ranks, one executor: `mp` drives processes on this host, `serve` is what such a process does, `wire` what they say to each other."""
