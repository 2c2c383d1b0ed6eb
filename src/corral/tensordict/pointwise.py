from corral.tensordict.base import Base
class Pointwise(Base):
    __slots__ = ()
