from corral.tensordict.base import Base
class Sharing(Base):
    __slots__ = ()
