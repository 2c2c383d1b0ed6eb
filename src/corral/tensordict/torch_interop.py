from corral.tensordict.base import Base
class TorchInterop(Base):
    __slots__ = ()
