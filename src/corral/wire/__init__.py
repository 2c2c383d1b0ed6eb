"""What travels between ranks, in bytes: objects (:mod:`~corral.wire.codec`) and descriptions of arrays."""
