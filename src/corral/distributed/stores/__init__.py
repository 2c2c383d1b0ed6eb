"""Key-value stores that processes share, with the classes and methods of ``torch.distributed``.

Examples
--------
>>> from corral.distributed.stores import HashStore, PrefixStore
>>> store = HashStore()
>>> PrefixStore("job", store).set("key", "value")
>>> store.get("job/key")
b'value'
"""

from corral.distributed.stores.base import Store
from corral.distributed.stores.file import FileStore
from corral.distributed.stores.memory import HashStore
from corral.distributed.stores.prefix import PrefixStore
from corral.distributed.stores.tcp import TCPStore

__all__ = ["FileStore", "HashStore", "PrefixStore", "Store", "TCPStore"]
