"""A backend over any engine that can move messages between ranks.

What such an engine must do is :class:`Transport`; :class:`MessageBackend` does the rest.
"""

from corral.backends.messages.backend import MessageBackend
from corral.backends.messages.transport import Arrival, Transfer, Transport

__all__ = ["Arrival", "MessageBackend", "Transfer", "Transport"]
