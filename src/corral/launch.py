"""Another name of :mod:`corral.launcher`."""

from corral.launcher import LaunchError, launch

__all__ = ["LaunchError", "launch"]
