"""What travels between ranks, in bytes: objects (:mod:`~corral.wire.codec`) and descriptions of arrays."""

import corral.distributed  # noqa: F401  first, for it imports the codec, and the codec its errors
